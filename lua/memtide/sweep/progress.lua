-- What a sweep shows while it runs: a board of plain values, drawn on a terminal as a screen, else as a line for every
-- cell that has ended. `memtide watch` reads it from a file beside the rows (live.lua).
--
--   board  name, csv, started, written    times are seconds of os.time
--          total, ended, resumed          numbers of cells; resumed: of those that ended, how many had a row before
--          counts                         {status = cells}
--          running                        {{worker =, case =, note =, since =, expected = seconds or nil}, ...}
--          last                           {{case =, status =, bytes =, ms =, reason =}, ...}: the newest is last
--          left                           {seconds =, at =, first =, last =} or nil: see screen.ends
--          process, born, host            see live.identity
local core = require "memtide.core"
local live = require "memtide.sweep.live"
local report = require "memtide.results.report"
local screen = require "memtide.sweep.screen"
local terminal = require "memtide.base.terminal"
local statuses = require "memtide.results.statuses"
local util = require "memtide.base.util"

local progress = {}
local Progress = {}
Progress.__index = Progress

local PAINT, KEEP, WORD = 0.1, 2, 30 -- seconds between two screens, two files, two files if nothing has changed
local LAST = 4                       -- rows on the board

local function new_board(name, total, csv)
  local board = live.identity()
  board.name, board.csv, board.total, board.started = name, csv, total, os.time()
  board.ended, board.resumed, board.counts, board.running, board.last = 0, 0, {}, {}, {}
  for _, status in ipairs(statuses.names) do board.counts[status] = 0 end
  return board
end

-- options: of the command line; quiet: nothing is shown.
function progress.new(name, total, options)
  local in_file = options.csv and options.csv ~= "-"
  local self = setmetatable({board = new_board(name, total, in_file and options.csv or nil), lanes = {},
    quiet = options.quiet, live = in_file and live.new(options.csv)}, Progress)
  -- no screen if rows are printed on the same terminal: they would appear in the middle of it
  local rows_there = core.isatty(1) and (options.json or options.csv == "-")
  if not options.quiet and not rows_there and screen.can_paint(options) then self.painter = screen.painter() end
  self.tick = self.painter and PAINT or self.live and KEEP or nil
  self.due_paint, self.due_keep, self.due_word = 0, 0, 0
  return self
end

-- ---- output

local function keep(self, now, changed)
  if now < self.due_keep or not changed and now < self.due_word then return end
  self.due_keep, self.due_word, self.changed = now + KEEP, now + WORD, false
  self.board.written = os.time()
  self.live:write(self.board)
end

-- To be called often: shows what has changed if enough time has passed.
function Progress:look()
  local now = core.clock()
  if self.painter and now >= self.due_paint then
    self.due_paint = now + PAINT
    self.painter:paint(function(most, width) return screen.lines(self.board, os.time(), most, width) end)
  end
  if self.live then keep(self, now, self.changed) end
end

local function change(self)
  local b, lanes = self.board, util.sorted_keys(self.lanes)
  b.running = {}
  for i, lane in ipairs(lanes) do b.running[i] = self.lanes[lane] end
  self.changed = true
end

-- A function that says a text as `say` does, but above the screen.
function Progress:above(say)
  return function(text)
    if self.painter then self.painter:clear() end
    say(text)
    self.due_paint = 0
  end
end

-- ---- events

-- A worker has got a cell. lane: the worker's number; worker: its name if there are several; expected: seconds, or nil.
function Progress:begin(lane, worker, name, expected)
  -- so a full disk is noticed before the time of a cell is spent
  util.must_write("standard output", io.stdout:flush())
  self.lanes[lane] = {worker = worker, case = name, note = "", since = os.time(), expected = expected}
  change(self)
  self:look()
end

-- How long the cell in this lane will take, now that it is known.
function Progress:expect(lane, seconds)
  local one = self.lanes[lane]
  if one and not one.expected then one.expected = seconds end
end

-- What the worker is doing.
function Progress:note(lane, text)
  local one = self.lanes[lane]
  if one and one.note ~= text then
    one.note = text
    change(self)
  end
end

-- The worker has no cell now.
function Progress:leave(lane)
  self.lanes[lane] = nil
  change(self)
end

local function count(self, row)
  local b = self.board
  b.ended, b.counts[row.status] = b.ended + 1, (b.counts[row.status] or 0) + 1
  self.changed = true
end

-- The k-th row has been made. left: see Pace:range
function Progress:row(k, name, row, left)
  local b, one = self.board, report.result(row)
  count(self, row)
  one.case = name
  b.last[#b.last + 1], b.left = one, left
  if #b.last > LAST then table.remove(b.last, 1) end
  if self.quiet or self.painter then return end
  io.stderr:write(terminal.harmless(("[%d/%d] %s: %s%s"):format(k, b.total, name, screen.outcome(one),
    left and "; " .. screen.ends(left, left.at) or "")) .. "\n")
end

-- A visit of a cell has ended that needs more visits before its row. left: see Pace:range
function Progress:visited(left) self.board.left, self.changed = left, true end

-- A cell has its row from an earlier run.
function Progress:resumed(row)
  self.board.resumed = self.board.resumed + 1
  count(self, row)
end

function Progress:finish()
  if self.painter then self.painter:clear() end
  if self.live then self.live:remove() end
end

return progress
