-- What the workers say of a cell, and what it means for the cell's row. `self` is the sweep (sweep.lua).
local cell = require "memtide.net.cell"
local failures = require "memtide.sweep.failures"
local outcome = require "memtide.sweep.outcome"
local protocol = require "memtide.sweep.protocol"
local row = require "memtide.sweep.row"
local selection = require "memtide.sweep.selection"
local shards = require "memtide.sweep.shards"
local status = require "memtide.sweep.status"
local statuses = require "memtide.results.statuses"
local util = require "memtide.base.util"

local hear = {}

local function merge(task, columns) for column, value in pairs(columns) do task.row[column] = value end end

-- If a cell cannot be built, it takes the id of the row with its settings. If it can, a row that was written when it
-- could not takes the cell's id. So every row has the id of a cell.
local function identify(self, columns)
  local id, number = columns.cell, columns["repeat"]
  local latest = self.store:latest(id, number)
  if not latest or latest == id then return end
  if cell.is_unbuilt(id) then columns.cell = latest
  elseif cell.is_unbuilt(latest) then self.store:rename(latest, number, id) end
end

-- Is the cell to be run? If not, task.row becomes the row of an earlier run.
local function wanted(self, task, columns)
  identify(self, columns)
  local id, number = columns.cell, columns["repeat"]
  local was, version = self.store:outcome(id, number)
  -- --try-oom tries skipped cells, but not if another cell has shown again that they cannot fit
  local known = was == "skipped" and task.request.implied and not self.options.retry
  if known or not self.selection:wants(was, version) then
    task.row, task.resumed = self.store:read(columns), true
    return false
  end
  if was and task.attempt == 1 and self.rounds.round == 1 then
    local state = selection.state(was, version)
    self.anew[state] = (self.anew[state] or 0) + 1
  end
  merge(task, columns)
  return true
end

-- Keeps the result of a cell that cannot be built any more.
local function keep_row(self, task, reason)
  self.options.say(("%s: its row in %s stays, but it could not be built: %s"):format(task.name, self.options.csv,
    reason))
  self.failed = true
end

-- ---- messages by the words of protocol.lua: each function returns the pool's verdict (pool.lua)

local HEAR = {}

-- A part of a sweep runs only the cells of its list.
function HEAR.built(self, task, message)
  local listed = self.selection.listed and self.selection.listed[task.k]
  if listed then
    local names = status.names(self.selection.experiment)
    shards.check(self.options.cells, message.columns, status.changes(message.columns, listed, names))
  end
  local go = wanted(self, task, message.columns)
  task.unbuilt = message.failed
  return {go = go}
end

function HEAR.columns(self, task, message)
  merge(task, message.columns)
  local time = task.row.cost and self.rates:cell(task.row.cost)
  if time and time.learnt then self.progress:expect(task.lane, time.seconds) end
end

function HEAR.samples(_, task, message)
  local all = task.samples or {}
  task.samples = table.move(message.list, 1, #message.list, #all + 1, all)
end

function HEAR.done(self, task, message)
  -- a mistake in the script itself: no cell can be right
  if message.code == "script" then error(util.failure(message.columns.reason, "script"), 0) end
  task.row.reason = nil -- the prediction's
  merge(task, message.columns)
  local class = failures.of_row(task.row.status, message.code, self.options.host_memory)
  if statuses.of(task.row.status).good then outcome.learn(self, task) end
  if outcome.keep_samples(self, task) then
    self.progress:visited(outcome.left(self))
    outcome.release_held(self)
    outcome.keep_log(self, task)
    return "done"
  end
  return outcome.conclude(self, task, class, message.unbuilt)
end

function HEAR.skipped(self, task)
  local reason = task.unbuilt
  if reason then outcome.hold(self, reason, function() keep_row(self, task, reason) end)
  else outcome.release_held(self) end
  outcome.resume(self, task)
  return "done"
end

protocol.check(HEAR)

-- A worker has sent a message about its cell -> the pool's verdict.
function hear.message(self, task, message) return HEAR[message.word](self, task, message) end

-- The columns of a cell whose network is not known
local function unbuilt(self, task)
  local one = self.selection:cell(task.k)
  one.failed = true
  pcall(cell.count_steps, one) -- the worker failed after this, or in it
  return row.identity(one, cell.id(one, self.selection.purpose), task.device)
end

-- A worker has ended while it ran the cell; cause: see failures.of_end -> the pool's verdict.
function hear.lost(self, task, cause)
  local class, reason = failures.of_end(cause, self.options.host_memory)
  if not task.resumed and not task.row.cell then -- it ended before it had sent the cell's columns
    if not wanted(self, task, unbuilt(self, task)) then
      if outcome.again(self, task, class) then return "again" end
      keep_row(self, task, failures.attempt(task.attempt, reason))
    end
  end
  if task.resumed then
    outcome.resume(self, task)
    return "fresh"
  end
  task.row.reason, task.lost = reason, true
  return outcome.conclude(self, task, class)
end

-- Is the cell's row that of a cell that could not be built, and will it not be tried again? Then task.row is that row.
function hear.stays_unbuilt(self, task)
  if self.store.before == 0 then return false end
  local columns = unbuilt(self, task)
  local number = columns["repeat"]
  local id = self.store:latest(columns.cell, number)
  if not id or not cell.is_unbuilt(id) or self.selection:wants(self.store:outcome(id, number)) then return false end
  columns.cell = id
  task.row = self.store:read(columns)
  return true
end

return hear
