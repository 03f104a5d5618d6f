-- memtide status: which of the script's cells have a row in the results file, and which a sweep is at. It reads the files
-- while a sweep may still be writing them. It builds networks, but opens no device.
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local csv = require "memtide.results.csv"
local live = require "memtide.sweep.live"
local selection = require "memtide.sweep.selection"
local report = require "memtide.results.report"
local results = require "memtide.results.results"
local row = require "memtide.sweep.row"
local screen = require "memtide.sweep.screen"
local settings = require "memtide.net.settings"
local terminal = require "memtide.base.terminal"
local util = require "memtide.base.util"

local status = {}

local function key(...) return table.concat({...}, "\0") end

-- Without rows of cells that could not be built if the same cell, built, has a row, too: as memtide merge
local function without_unbuilt(list)
  local built, out = {}, {}
  local function settings_of(values) return key((values.cell or ""):match("^[^-]*"), values["repeat"] or "") end
  for _, values in ipairs(list) do
    if not cell.is_unbuilt(values.cell or "") then built[settings_of(values)] = true end
  end
  for _, values in ipairs(list) do
    if not cell.is_unbuilt(values.cell or "") or not built[settings_of(values)] then out[#out + 1] = values end
  end
  return out
end

-- The rows of a file: by_cell, by_settings (the first part of the cell's id) and by_case, where of two rows the later
-- counts; `list` has the current ones in the order in which their cells first occur; `columns`: those of the file. nil: no
-- file.
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
  rows.list = without_unbuilt(rows.list)
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

-- What a cell's own row says: as of_row
local function state_of(values)
  local state = selection.state(values.status, values.version)
  return {state = state, status = values.status,
    why = state == "stale" and "version " .. values.version or state == "failed" and values.reason or ""}
end

-- The state of the cell with the columns `now`: {state = "done", "failed", "stale" or "missing", status =, why =}.
-- names: columns that may explain why its settings differ from those of an older row.
function status.of_row(now, rows, names)
  local number, found = now["repeat"], rows and row_of(now, rows)
  if found then return state_of(found) end
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

-- {[name of a cell] = what it is doing now} of the sweep that writes these rows; empty if none runs
local function running(path)
  local board, notes = live.read(path), {}
  if not board or not live.runs(board, os.time()) then return notes, nil end
  for _, one in ipairs(board.running) do notes[one.case] = one.note ~= "" and one.note or "starting" end
  return notes, board
end

local ORDER = {"done", "running", "failed", "stale", "missing"}

-- {ok = 7, oom = 1} -> "8", " (7 ok, 1 oom)"
local function sum_of(counts)
  local words, sum = {}, 0
  for _, word in ipairs(util.sorted_keys(counts)) do
    sum = sum + counts[word]
    if word ~= "" then words[#words + 1] = ("%d %s"):format(counts[word], word) end
  end
  return sum, #words > 0 and " (" .. table.concat(words, ", ") .. ")" or ""
end

-- counts: {[state] = {[word] = cells}}; a state that only some files have is left out where it is empty
local function sentence(counts, total, path)
  local parts = {}
  for _, state in ipairs(ORDER) do
    local sum, words = sum_of(counts[state] or {})
    if sum > 0 or state ~= "running" then parts[#parts + 1] = ("%d %s%s"):format(sum, state, words) end
  end
  return ("%s: %d cells: %s"):format(path, total, table.concat(parts, ", "))
end

local function note(counts, found)
  local of = counts[found.state] or {}
  local word = found.state == "stale" and found.why:gsub("^version .*", "another version") or found.status
  of[word], counts[found.state] = (of[word] or 0) + 1, of
end

local COLUMNS, SHOWN = {"case", "repeat", "cell", "state", "status", "why"}, 40

-- A report on cells: add(cell's columns, found) takes one, finish() prints the table and the sum. found: as of_row
-- returns it; it becomes "running" where the sweep that writes the file is at this cell. With many cells only those that
-- are not done are listed.
local function reporter(path, total, options)
  local counts, lines, notes = {}, {{"case", "state", "status", "why"}}, running(path)
  local function add(now, found)
    local doing = notes[now.case]
    if doing and found.state ~= "done" then found = {state = "running", status = "", why = doing} end
    note(counts, found)
    if options.json then
      found.case, found["repeat"], found.cell = now.case, math.tointeger(tonumber(now["repeat"])), now.cell
      io.stdout:write(report.json(found, COLUMNS), "\n")
    elseif found.state ~= "done" or total <= SHOWN then
      lines[#lines + 1] = {terminal.harmless(now.case), found.state, found.status, terminal.harmless(found.why)}
    end
  end
  local function finish()
    if options.json then return end
    local width = core.isatty(1) and core.window(1)
    if width then report.cut_names(lines, true, width) end
    for _, line in ipairs(report.columns(lines, true)) do print(width and terminal.cut(line, width) or line) end
    print(sentence(counts, total, path))
  end
  return add, finish
end

function status.main(experiment, options)
  local path = options.csv or options.name .. ".csv"
  local rows = status.load(path)
  if not rows then options.say(("there is no %s yet"):format(path)) end
  local cells = selection.new(experiment, experiment.base.predict_only and "predict" or "run", options)
  local names = status.names(experiment)
  local add, finish = reporter(path, cells:count(), options)
  status.each(cells, function(now, one)
    add({case = one.name, ["repeat"] = one.repeat_number, cell = now.cell}, status.of_row(now, rows, names))
  end)
  finish()
  return 0
end

-- The same of a file alone: of the cells that have rows, and of those that a sweep is at. What no row tells of, such as
-- missing cells, only a script knows.
function status.of_file(path, options)
  local rows, seen, list = status.load(path), {}, {}
  local notes, board = running(path)
  if not rows and not board then
    error(util.failure(("there is no %s, and no sweep that writes it"):format(path), "file"), 0)
  end
  for _, values in ipairs(rows and rows.list or {}) do
    list[#list + 1] = {values, state_of(values)}
    seen[values.case] = true
  end
  for _, name in ipairs(util.sorted_keys(notes)) do
    if not seen[name] then list[#list + 1] = {{case = name}, {state = "running", status = "", why = notes[name]}} end
  end
  local add, finish = reporter(path, #list, options)
  for _, one in ipairs(list) do add(one[1], one[2]) end
  finish()
  if board then options.say(screen.headline(board, os.time())) end
  return 0
end

return status
