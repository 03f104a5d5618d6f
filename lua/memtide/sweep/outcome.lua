-- What becomes of a cell: its row, another attempt, or the row of an earlier run. `self` is the sweep (sweep.lua).
local core = require "memtide.core"
local failures = require "memtide.sweep.failures"
local report = require "memtide.results.report"
local row = require "memtide.sweep.row"
local selection = require "memtide.sweep.selection"
local statuses = require "memtide.results.statuses"
local util = require "memtide.base.util"

local outcome = {}

-- The table at the end is for reading: it shows at most this many rows.
local SHOWN = 1000

-- ---- rows

-- Passes the row on: to the caller's hooks, to the table, as JSON.
local function show(self, task)
  if self.options.each then self.options.each(task.k, task.row, task.values) end
  if task.k <= SHOWN then self.shown[task.k] = report.summary(task.row, self.store.columns) end
  if self.options.seen then self.options.seen(task.row) end
  if self.options.json then io.stdout:write(report.json(task.row, self.store.columns), "\n") end
end

-- The exit status depends on the rows that the cells have in the end, also on those of earlier runs.
local function count_failed(self, found) self.failed = self.failed or statuses.of(found.status).fails end

-- Stops the sweep after --max-failures failures in a row.
local function judge(self, found)
  local failed = selection.state(found.status, found.version) == "failed"
  self.in_a_row = failed and self.in_a_row + 1 or 0
  if self.options.max_failures and self.in_a_row >= self.options.max_failures then
    local many = self.in_a_row > 1 and "%d cells in a row have failed" or "%d cell in a row has failed"
    error(util.failure((many .. ", the last: %s: %s"):format(self.in_a_row, found.case, found.reason), "failures"), 0)
  end
end

local LOOK = 0.1 -- seconds between two estimates of the time left: each looks at every cell that is left

-- When the sweep will end: see Pace:range.
function outcome.left(self)
  local now = core.clock()
  if now >= self.next_look then self.ends, self.next_look = self.pace:range(os.time()), now + LOOK end
  return self.ends
end

local function record(self, task)
  assert(statuses.is_known(task.row.status))
  self.store:append(task.row)
  self.recorded = self.recorded + 1
  self.progress:row(task.k, task.name, task.row, outcome.left(self))
  show(self, task)
  count_failed(self, task.row)
  judge(self, task.row)
end

-- Cells that cannot be built get their rows only after a cell could be built: until then the script may be wrong.
function outcome.release_held(self)
  local held = self.held
  self.held = nil
  for _, one in ipairs(held or {}) do one.tell() end
end

-- Calls tell() for a cell that cannot be built, at once or in release_held.
function outcome.hold(self, reason, tell)
  if not self.held then return tell() end
  self.held[#self.held + 1] = {reason = reason, tell = tell}
end

local function finish(self, task, unbuilt)
  if unbuilt then return outcome.hold(self, task.row.reason, function() record(self, task) end) end
  outcome.release_held(self)
  record(self, task)
end

-- Keeps the log of a worker that has printed something in this cell, or has died.
function outcome.keep_log(self, task)
  local process = task.process
  if not process then return end
  local printed = process:log_size() > 0
  if printed or task.lost then
    local path = self.store:keep_log(process, task.row)
    if path and not statuses.of(task.row.status).good then
      task.row.reason = ("%s; log: %s"):format(task.row.reason, path)
    end
  end
  if printed then util.must(process:clear_log()) end
end

-- Prepares another attempt at the cell; false: it was tried often enough.
function outcome.again(self, task, class)
  if task.attempt >= (self.options.in_process and 1 or class.attempts) then return false end
  task.attempt, task.row, task.resumed, task.samples = task.attempt + 1, {}, nil, nil
  return true
end

-- The end of a visit: another attempt, or the cell's row. class: of its failure, nil: none. Returns the pool's verdict
-- (pool.lua) and a function for later.
function outcome.conclude(self, task, class, unbuilt)
  if class and outcome.again(self, task, class) then return "again" end
  if class then
    task.row.status = class.status
    task.row.reason = failures.attempt(task.attempt, task.row.reason or "")
  end
  outcome.keep_log(self, task)
  self.frontier:note(task.values, task.row.status, task.name, task.row.device)
  self.pace:done(task.k, task.values, task.row)
  -- this row goes to the disk while the worker is at its next cell
  return class and class.fresh and "fresh" or "done", function() finish(self, task, unbuilt) end
end

-- Takes the row of an earlier run, task.row, as the cell's.
function outcome.resume(self, task)
  self.resumed = self.resumed + 1
  self.progress:resumed(task.row)
  self.frontier:note(task.values, task.row.status, task.name, task.row.device)
  self.pace:done(task.k, task.values, task.row)
  show(self, task)
  count_failed(self, task.row)
end

-- Keeps the samples of a visit; returns whether the cell needs another visit.
function outcome.keep_samples(self, task)
  local list, r = task.samples, task.row
  if not list then return false end
  self.store:append_samples({cell = r.cell, ["repeat"] = r["repeat"], round = self.rounds:number(r),
    version = r.version, started_at = r.started_at}, list)
  if not self.rounds.holds or r.status ~= "ok" then return false end
  local seconds, graphs = self.rounds:visited(task.k, r, list, task.begun)
  if seconds then row.time_columns(r, seconds, r.effective_batch, graphs) end
  return not seconds
end

-- Learns from a visit's time how long other cells will take.
function outcome.learn(self, task)
  local cost, ms = task.row.cost, task.row.step_ms
  if cost and ms then self.rates:learn(cost, ms / 1e3) end
  if not task.started then return end
  self.pace:learn(task.k, task.values, core.clock() - task.started)
end

return outcome
