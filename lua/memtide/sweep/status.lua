-- memtide status: which of the script's cells have a row in the results file. It reads the file while a sweep may still
-- be writing it. It builds networks, but opens no device.
local cell = require "memtide.net.cell"
local csv = require "memtide.results.csv"
local selection = require "memtide.sweep.selection"
local report = require "memtide.results.report"
local results = require "memtide.results.results"
local row = require "memtide.sweep.row"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"

local status = {}

local function key(...) return table.concat({...}, "\0") end

-- The rows of a file: by_cell, by_settings (the first part of the cell's id) and by_case, where of two rows the later
-- counts; `list` has them in the order in which their cells first occur; `columns`: those of the file. nil: no file.
function status.load(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  file:close()
  local rows = {by_cell = {}, by_settings = {}, by_case = {}, list = {}}
  local place = {}
  rows.columns = results.read(path, function(values)
    local number = values["repeat"] or ""
    local id = key(values.cell or "", number)
    place[id] = place[id] or #rows.list + 1
    rows.by_cell[id], rows.list[place[id]] = values, values
    rows.by_settings[key((values.cell or ""):match("^[^-]*"), number)] = values
    rows.by_case[key(values.case or "", number)] = values
  end)
  return rows
end

-- Those of the columns `names` in which the row `old` differs from the cell's columns `now`.
local function changed_columns(now, old, names)
  local changed = {}
  for _, name in ipairs(names) do
    local value = now[name]
    local text = csv.text(value)
    local unknown = not old[name] or text == "max" or name == "steps" and (old[name] == "" or text == "")
    if not unknown and old[name] ~= text then changed[#changed + 1] = name end
  end
  return changed
end

-- What differs between the cell's columns `now` and the row `old`: "batch", "settings, network", ""
function status.changes(now, old, names)
  local why = cell.differences(old.cell, now.cell)
  local columns = why[1] == "settings" and changed_columns(now, old, names) or {}
  if #columns > 0 then why[1] = table.concat(columns, ", ") end
  return table.concat(why, ", ")
end

-- The cell's row. If the cell, or the row's cell, could not be built, settings alone identify it, as in a sweep.
local function row_of(now, rows)
  local number = now["repeat"]
  local found = rows.by_cell[key(now.cell, number)]
  if found then return found end
  found = rows.by_settings[key(now.cell:match("^[^-]*"), number)]
  return found and (cell.is_unbuilt(found.cell) or cell.is_unbuilt(now.cell)) and found or nil
end

-- The state of the cell with the columns `now`: {state = "done", "failed", "stale" or "missing", status =, why =}.
-- names: columns that may explain why its settings differ from those of an older row.
function status.of_row(now, rows, names)
  local number, found = now["repeat"], rows and row_of(now, rows)
  if found then
    local state = selection.state(found.status, found.version)
    return {state = state, status = found.status,
      why = state == "stale" and "version " .. found.version or state == "failed" and found.reason or ""}
  end
  found = rows and (rows.by_settings[key(now.cell:match("^[^-]*"), number)] or rows.by_case[key(now.case, number)])
  if not found then return {state = "missing", status = "", why = ""} end
  return {state = "stale", status = found.status, why = status.changes(now, found, names) .. " changed"}
end

-- The columns that show in what the settings of cells differ.
function status.names(experiment)
  local names = {"seed", "steps"}
  table.move(settings.columns, 1, #settings.columns, #names + 1, names)
  local own = experiment:own_axes()
  return table.move(own, 1, #own, #names + 1, names)
end

local function build(self)
  local good, problem = util.try(cell.build, nil, self)
  if good then return end
  local whole = util.is_failure(problem) and problem.code == "script" -- the mistake is in the script, not in one cell
  if whole or util.is_interrupt(problem) then error(problem, 0) end
  self.failed = util.text_of(problem)
end

-- Calls each(columns, cell, k) for every cell of the selection; columns: those that identify the cell now.
function status.each(cells, each)
  for k = 1, cells:count() do
    local one = cells:cell(k)
    build(one)
    local now = row.identity(one, cell.id(one, cells.purpose))
    now.steps = one.steps
    each(now, one, k)
    cell.release(one)
  end
end

local ORDER = {"done", "failed", "stale", "missing"}

-- {ok = 7, oom = 1} -> "8", " (7 ok, 1 oom)"
local function sum_of(counts)
  local words, sum = {}, 0
  for _, word in ipairs(util.sorted_keys(counts)) do
    sum = sum + counts[word]
    if word ~= "" then words[#words + 1] = ("%d %s"):format(counts[word], word) end
  end
  return sum, #words > 0 and " (" .. table.concat(words, ", ") .. ")" or ""
end

local function sentence(counts, total, path)
  local parts = {}
  for i, state in ipairs(ORDER) do
    local sum, words = sum_of(counts[state] or {})
    parts[i] = ("%d %s%s"):format(sum, state, words)
  end
  return ("%s: %d cells: %s"):format(path, total, table.concat(parts, ", "))
end

local function note(counts, found)
  local of = counts[found.state] or {}
  local word = found.state == "stale" and found.why:gsub("^version .*", "another version") or found.status
  of[word], counts[found.state] = (of[word] or 0) + 1, of
end

local COLUMNS = {"case", "repeat", "cell", "state", "status", "why"}

function status.main(experiment, options)
  local path = options.csv or options.name .. ".csv"
  local rows = status.load(path)
  if not rows then options.say(("there is no %s yet"):format(path)) end
  local cells = selection.new(experiment, experiment.base.predict_only and "predict" or "run", options)
  local counts, names, lines = {}, status.names(experiment), {{"case", "state", "status", "why"}}
  status.each(cells, function(now, one)
    local found = status.of_row(now, rows, names)
    note(counts, found)
    if options.json then
      found.case, found["repeat"], found.cell = one.name, one.repeat_number, now.cell
      io.stdout:write(report.json(found, COLUMNS), "\n")
    elseif found.state ~= "done" or cells:count() <= 40 then
      lines[#lines + 1] = {one.name, found.state, found.status, found.why}
    end
  end)
  if options.json then return 0 end
  for _, line in ipairs(report.columns(lines, true)) do print(line) end
  print(sentence(counts, cells:count(), path))
  return 0
end

return status
