-- Worker processes that get one task after the other. The pool does not know what the tasks are: it calls hooks.
--
--   a task             {request = message, limit = seconds or nil, ...}; while it runs also process, started
--   next()              -> the next task, or nil
--   give(task, slot)    this worker gets the task, perhaps for another attempt
--   hear(task, message) the worker sent a message -> a message to answer with; "done"; "fresh" (done, but the next task
--                       needs a new worker); "again" (try the task again, in another worker if there is one); or nil.
--                       With "done" and "fresh" also a function, which is called when the worker is busy again
--   lost(task, cause)   the worker ended, see failures.of_end -> as hear
--   gone(slot, why)     this worker gets no more tasks, the others continue
--   watch(task, note, slot)  what the worker is doing
--   look()              after these calls, at least every `tick` seconds (nil: not needed)
local core = require "memtide.core"
local failures = require "memtide.sweep.failures"
local util = require "memtide.base.util"
local wire = require "memtide.sweep.wire"

local pool = {}

local GRACE = 3          -- seconds from SIGTERM to SIGKILL
local START_LIMIT = 120  -- seconds for a worker to load the script and open its device
local LONGEST = 60       -- seconds between two looks at the workers if there is no tick
local PIECES = 16        -- pieces taken from one worker before the other workers and signals are looked at
local DOUBTFUL = 3       -- tasks in a row that must be tried again, after which the worker's device is in doubt

-- ---- one worker

--   failures    tasks in a row that must be tried again; elsewhere: how many of them have not ended in other workers
--   stumbled    the worker ended before it was ready, and was started a second time
local Slot = {}
Slot.__index = Slot

function Slot:start()
  self.process = util.must(core.spawn({"--worker"}, self.memory))
  self.read, self.ready, self.killed = wire.reader(), false, nil
  self:send(self.setup)
  self:limit(START_LIMIT)
end

-- If the worker has closed its end, it has ended, which the next look at it will show.
function Slot:send(message) self.process:send(wire.frame(message)) end

function Slot:limit(seconds)
  self.seconds, self.kills = seconds, 0
  self.deadline = seconds and core.clock() + seconds
end

function Slot:give(task)
  assert(self.task == nil or self.task == task)
  self.task = task
  if not self.process then return self:start() end
  if not self.ready then return end
  task.process, task.started = self.process, core.clock()
  self:limit(task.limit)
  self:send(task.request)
end

function Slot:retire()
  if self.process then self.process:close() end -- this ends the process
  self.process = nil
end

-- Number of other workers that still get tasks
function Slot:others()
  local n = 0
  for _, slot in ipairs(self.pool.slots) do n = n + (slot ~= self and not slot.gone and 1 or 0) end
  return n
end

-- This worker gets no more tasks; its current task waits for the others.
function Slot:give_up(why)
  self:retire()
  table.insert(self.pool.waiting, self.task)
  self.gone, self.task, self.deadline = true, nil, nil
  self.pool.hooks.gone(self, why)
end

-- The worker cannot start. If it could before, it has lost its device, and others may continue. Else no task can run,
-- and the message says why.
function Slot:refuse(message, code)
  if self.worked and self:others() > 0 then return self:give_up(message) end
  local log = self.process:log(util.MOST_TEXT)
  error(util.failure(message .. (log ~= "" and "\n" .. log or ""), code), 0)
end

-- A task that waits for another attempt; one that failed in this worker only if there is no other worker.
function Slot:take_waiting()
  local alone = self:others() == 0
  for i, task in ipairs(self.pool.waiting) do
    if task.failed_at ~= self or alone then return table.remove(self.pool.waiting, i) end
  end
end

-- Have too many tasks failed here, while other workers have not shown yet whether the tasks are to blame?
function Slot:in_doubt() return self.failures >= DOUBTFUL and self.elsewhere > 0 and self:others() > 0 end

function Slot:feed()
  if self.gone then return end
  local idle = self.pool.stopping or self:in_doubt()
  local task = self:take_waiting() or not idle and self.pool.hooks.next()
  if not task then return end
  self.pool.hooks.give(task, self)
  self:give(task)
end

-- The task failed here and will be tried again.
function Slot:pass_on(task)
  task.failed_at, self.failures, self.elsewhere = self, self.failures + 1, self.elsewhere + 1
  table.insert(self.pool.waiting, task)
end

-- A task has ended here, well or not. If it failed in another worker before, this shows whether that worker is to
-- blame.
function Slot:judge(task, well)
  local other = task.failed_at
  if well then self.failures = 0 end
  if not other then return end
  other.elsewhere = other.elsewhere - 1
  if not well then other.failures = 0
  elseif other.failures >= DOUBTFUL and not other.gone and not other.task then
    other:give_up(("%d tasks in a row failed there, but not elsewhere"):format(other.failures))
  end
end

-- Does what a hook has returned for the current task.
function Slot:after(verdict, later)
  local task = assert(self.task)
  if verdict == "done" or verdict == "fresh" then self:judge(task, verdict == "done")
  elseif verdict == "again" then self:pass_on(task)
  elseif verdict then return self:send(verdict)
  else return end
  if verdict ~= "done" then self:retire() end
  self.task, self.deadline = nil, nil
  self:feed()
  if later then later() end
end

function Slot:take(message)
  if self.ready then return self:after(self.pool.hooks.hear(self.task, message)) end
  if message.word ~= "ready" then return self:refuse(message.text, message.code) end
  self.ready, self.worked, self.stumbled = true, true, nil
  util.must(self.process:clear_log())
  self:give(self.task)
end

function Slot:ended()
  local task = assert(self.task)
  self.process:signal("KILL") -- it may have closed only its socket
  local kind, what = self.process:wait(GRACE)
  local cause = {kind = self.killed or kind or "stuck", what = what, seconds = self.seconds, note = self.process:note()}
  if not self.ready then
    if self.stumbled or self.killed then
      return self:refuse("a worker could not start: " .. select(2, failures.of_end(cause)), "internal")
    end
    self:retire()
    self.stumbled = true
    return self:start()
  end
  local verdict, later = self.pool.hooks.lost(task, cause)
  self:retire()
  self:after(verdict, later)
end

-- After the deadline: SIGTERM, then SIGKILL, then the sweep continues without the process, which may be stuck in a
-- driver for good.
function Slot:check_deadline(now)
  if not self.deadline or now < self.deadline then return end
  self.killed, self.kills, self.deadline = "timeout", self.kills + 1, now + GRACE
  if self.kills > 2 then return self:ended() end
  self.process:signal(self.kills == 1 and "TERM" or "KILL")
end

-- Takes what the worker has sent since the last look.
function Slot:listen()
  local process = self.process
  local bytes
  for _ = 1, PIECES do
    bytes = process:receive()
    if not bytes or bytes == "" then break end
    local good, message = pcall(self.read, bytes)
    while good and message do
      self:take(message)
      if self.process ~= process or not self.task then return end
      good, message = pcall(self.read)
    end
    if not good then -- something else writes to the socket: no message can be trusted any more
      self.killed = "message"
      return self:ended()
    end
  end
  if not bytes then return self:ended() end
  self:check_deadline(core.clock())
end

-- ---- all of them

local Pool = {}
Pool.__index = Pool

-- Asks all workers to end, and kills those that do not.
function Pool:close()
  local running = {}
  for _, slot in ipairs(self.slots) do
    if slot.process then
      if slot.task then slot.process:signal("TERM") end
      slot.process:hang_up()
      running[#running + 1] = slot
    end
  end
  local last = core.clock() + GRACE
  for _, slot in ipairs(running) do
    slot.process:wait(math.max(0, last - core.clock()))
    slot:retire()
  end
end
Pool.__close = Pool.close

-- Gives every idle worker a task; returns the processes that have one.
local function assign(self)
  local busy = {}
  for _, slot in ipairs(self.slots) do
    if not slot.task then slot:feed() end
    if slot.task then busy[#busy + 1] = slot.process end
  end
  return busy
end

local function patience(self)
  local now, least = core.clock(), self.hooks.tick or LONGEST
  for _, slot in ipairs(self.slots) do
    if slot.deadline then least = math.min(least, slot.deadline - now) end
  end
  return least
end

-- After USR1 running tasks end and no others start; any other signal ends the pool at once.
local STOPPED = {
  INT = {"interrupted", "interrupted"}, TERM = {"terminated", "terminated"}, HUP = {"hung up", "terminated"},
  USR1 = {"stopped as asked by SIGUSR1", "requeue"},
}

local function stop(self, signal)
  self.stopping = STOPPED[signal]
  if signal ~= "USR1" then error(util.failure(table.unpack(self.stopping)), 0) end
end

local function watch(self)
  if not self.hooks.tick then return end
  for _, slot in ipairs(self.slots) do
    if slot.task and slot.ready then self.hooks.watch(slot.task, slot.process:note(), slot) end
  end
  self.hooks.look()
end

local signals = setmetatable({}, {__close = function() core.restore_signals() end})

-- Starts a worker, sends it one message and returns its answer.
function pool.ask(message)
  local process <close> = util.must(core.spawn({"--worker"}))
  local read, last = wire.reader(), core.clock() + START_LIMIT
  process:send(wire.frame(message))
  while core.clock() < last do
    core.poll({process}, last - core.clock())
    local bytes = process:receive()
    local answer = read(bytes)
    if answer then return answer end
    if not bytes then break end
  end
  error(util.failure("a worker process ended or hung: " .. process:note(), "internal"), 0)
end

-- Runs every task that hooks.next returns. setups: {the first message to each worker, ...}; memory: the most bytes of
-- each, or nil. Raises if no worker can start, or after a signal.
function pool.run(setups, memory, hooks)
  local self = setmetatable({slots = {}, waiting = {}, hooks = hooks}, Pool)
  for i, setup in ipairs(setups) do
    self.slots[i] = setmetatable({pool = self, number = i, setup = setup, memory = memory, failures = 0,
      elsewhere = 0}, Slot)
  end
  core.catch_signals()
  local _ <close> = signals
  local _ <close> = self
  local busy = assign(self)
  while #busy > 0 do
    local _, signal = core.poll(busy, patience(self))
    if signal then stop(self, signal) end
    for _, slot in ipairs(self.slots) do if slot.task then slot:listen() end end
    watch(self)
    busy = assign(self)
  end
  if self.stopping then error(util.failure(table.unpack(self.stopping)), 0) end
end

return pool
