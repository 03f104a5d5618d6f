-- Runs or predicts every cell of an experiment: one row each, appended as soon as it is there, resumed from the file.
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local estimate = require "memtide.sweep.estimate"
local failures = require "memtide.sweep.failures"
local frontier = require "memtide.sweep.frontier"
local inline = require "memtide.sweep.inline"
local pace = require "memtide.sweep.pace"
local pool = require "memtide.sweep.pool"
local progress = require "memtide.sweep.progress"
local protocol = require "memtide.sweep.protocol"
local report = require "memtide.results.report"
local rounds = require "memtide.sweep.rounds"
local row = require "memtide.sweep.row"
local safe = require "memtide.sweep.safe"
local selection = require "memtide.sweep.selection"
local shards = require "memtide.sweep.shards"
local status = require "memtide.sweep.status"
local statuses = require "memtide.results.statuses"
local store = require "memtide.results.store"
local util = require "memtide.base.util"

local sweep = {}
local Sweep = {}
Sweep.__index = Sweep

-- The table at the end is for reading: of more rows than this, it shows the first.
local SHOWN = 1000

-- ---- rows

local function merge(task, columns) for column, value in pairs(columns) do task.row[column] = value end end

local function show(self, task)
  if self.options.each then self.options.each(task.k, task.row, task.values) end
  if task.k <= SHOWN then self.shown[task.k] = report.summary(task.row, self.store.columns) end
  if self.options.seen then self.options.seen(task.row) end
  if self.options.json then io.stdout:write(report.json(task.row, self.store.columns), "\n") end
end

-- The exit status is that of the rows which the cells have in the end, whichever call made them.
local function count_failed(self, found) self.failed = self.failed or statuses.of(found.status).fails end

-- Stops where every cell fails.
local function judge(self, found)
  local failed = selection.state(found.status, found.version) == "failed"
  self.in_a_row = failed and self.in_a_row + 1 or 0
  if self.options.max_failures and self.in_a_row >= self.options.max_failures then
    local many = self.in_a_row > 1 and "%d cells in a row have failed" or "%d cell in a row has failed"
    error(util.failure((many .. ", the last: %s: %s"):format(self.in_a_row, found.case, found.reason), "failures"), 0)
  end
end

local LOOK = 0.1 -- seconds: the time left hangs on every cell that is left, which is too much after each quick one

local function left(self)
  local now = core.clock()
  if now >= self.next_look then self.ends, self.next_look = self.pace:range(os.time()), now + LOOK end
  return self.ends
end

local function record(self, task)
  self.store:append(task.row)
  self.recorded = self.recorded + 1
  self.progress:row(task.k, task.name, task.row, left(self))
  show(self, task)
  count_failed(self, task.row)
  judge(self, task.row)
end

-- Cells that cannot be built are results of their own as soon as one can: before, the script may be the mistake.
local function release_held(self)
  local held = self.held
  self.held = nil
  for _, one in ipairs(held or {}) do one.tell() end
end

-- Holds what is to be told of a cell that cannot be built, or tells it.
local function hold(self, reason, tell)
  if not self.held then return tell() end
  self.held[#self.held + 1] = {reason = reason, tell = tell}
end

local function finish(self, task, unbuilt)
  if unbuilt then return hold(self, task.row.reason, function() record(self, task) end) end
  release_held(self)
  record(self, task)
end

-- Keeps what the cell printed, and what a dead worker's log holds.
local function keep_log(self, task)
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

-- May the cell be tried another time?
local function again(self, task, class)
  if task.attempt >= (self.options.in_process and 1 or class.attempts) then return false end
  task.attempt, task.row, task.resumed, task.samples = task.attempt + 1, {}, nil, nil
  return true
end

-- What follows from a failure (class; nil: there was none): another attempt, or the cell's row.
local function conclude(self, task, class, unbuilt)
  if class and again(self, task, class) then return "again" end
  if class then
    task.row.status = class.status
    task.row.reason = failures.attempt(task.attempt, task.row.reason or "")
  end
  keep_log(self, task)
  self.frontier:note(task.values, task.row.status, task.name, task.row.device)
  self.pace:done(task.k, task.values, task.row)
  -- the worker is at its next cell while this row goes to the disk
  return class and class.fresh and "fresh" or "done", function() finish(self, task, unbuilt) end
end

-- ---- what the workers say of a cell, by the words of protocol.lua

local HEAR = {}

-- A cell that cannot be built is the one that has a row for its settings; and a row of a cell that could not be built
-- is that of the cell which now can. So no row has an id that no cell has.
local function identify(self, columns)
  local id, number = columns.cell, columns["repeat"]
  local latest = self.store:latest(id, number)
  if not latest or latest == id then return end
  if cell.is_unbuilt(id) then columns.cell = latest
  elseif cell.is_unbuilt(latest) then self.store:rename(latest, number, id) end
end

-- Is it to be run? Else task.row is the row of an earlier run.
local function wanted(self, task, columns)
  identify(self, columns)
  local id, number = columns.cell, columns["repeat"]
  local was, version = self.store:outcome(id, number)
  -- --try-oom tries what was skipped, but not what another cell shows again not to fit
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

-- A cell cannot be built any more, but has a result.
local function keep_row(self, task, reason)
  self.options.say(("%s: its row in %s stays, but it could not be built: %s"):format(task.name, self.options.csv,
    reason))
  self.failed = true
end

-- A cell that has its row already
local function resume(self, task)
  self.resumed = self.resumed + 1
  self.progress:resumed(task.row)
  self.frontier:note(task.values, task.row.status, task.name, task.row.device)
  self.pace:done(task.k, task.values, task.row)
  show(self, task)
  count_failed(self, task.row)
end

-- A part of a sweep runs the cells that the list has, and no others.
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

-- Keeps what was timed in the visit; returns whether the cell needs another one.
local function keep_samples(self, task)
  local list, r = task.samples, task.row
  if not list then return false end
  self.store:append_samples({cell = r.cell, ["repeat"] = r["repeat"], round = self.rounds:number(r),
    version = r.version, started_at = r.started_at}, list)
  if not self.rounds.holds or r.status ~= "ok" then return false end
  local seconds = self.rounds:visited(task.k, r, list, task.begun)
  if seconds then row.time_columns(r, seconds, r.effective_batch) end
  return not seconds
end

-- How long it took tells how long others will take.
local function learn(self, task)
  local cost, ms = task.row.cost, task.row.step_ms
  if cost and ms then self.rates:learn(cost, ms / 1e3) end
  if not task.started then return end
  self.pace:learn(task.k, task.values, core.clock() - task.started)
end

function HEAR.done(self, task, message)
  if message.code == "script" then error(util.failure(message.columns.reason, "script"), 0) end -- no cell can be right
  task.row.reason = nil -- the prediction's
  merge(task, message.columns)
  local class = failures.of_row(task.row.status, message.code, self.options.host_memory)
  if statuses.of(task.row.status).good then learn(self, task) end
  if keep_samples(self, task) then
    self.progress:visited(left(self))
    release_held(self)
    keep_log(self, task)
    return "done"
  end
  return conclude(self, task, class, message.unbuilt)
end

function HEAR.skipped(self, task)
  local reason = task.unbuilt
  if reason then hold(self, reason, function() keep_row(self, task, reason) end) else release_held(self) end
  resume(self, task)
  return "done"
end

protocol.check(HEAR)

-- What is known of a cell without its network
local function unbuilt(self, task)
  local one = self.selection:cell(task.k)
  one.failed = true
  pcall(cell.count_steps, one) -- as far as the worker came
  return row.identity(one, cell.id(one, self.selection.purpose), task.device)
end

local function lost(self, task, cause)
  local class, reason = failures.of_end(cause, self.options.host_memory)
  if not task.resumed and not task.row.cell then -- it died before it had said what the cell is
    if not wanted(self, task, unbuilt(self, task)) then
      if again(self, task, class) then return "again" end
      keep_row(self, task, failures.attempt(task.attempt, reason))
    end
  end
  if task.resumed then
    resume(self, task)
    return "fresh"
  end
  task.row.reason, task.lost = reason, true
  return conclude(self, task, class)
end

-- ---- all cells

-- Is the cell's row that of one that could not be built, and is it not to be tried again?
local function stays_unbuilt(self, task)
  if self.store.before == 0 then return false end
  local columns = unbuilt(self, task)
  local number = columns["repeat"]
  local id = self.store:latest(columns.cell, number)
  if not id or not cell.is_unbuilt(id) or self.selection:wants(self.store:outcome(id, number)) then return false end
  columns.cell = id
  task.row = self.store:read(columns)
  return true
end

-- With --until: can the cell end by then? Of one that nothing is known of, the first sample must tell.
local function has_time(self, k)
  local last, cost = self.options["until"], self.options.costs and self.options.costs[k]
  if not last or not cost then return not last or os.time() < last end
  local time = self.rates:cell(cost)
  if not time then return os.time() < last end
  return os.time() + (time.learnt and time.high or time.seconds) <= last
end

local function new_task(self, k)
  local one = self.selection:cell(k)
  return {k = k, name = one.name, values = one.values, attempt = 1, row = {}, begun = core.clock(), request = {k = k},
    limit = self.pace:limit(one.values)}
end

local function next_task(self)
  for k in function() return self.rounds:next() end do
    if not has_time(self, k) then
      self.left = self.left + 1
    else
      local task = new_task(self, k)
      if not stays_unbuilt(self, task) then return task end
      resume(self, task)
    end
  end
end

-- slot: the worker that gets the task; nil: this process
local function give(self, task, slot)
  local lane, device = slot and slot.number or 1, slot and slot.setup.device
  task.lane, task.device = lane, device
  task.request.implied = self.frontier:implied(task.values, device)
  self.progress:begin(lane, self.workers > 1 and (device or "worker " .. lane) or nil, task.name,
    self.pace:estimate(task.values))
end

local function gone(self, slot, why)
  self.progress:leave(slot.number)
  self.options.say(("%s is used no more: %s"):format(slot.setup.device or "worker " .. slot.number, why))
end

local function hooks_of(self)
  local function judged(task, verdict, later)
    if verdict == "done" or verdict == "fresh" or verdict == "again" then self.progress:leave(task.lane) end
    return verdict, later
  end
  return {
    next = function() return next_task(self) end,
    give = function(task, slot) give(self, task, slot) end,
    gone = function(slot, why) gone(self, slot, why) end,
    hear = function(task, message) return judged(task, HEAR[message.word](self, task, message)) end,
    lost = function(task, cause) return judged(task, lost(self, task, cause)) end,
    watch = function(task, note) self.progress:note(task.lane, note) end,
    look = function() self.progress:look() end,
    tick = self.progress.tick,
  }
end

-- The first message to each worker
local function setups(self)
  local o, out = self.options, {}
  local script = o.script
  local asked = {set = o.set, device = o.device, seed = o.seed, steps = o.steps, case = o.case, memory = o.memory,
    devices = o.devices, declared = o.declared, try_oom = o.try_oom, dry_run = o.dry_run,
    positions = o.shard and self.selection.positions}
  for i = 1, self.workers do
    out[i] = {path = script.path, text = script.text, args = script.args, safe = safe.is_on(),
      purpose = self.selection.purpose, options = asked, device = o.devices and o.devices[i]}
  end
  return out
end

-- In percent: what is thrown away of a cell may be so much of what is kept, and not as much again.
local GARBAGE = 130

local function run_all(self)
  if self.options.in_process then return inline.run(self.selection, hooks_of(self)) end
  local before = collectgarbage("setpause", GARBAGE)
  local good, problem = pcall(pool.run, setups(self), self.options.host_memory, hooks_of(self))
  collectgarbage("setpause", before)
  if not good then error(problem, 0) end
end

local ANEW = {
  failed = "%d of %d cells had ended in an error, a crash or a timeout in %s: they were run again",
  stale = "%d of %d cells had been run by another version of memtide in %s: they were run again",
}

local function tell_anew(self)
  for state, text in pairs(ANEW) do
    if self.anew[state] then
      self.options.say(text:format(self.anew[state], self.selection:count(), self.options.csv))
    end
  end
end

-- What stopped the sweep, and how far it came.
local function raise(self, problem)
  if util.is_failure(problem) and self.options.csv then
    problem = util.failure(("%s; %d of %d cells have their rows in %s"):format(problem.message,
      self.recorded + self.resumed, self.selection:count(), self.options.csv), problem.code)
  end
  error(problem, 0)
end

local function find_devices(options)
  if not options.devices or options.devices[1] ~= "all" then return end
  options.devices = pool.ask{probe = true}.names
  if #options.devices == 0 then error(util.failure("--devices all: there is no GPU", "device"), 0) end
end

-- purpose: "run" or "predict". Returns {rows = summaries of the first of them, count =, resumed =, failed = has
-- a cell's row, this call's or an earlier one's, a status that fails?}.
function sweep.run(experiment, purpose, options)
  find_devices(options)
  local cells = selection.new(experiment, purpose, options)
  local told = progress.new(experiment.name, cells:count(), options)
  options.say = told:above(options.say)
  local rows <close> = store.open(experiment:own_axes(), purpose, options)
  local workers = options.devices and #options.devices or options.jobs or 1
  local self = setmetatable({selection = cells, store = rows, options = options, progress = told, workers = workers,
    rates = estimate.new(), frontier = frontier.new(experiment:monotone_axes()),
    pace = pace.new(options.timeout, (told.tick or not options.quiet) and cells, workers, experiment.base),
    rounds = rounds.new(experiment, options.dry_run and "predict" or purpose, cells:count(),
      rows.file and options.csv, options["until"] and cells:order(true)),
    left = 0, resumed = 0, recorded = 0, in_a_row = 0, next_look = 0, shown = {}, held = {}, anew = {}}, Sweep)
  options.outcome = told.board
  local good, problem = pcall(run_all, self)
  told:finish()
  self.rates:save()
  if not good then raise(self, problem) end
  if self.held and self.held[1] then error(self.held[1].reason, 0) end
  tell_anew(self)
  rows:flush()
  if self.left > 0 then
    error(util.failure(("%d of %d cells are left: they could not have ended by %s"):format(self.left, cells:count(),
      os.date("%H:%M", options["until"])), "requeue"), 0)
  end
  return {rows = self.shown, count = cells:count(), resumed = self.resumed, failed = self.failed}
end

return sweep
