-- What a sweep is doing, in a file beside its rows that other processes may read at any time: a board of plain values
-- (progress.lua), replaced as a whole. The file is removed when the sweep ends; after a kill it stays, and names a
-- process that does not exist any more.
local core = require "memtide.core"
local wire = require "memtide.sweep.wire"

local live = {}
local Live = {}
Live.__index = Live

local ABSENT = 90 -- seconds without news after which a sweep on another machine counts as dead

local function read_all(path)
  local file = io.open(path, "rb")
  local text = file and file:read("a")
  if file then file:close() end
  return text
end

-- When a process began, in ticks since the machine started, and its number. Numbers are reused, so both identify it.
-- nil: it has ended.
local function born(process)
  local line = read_all(("/proc/%s/stat"):format(process))
  local number, rest = (line or ""):match("^(%d+) %(.*%) (.*)$")
  local fields = {}
  for word in (rest or ""):gmatch("%S+") do fields[#fields + 1] = word end
  if fields[1] == "Z" then return nil end -- a zombie: it has ended, but its parent has not waited for it
  return fields[20], math.tointeger(tonumber(number))
end

local function host() return (read_all("/proc/sys/kernel/hostname") or ""):gsub("%s+$", "") end

-- {process, born, host}, which identify this process
function live.identity()
  local began, process = born("self")
  return {process = process, born = began, host = host()}
end

local function path_of(csv) return csv .. ".live" end

-- For the sweep that holds the lock of these rows.
function live.new(csv) return setmetatable({path = path_of(csv)}, Live) end

-- Replaces the file. Errors are ignored: a sweep does not end because its board cannot be written.
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

-- Does the sweep still run? For a sweep on another machine, only the age of its board can tell.
function live.runs(board, now)
  if board.host ~= host() or not board.born then return now - board.written < ABSENT end
  return born(board.process) == board.born
end

return live
