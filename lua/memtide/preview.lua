-- memtide run --dry-run: the cells with the memory that they will need and the time that they will take. Nothing is
-- run, no file is written.
local estimate = require "memtide.estimate"
local report = require "memtide.report"
local status = require "memtide.status"
local sweep = require "memtide.sweep"
local util = require "memtide.util"

local preview = {}

-- Predicts every cell as `memtide run` would, and runs none: each(k, row)
local function survey(experiment, options, each)
  local quiet = {}
  for key, value in pairs(options) do quiet[key] = value end
  quiet.csv, quiet.json, quiet.dry_run, quiet.quiet, quiet.each = nil, nil, true, true, each
  quiet["until"], quiet.costs = nil, nil
  return sweep.run(experiment, "run", quiet)
end

-- What the cells cost, by their place in the plan: see estimate.cost; absent where a cell cannot be compiled.
function preview.costs(experiment, options)
  local costs = {}
  survey(experiment, options, function(k, row) costs[k] = row.status == "predicted" and row.cost or nil end)
  return costs
end

local function time_text(time, emulated)
  if not time then return "" end
  return ("%s%s%s"):format(time.learnt and "" or "~", estimate.show(time.seconds),
    emulated and (", %s is emulated"):format(emulated) or "")
end

local function total_text(total)
  local now = os.time()
  local function clock(seconds) return os.date("%H:%M", math.floor(now + seconds)) end
  return ("%s of steps%s: started now, they end between %s and %s"):format(estimate.show(total.seconds),
    total.learnt and "" or " (a guess: nothing like it was measured yet)", clock(total.low), clock(total.high))
end

function preview.main(experiment, options)
  local rows, rates = status.load(options.csv), estimate.new()
  local lines = {{"case", "file", "memory", "fits", "time"}}
  local total = {seconds = 0, low = 0, high = 0, learnt = true}
  local counts = {cells = 0, run = 0, unfit = 0}
  survey(experiment, options, function(_, row)
    local state = status.of_row(row, rows, {}).state
    local time = row.cost and row.status == "predicted" and rates:cell(row.cost)
    local wanted = state ~= "done"
    if wanted and time then
      for _, name in ipairs{"seconds", "low", "high"} do total[name] = total[name] + time[name] end
      total.learnt, counts.run = total.learnt and time.learnt, counts.run + 1
    end
    counts.cells = counts.cells + 1
    if row.status ~= "predicted" then counts.unfit = counts.unfit + 1 end
    lines[#lines + 1] = {row.case, state, row.predicted_peak_bytes and util.show_bytes(row.predicted_peak_bytes) or "",
      row.status == "predicted" and "yes" or row.reason, time_text(time, row.emulated)}
  end)
  for _, text in ipairs(report.columns(lines, true)) do print(text) end
  print(("%d cells, %d of them to run, %d that cannot; %s"):format(counts.cells, counts.run, counts.unfit,
    total_text(total)))
  return 0
end

return preview
