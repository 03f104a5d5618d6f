-- memtide run --dry-run: the cells with the memory that they will need and the time that they will take. No cell is run
-- and no file is written.
local estimate = require "memtide.sweep.estimate"
local report = require "memtide.results.report"
local rounds = require "memtide.sweep.rounds"
local status = require "memtide.sweep.status"
local sweep = require "memtide.sweep.sweep"
local util = require "memtide.base.util"

local preview = {}

-- Predicts every cell as `memtide run` would, without running it, and calls each(k, row).
local function survey(experiment, options, each)
  local quiet = {}
  for key, value in pairs(options) do quiet[key] = value end
  quiet.csv, quiet.json, quiet.dry_run, quiet.quiet, quiet.each = nil, nil, true, true, each
  quiet["until"], quiet.costs = nil, nil
  return sweep.run(experiment, "run", quiet)
end

-- {[k] = cost of the k-th cell}, as estimate.cost returns it; nil: that cell cannot be compiled or does not fit.
function preview.costs(experiment, options)
  local costs = {}
  survey(experiment, options, function(k, row) costs[k] = row.status == "predicted" and row.cost or nil end)
  return costs
end

-- The time of all visits of a cell, from that of one. If reliable times are asked for, the number of visits is known
-- only to lie between two bounds.
local function all_visits(base, time)
  local least, most = rounds.visits(base, time.seconds)
  return {seconds = time.seconds * math.sqrt(least * most), low = time.low * rounds.visits(base, time.low),
    high = time.high * select(2, rounds.visits(base, time.high)), source = time.source}
end

local MARKS = {estimated = "", guessed = "~", floor = ">"}

local function time_text(time, emulated)
  local text = time and MARKS[time.source] .. estimate.show(time.seconds) or "unknown"
  return emulated and ("%s, %s is emulated"):format(text, emulated) or text
end

-- A note on the total if not all times come from measured steps
local RESTS = {
  guessed = " (a guess: nothing like it was measured yet)",
  floor = " at least (by the device's data sheet: nothing was measured on it yet)",
}

local function total_text(total)
  local now = os.time()
  local function clock(seconds) return os.date("%H:%M", math.floor(now + seconds)) end
  if total.known == 0 and total.unknown > 0 then
    return "the time of their steps is unknown: nothing was measured on this device yet"
  end
  local text = estimate.show(total.seconds) .. " of steps" .. (RESTS[total.source] or "")
  if total.unknown > 0 then return ("%s, and %d cells of unknown time"):format(text, total.unknown) end
  return ("%s: started now, they end between %s and %s"):format(text, clock(total.low), clock(total.high))
end

-- Adds the time of a cell that is to be run to the total; nil: the time is not known.
local function sum_up(total, time)
  if not time then
    total.unknown = total.unknown + 1
    return
  end
  total.known = total.known + 1
  for _, name in ipairs{"seconds", "low", "high"} do total[name] = total[name] + time[name] end
  if time.source == "floor" or time.source == "guessed" and total.source ~= "floor" then total.source = time.source end
end

local FIELDS = {"case", "state", "fits", "reason", "predicted_peak_bytes", "seconds", "source", "emulated"} -- of a cell's JSON

-- The object of a cell, a line. time: of all its visits, or nil
local function json_of(row, state, time)
  local fits = row.status == "predicted"
  return report.json({case = row.case, state = state, fits = fits, reason = not fits and row.reason or nil,
    predicted_peak_bytes = row.predicted_peak_bytes, seconds = time and time.seconds or nil, source = time and time.source or nil,
    emulated = row.emulated}, FIELDS)
end

function preview.main(experiment, options)
  local rows, rates = status.load(options.csv), estimate.new()
  local lines = {{"case", "file", "memory", "fits", "time"}}
  local total = {seconds = 0, low = 0, high = 0, known = 0, unknown = 0}
  local counts = {cells = 0, run = 0, unfit = 0}
  survey(experiment, options, function(_, row)
    local state = status.of_row(row, rows, {}).state
    local runs = row.cost and row.status == "predicted"
    local time = runs and rates:cell(row.cost)
    time = time and all_visits(experiment.base, time)
    if runs and state ~= "done" and not row.max_memory_reserved then -- PyTorch's step is never run
      sum_up(total, time)
      counts.run = counts.run + 1
    end
    counts.cells = counts.cells + 1
    if row.status ~= "predicted" then counts.unfit = counts.unfit + 1 end
    if options.json then print(json_of(row, state, time)) end
    lines[#lines + 1] = {row.case, state, row.predicted_peak_bytes and util.show_bytes(row.predicted_peak_bytes) or "",
      row.status == "predicted" and "yes" or row.reason, runs and time_text(time, row.emulated) or ""}
  end)
  if options.json then return 0 end
  for _, text in ipairs(report.columns(lines, true)) do print(text) end
  print(("%d cells, %d of them to run, %d that cannot; %s"):format(counts.cells, counts.run, counts.unfit,
    total_text(total)))
  return 0
end

return preview
