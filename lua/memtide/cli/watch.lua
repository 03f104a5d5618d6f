-- memtide watch: shows a sweep that runs in another terminal, by reading the file that the sweep keeps beside its rows.
-- It locks nothing, and the sweep does not notice it.
local core = require "memtide.core"
local live = require "memtide.sweep.live"
local options = require "memtide.cli.options"
local report = require "memtide.results.report"
local screen = require "memtide.sweep.screen"
local status = require "memtide.sweep.status"
local util = require "memtide.base.util"

local watch = {words = "SCRIPT or FILE.csv",
  text = "what a sweep that runs in another terminal is doing, until it ends",
  options = {options.csv, options.safe, {name = "once", text = "what is there now"}, options.plain, options.markdown,
    options.json}}

local PAUSE = 0.5 -- seconds between two looks at the file
local SHOWN = 1000 -- rows of the table at the end

local COLUMNS = {"state", "name", "csv", "process", "host", "started", "written", "total", "ended", "resumed", "counts",
  "running", "last", "left"}

-- The state of the sweep, and its board: "running"; "died"; or, if there is no sweep, the word `none`
local function look(path, none)
  local board = live.read(path)
  if not board then return none end
  if live.runs(board, os.time()) then return "running", board end
  board = live.read(path) -- it may have ended between the two
  return board and "died" or none, board
end

-- Prints the rows in the file as a table, without those that later ones replace; returns a line with their counts.
local function show_rows(path, given)
  local rows = status.load(path)
  if not rows then return end
  local shown, counts = {}, {}
  for i, values in ipairs(rows.list) do
    if i <= SHOWN then shown[i] = report.summary(values, rows.columns) end
    counts[values.status] = (counts[values.status] or 0) + 1
  end
  if shown[1] then report.print(shown, #rows.list, {csv = path, markdown = given.markdown}) end
  return ("cells with rows in %s: %d%s"):format(path, #rows.list, shown[1] and ", " .. screen.counts(counts) or "")
end

-- ---- ways to show it: each is a function (state, board, path)

local function as_json()
  local before
  return function(state, board, path)
    local object = {state = state, csv = path}
    for key, value in pairs(board or {}) do object[key] = value end
    local text = report.json(object, COLUMNS)
    if text ~= before then print(text) end
    before = text
    util.must_write("standard output", io.stdout:flush())
  end
end

local function as_lines()
  local before
  return function(_, board)
    if not board then return end
    local key = board.ended .. " " .. board.total
    if key == before then return end
    before = key
    print(screen.headline(board, os.time()))
    util.must_write("standard output", io.stdout:flush())
  end
end

local function as_screen(painter)
  return function(state, board)
    if state ~= "running" then return painter:clear() end
    painter:paint(function(most, width) return screen.lines(board, os.time(), most, width) end)
  end
end

local function once(state, board)
  if state ~= "running" then return end
  for _, line in ipairs(screen.lines(board, os.time(), nil, (core.window(1)))) do print(line[1]) end
end

local DIED = "process %d, which ran the sweep, was killed: its last note is from %s; the same command goes on there"

-- Prints the end of the sweep; returns the exit status.
local function conclude(state, board, path, given)
  local sum = not given.json and show_rows(path, given)
  if state == "none" and not given.json then given.say(("no sweep runs on %s"):format(path)) end
  if sum then given.say(sum) end
  if state ~= "died" then return 0 end
  given.say(DIED:format(board.process, os.date("%H:%M:%S", board.written)))
  for _, one in ipairs(board.running) do given.say(("%s was running: %s"):format(one.case, one.note)) end
  return 1
end

local function follow(path, given)
  local state, board = look(path, "none")
  local file = io.open(path, "rb")
  if file then file:close()
  elseif state == "none" then
    error(util.failure(("there is no %s, and no sweep that writes it"):format(path), "file"), 0)
  end
  local painter <close> = screen.painter()
  local show = given.json and as_json() or given.once and once
    or screen.can_paint(given) and as_screen(painter) or as_lines()
  show(state, board, path)
  while state == "running" and not given.once do
    core.poll({}, PAUSE)
    state, board = look(path, "ended")
    show(state, board, path)
  end
  if state == "running" then return 0 end
  return conclude(state, board, path, given)
end

function watch.alone(words, given) return (words[1] or ""):find("%.csv$") and follow(words[1], given) or nil end

function watch.run(_, given) return follow(given.csv or given.name .. ".csv", given) end

return watch
