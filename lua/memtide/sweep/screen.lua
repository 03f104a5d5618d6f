-- A running sweep on the screen: a board of plain values (progress.lua) as a few lines, which are redrawn in place on
-- the terminal of standard error. Only these lines are changed, and no state of the terminal, so a sweep that is killed
-- leaves only these lines below the cursor.
local core = require "memtide.core"
local estimate = require "memtide.sweep.estimate"
local statuses = require "memtide.results.statuses"
local terminal = require "memtide.base.terminal"
local util = require "memtide.base.util"

local screen = {}

local MOST_LINES, MOST_COLUMNS = 12, 240
local BAR, MOST_RUNNING = 30, 6

-- ---- the board as text

-- {ok = 7, oom = 1} -> "7 ok, 1 oom"
function screen.counts(counts)
  local words = {}
  for _, status in ipairs(statuses.names) do
    if (counts[status] or 0) > 0 then words[#words + 1] = ("%d %s"):format(counts[status], status) end
  end
  return table.concat(words, ", ")
end

local DAY = 20 * 3600 -- an end that is further away than so many seconds is shown with its date

-- range: see Pace:range -> "1 h 10 min left, ends 05:40-06:55"
function screen.ends(range, now)
  local left = math.max(range.seconds - (now - range.at), 0)
  if range.unknown then
    local cells = ("%d cell%s of unknown time"):format(range.unknown, range.unknown == 1 and "" or "s")
    return left > 0 and ("%s and %s left"):format(estimate.show(left), cells) or cells .. " left"
  end
  local form = range.last - now > DAY and "%Y-%m-%d %H:%M" or "%H:%M"
  local first, last = os.date(form, range.first), os.date(form, range.last)
  return ("%s left, ends %s"):format(estimate.show(left), first == last and first
    or first .. (form == "%H:%M" and "-" or " to ") .. last)
end

-- The result of a cell: "oom, 1.2 GiB, out of memory ..."
function screen.outcome(one)
  local words = {one.status}
  if one.bytes then words[#words + 1] = util.show_bytes(one.bytes) end
  if one.ms then words[#words + 1] = ("%.1f ms/step"):format(one.ms) end
  if one.emulated then words[#words + 1] = ("%s is emulated"):format(one.emulated) end
  if one.reason and not statuses.of(one.status).good then words[#words + 1] = one.reason end
  return table.concat(words, ", ")
end

-- "3 of 48 cells: 2 ok, 1 oom; 12 min 3 s left, ends 05:40-06:55"
function screen.headline(board, now)
  local counts = screen.counts(board.counts)
  return ("%s: %d of %d cells%s%s"):format(board.name, board.ended, board.total, counts ~= "" and ": " .. counts or "",
    board.left and "; " .. screen.ends(board.left, now) or "")
end

local function bar(board)
  local share = board.total > 0 and board.ended / board.total or 0
  local full = math.floor(BAR * share)
  return ("%s  [%s%s] %d of %d cells, %d %%"):format(board.name, ("#"):rep(full), ("."):rep(BAR - full), board.ended,
    board.total, math.floor(100 * share))
end

local function summary(board, now)
  local words = {screen.counts(board.counts)}
  if words[1] == "" then words[1] = "nothing has ended yet" end
  if board.resumed > 0 then words[1] = ("%s (%d were there already)"):format(words[1], board.resumed) end
  if board.left then words[2] = screen.ends(board.left, now) end
  return table.concat(words, "; ")
end

local function running(one, now)
  local took = math.max(now - one.since, 0)
  local time = took < 1 and "" or ", " .. estimate.show(took)
  if took >= 1 and one.expected and one.expected > took then
    time = ("%s of about %s"):format(time, estimate.show(one.expected))
  end
  return ("> %s%s: %s%s"):format(one.worker and one.worker .. ": " or "", one.case,
    one.note ~= "" and one.note or "starting", time)
end

-- The board as lines {text, is it red?}, at most `most` of them. columns: of the terminal, in which names are cut where a
-- line would be longer; nil: there is none.
function screen.lines(board, now, most, columns)
  local lines = {{bar(board)}, {summary(board, now)}}
  local room = math.min(most or MOST_LINES, MOST_LINES) - #lines
  local shown = math.min(#board.running, MOST_RUNNING, math.max(room - 1, 0))
  for i = 1, shown do lines[#lines + 1] = {running(board.running[i], now)} end
  if #board.running > shown and room > shown then
    lines[#lines + 1] = {("> and %d more"):format(#board.running - shown)}
    shown = shown + 1
  end
  local width, outcome = 0, 0
  for _, one in ipairs(board.last) do
    width, outcome = math.max(width, terminal.width(one.case)), math.max(outcome, terminal.width(screen.outcome(one)))
  end
  if columns then width = math.min(width, math.max(columns - outcome - 4, terminal.NAME)) end
  for i = math.max(#board.last - (room - shown) + 1, 1), #board.last do
    local one = board.last[i]
    lines[#lines + 1] = {("  %s  %s"):format(terminal.padded(one.case, width), screen.outcome(one)),
      not statuses.of(one.status).good}
  end
  return lines
end

-- ---- lines that are drawn in place

local Painter = {}
Painter.__index = Painter

-- Is standard error a terminal on which lines can be redrawn?
function screen.can_paint(options)
  return core.isatty(2) and not options.plain and os.getenv("TERM") ~= "dumb"
end

function screen.painter() return setmetatable({colour = terminal.colour(2)}, Painter) end

-- Draws the lines that make(most lines) returns, as many as fit. Then the cursor returns to the first line, so that the
-- next drawing begins there even if the window's size changes. The last column stays free, because text there wraps on
-- some terminals.
function Painter:paint(make)
  local columns, height = core.window(2)
  local width, most, out = math.max(math.min((columns or 80) - 1, MOST_COLUMNS), 1), (height or 24) - 1, {}
  for i, line in ipairs(make(most, width)) do
    if i > most then break end
    out[i] = terminal.red(terminal.cut(line[1], width), self.colour and line[2]) .. "\27[K"
  end
  local text = table.concat(out, "\r\n") .. "\27[J\r" .. (#out > 1 and ("\27[%dA"):format(#out - 1) or "")
  if text == self.drawn then return end
  self.drawn = text -- before writing, because Ctrl-C may end this function there
  io.stderr:write("\r" .. text)
end

-- Erases the lines; the cursor is where the first one began.
function Painter:clear()
  if not self.drawn then return end
  self.drawn = nil
  io.stderr:write("\r\27[J")
end
Painter.__close = Painter.clear

return screen
