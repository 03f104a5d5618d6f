-- Worker processes that are handed one task after the other. Knows nothing of what the tasks are.
--
--   a task             {request = message, limit = seconds or nil, ...}; while it runs also process, started
--   next(slot)          -> the next task for this worker, or nil
--   hear(task, message) -> a message to answer with; "done", "fresh" (done, the worker is spent), "again" (in a fresh
--                       worker); or nil. With "done" and "fresh", a function to call when the worker is busy again
--   lost(task, cause)   the worker ended: see failures.of_end; -> the same
--   watch(task, note, slot)  what it is doing; look(): behind all of these, at least every `tick` seconds (nil: nobody
--                       wants to know)
local core = require "memtide.core"
local failures = require "memtide.failures"
local util = require "memtide.util"
local wire = require "memtide.wire"

local pool = {}

local GRACE = 3          -- seconds from SIGTERM to SIGKILL
local START_LIMIT = 120  -- seconds for a worker to load the script and open its device
local LONGEST = 60       -- seconds between two looks at them, where nobody watches
local LOG_SHOWN = 4096   -- bytes

-- ---- one worker

local Slot = {}
Slot.__index = Slot

function Slot:start()
  self.process = util.must(core.spawn({"--worker"}, self.memory))
  self.read, self.ready, self.killed = wire.reader(), false, nil
  self:send(self.setup)
  self:limit(START_LIMIT)
end

-- A worker that listens no more has ended: the next look at it will tell.
function Slot:send(message) self.process:send(wire.frame(message)) end

function Slot:limit(seconds)
  self.seconds, self.kills = seconds, 0
  self.deadline = seconds and core.clock() + seconds
end

function Slot:give(task)
  self.task = task
  if not self.process then return self:start() end
  if not self.ready then return end
  task.process, task.started = self.process, core.clock()
  self:limit(task.limit)
  self:send(task.request)
end

function Slot:retire()
  if self.process then self.process:close() end -- with its process
  self.process = nil
end

-- The worker cannot start. One that could before has lost its device: its task waits for the others, where there are
-- any. Else no task can run, and the message says why.
function Slot:refuse(message, code)
  local log, task, others = self.process:log(LOG_SHOWN), self.task, 0
  for _, slot in ipairs(self.pool.slots) do others = others + (slot ~= self and not slot.gone and 1 or 0) end
  if not self.worked or others == 0 then
    error(util.failure(message .. (log ~= "" and "\n" .. log or ""), code), 0)
  end
  self:retire()
  self.gone, self.task, self.deadline = true, nil, nil
  table.insert(self.pool.waiting, task)
end

function Slot:feed()
  if self.gone or self.pool.stopping then return end
  local task = table.remove(self.pool.waiting) or self.pool.hooks.next(self)
  if task then self:give(task) end
end

function Slot:after(verdict, later)
  if verdict == "again" then
    self:retire()
    self:give(self.task)
  elseif verdict == "done" or verdict == "fresh" then
    self.task, self.deadline = nil, nil
    if verdict == "fresh" then self:retire() end
    self:feed()
    if later then later() end
  elseif verdict then
    self:send(verdict)
  end
end

function Slot:take(message)
  if self.ready then return self:after(self.pool.hooks.hear(self.task, message)) end
  if message.word ~= "ready" then return self:refuse(message.text, message.code) end
  self.ready, self.worked = true, true
  util.must(self.process:clear_log())
  self:give(self.task)
end

function Slot:ended()
  local task = self.task
  self.process:signal("KILL") -- if it only closed its socket
  local kind, what = self.process:wait(GRACE)
  local cause = {kind = self.killed or kind or "stuck", what = what, seconds = self.seconds, note = self.process:note()}
  if not self.ready then
    return self:refuse("a worker could not start: " .. select(2, failures.of_end(cause)), "internal")
  end
  local verdict, later = self.pool.hooks.lost(task, cause)
  self:retire()
  self:after(verdict, later)
end

-- SIGTERM, SIGKILL, and then on without it: a process can be stuck in its driver for good.
function Slot:check_deadline(now)
  if not self.deadline or now < self.deadline then return end
  self.killed, self.kills, self.deadline = "timeout", self.kills + 1, now + GRACE
  if self.kills > 2 then return self:ended() end
  self.process:signal(self.kills == 1 and "TERM" or "KILL")
end

-- What the worker said since the last look.
function Slot:listen()
  local process = self.process
  local bytes = process:receive()
  while bytes and bytes ~= "" do
    local good, message = pcall(self.read, bytes)
    while good and message do
      self:take(message)
      if self.process ~= process or not self.task then return end
      good, message = pcall(self.read)
    end
    if not good then -- something else writes to the socket: nothing that comes can be believed
      process:signal("KILL")
      break
    end
    bytes = process:receive()
  end
  if not bytes then return self:ended() end
  self:check_deadline(core.clock())
end

-- ---- all of them

local Pool = {}
Pool.__index = Pool

-- Asks them to end, and sees to it that they do.
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

-- Gives every idle worker a task; returns the processes that are at work.
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

-- USR1 lets what runs end and starts nothing more; any other signal ends it.
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

-- What a worker answers to one message.
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

-- setups: the first message to each of the workers, {message, ...}; memory: most bytes of each. Runs every task.
function pool.run(setups, memory, hooks)
  local self = setmetatable({slots = {}, waiting = {}, hooks = hooks}, Pool)
  for i, setup in ipairs(setups) do
    self.slots[i] = setmetatable({pool = self, number = i, setup = setup, memory = memory}, Slot)
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
