-- What a sweep is doing, as a file beside its rows that other processes may read at any time: a board of plain values
-- (progress.lua), replaced as a whole. It goes when the sweep ends; one that a kill left behind names a process that
-- is no more.
local core = require "memtide.core"
local wire = require "memtide.sweep.wire"

local live = {}
local Live = {}
Live.__index = Live

local ABSENT = 90 -- seconds without a word from another machine's sweep before it counts as dead

local function read_all(path)
  local file = io.open(path, "rb")
  local text = file and file:read("a")
  if file then file:close() end
  return text
end

-- A process by number and by when it began, in ticks since the machine started: numbers are used again.
local function born(process)
  local line = read_all(("/proc/%s/stat"):format(process))
  local number, rest = (line or ""):match("^(%d+) %(.*%) (.*)$")
  local fields = {}
  for word in (rest or ""):gmatch("%S+") do fields[#fields + 1] = word end
  if fields[1] == "Z" then return nil end -- it has ended, and nobody has looked yet
  return fields[20], math.tointeger(tonumber(number))
end

local function host() return (read_all("/proc/sys/kernel/hostname") or ""):gsub("%s+$", "") end

-- What tells this process from every other one.
function live.identity()
  local began, process = born("self")
  return {process = process, born = began, host = host()}
end

local function path_of(csv) return csv .. ".live" end

-- For the sweep that holds the lock of these rows.
function live.new(csv) return setmetatable({path = path_of(csv)}, Live) end

-- Whoever does not learn of it goes on all the same: a sweep does not end for want of it.
function Live:write(board)
  local file <close> = core.new_file(self.path)
  if file and file:write(wire.frame(board)) then file:finish() end
end

function Live:remove() os.remove(self.path) end

-- The board of the sweep that writes these rows; nil: there is none.
function live.read(csv)
  local text = read_all(path_of(csv))
  local good, board = pcall(wire.reader(), text)
  return text and good and type(board) == "table" and board or nil
end

-- Does the sweep still run? Of one on another machine only the last word's age is known.
function live.runs(board, now)
  if board.host ~= host() or not board.born then return now - board.written < ABSENT end
  return born(board.process) == board.born
end

return live
