-- Runs or predicts every cell of an experiment: one row each, appended as soon as it is made, resumed from the file.
-- hear.lua takes the workers' messages, outcome.lua makes rows of them; here is the order of the cells and their end.
local core = require "memtide.core"
local estimate = require "memtide.sweep.estimate"
local frontier = require "memtide.sweep.frontier"
local hear = require "memtide.sweep.hear"
local inline = require "memtide.sweep.inline"
local outcome = require "memtide.sweep.outcome"
local pace = require "memtide.sweep.pace"
local pool = require "memtide.sweep.pool"
local progress = require "memtide.sweep.progress"
local rounds = require "memtide.sweep.rounds"
local safe = require "memtide.sweep.safe"
local selection = require "memtide.sweep.selection"
local store = require "memtide.results.store"
local util = require "memtide.base.util"

local sweep = {}

-- With --until: can the cell end by then? A cell of unknown time is started as long as that time has not come.
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
      if not hear.stays_unbuilt(self, task) then return task end
      outcome.resume(self, task)
    end
  end
end

-- A worker gets the task; slot: of the pool, nil: this process
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
    hear = function(task, message) return judged(task, hear.message(self, task, message)) end,
    lost = function(task, cause) return judged(task, hear.lost(self, task, cause)) end,
    watch = function(task, note) self.progress:note(task.lane, note) end,
    look = function() self.progress:look() end,
    tick = self.progress.tick,
  }
end

-- The first message to each worker
local function setups(self)
  local o, out = self.options, {}
  local script = o.script
  local asked = {set = o.set, device = o.device, seed = o.seed, steps = o.steps, quick = o.quick, case = o.case, memory = o.memory,
    devices = o.devices, declared = o.declared, try_oom = o.try_oom, dry_run = o.dry_run,
    positions = o.shard and self.selection.positions}
  for i = 1, self.workers do
    out[i] = {path = script.path, text = script.text, args = script.args, safe = safe.is_on(),
      purpose = self.selection.purpose, options = asked, device = o.devices and o.devices[i]}
  end
  return out
end

-- A collection begins when memory has grown to this many percent of what the last one left. Lua's own 200 would let the
-- garbage of cells be as large as what a sweep keeps.
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

-- Raises what stopped the sweep, with how far it came.
local function raise(self, problem)
  if util.is_failure(problem) and self.options.csv then
    problem = util.failure(("%s; %d of %d cells have their rows in %s"):format(problem.message,
      self.recorded + self.resumed, self.selection:count(), self.options.csv), problem.code)
  end
  error(problem, 0)
end

-- Replaces --devices all by the list of all GPUs.
local function find_devices(options)
  if not options.devices or options.devices[1] ~= "all" then return end
  options.devices = pool.ask{probe = true}.names
  if #options.devices == 0 then error(util.failure("--devices all: there is no GPU", "device"), 0) end
end

-- Raises where the command line or the script asks to run on a GPU that is only described: no cell could.
local function refuse_described(experiment, options)
  local described = {}
  for _, name in ipairs(core.offline_devices()) do described[name] = true end
  for _, name in ipairs(options.devices or {options.device or experiment.base.device}) do
    if described[name] then
      local text = "planning only: %s is described, not here; memtide predict takes it, run does not"
      error(util.failure(text:format(name), "device"), 0)
    end
  end
end

-- purpose: "run" or "predict". Returns {rows = summaries of the first rows, count =, resumed =, failed = does any
-- cell's row, of this run or an earlier one, have a status that fails?}. Raises what stopped the sweep.
function sweep.run(experiment, purpose, options)
  find_devices(options)
  if purpose == "run" and not options.dry_run then refuse_described(experiment, options) end
  local cells = selection.new(experiment, purpose, options)
  local told = progress.new(experiment.name, cells:count(), options)
  options.say = told:above(options.say)
  local rows <close> = store.open(experiment:own_axes(), purpose, options)
  local workers = options.devices and #options.devices or options.jobs or 1
  local self = {selection = cells, store = rows, options = options, progress = told, workers = workers,
    rates = estimate.new(), frontier = frontier.new(experiment:monotone_axes()),
    pace = pace.new(options.timeout, (told.tick or not options.quiet) and cells, workers, experiment.base),
    rounds = rounds.new(experiment, options.dry_run and "predict" or purpose, cells:count(),
      rows.file and options.csv, options["until"] and cells:order(true)),
    left = 0, resumed = 0, recorded = 0, in_a_row = 0, next_look = 0, shown = {}, held = {}, anew = {}}
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
