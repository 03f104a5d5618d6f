-- How the steps of one visit of a cell are timed. A visit first makes warmup + steps steps; losses and memory are those
-- of these steps, whatever their times are. If reliable times are asked for (`rounds` or `confidence` is set), it makes
-- more, until `steps` times count: those of steps after the warm-up, at a steady pace, which nothing disturbed.
local core = require "memtide.core"
local evidence = require "memtide.results.evidence"
local samples = require "memtide.results.samples"
local stats = require "memtide.results.stats"

local measure = {}

measure.names = {"rounds", "confidence", "time_limit"} -- of an experiment, not of a case
measure.TIME_LIMIT = 60 -- seconds for a cell, if the script says nothing
local WINDOW = 3        -- steps whose median is the pace
local STEADY = 1.05     -- the pace is steady if it is at most this many times that of the next window

-- Does the script ask for reliable times?
function measure.holds(base) return base.rounds ~= nil or base.confidence ~= nil end

local function pace(list, from)
  local seconds = {}
  for i = from, from + WINDOW - 1 do seconds[#seconds + 1] = list[i].seconds end
  return stats.median(seconds)
end

-- How many samples come before the pace is steady, at least `warmup`; nil: it is not steady yet.
function measure.warm(list, warmup)
  for s = warmup, #list - 2 * WINDOW do
    if pace(list, s + 1) <= STEADY * pace(list, s + 1 + WINDOW) then return s end
  end
end

-- Number of samples after the warm-up that nothing disturbed
local function good(list, warm)
  local n = 0
  for i = warm + 1, #list do if list[i].flag == "" then n = n + 1 end end
  return n
end

-- The steps of a visit. steps: begin(i) begins step i; result() -> loss, seconds, skipped, ops, replayed of the first step that
-- has begun, nil, reason, code: it failed. A step's result is asked for after the next one has begun, so that the device never
-- waits for the host to have read a loss: its time goes from begin to begin. The last one before a pause ends with its own end.
-- waits: nothing goes on while the host looks at the machine between two steps, so that is taken off the first one's time.
local Walk = {}
Walk.__index = Walk

local function new_walk(steps, seen) return setmetatable({steps = steps, seen = seen, list = {}, begun = 0, looked = 0}, Walk) end

-- The result of the step that was begun first -> its sample, loss, skipped; nil, reason, code
local function finish(self)
  local loss, seconds, skipped, ops, replayed = self.steps.result()
  if not loss then return nil, seconds, skipped end
  local sample = self.open
  self.open, sample.seconds, sample.graph_seconds = nil, seconds - self.looked, replayed and ops or nil
  self.list[sample.step] = sample
  return sample, loss, skipped
end

-- Begins a step, and finishes the one before it, if that is under way -> what finish returns, true: there was none
function Walk:advance()
  local before, i, from = self.open, self.begun + 1, core.clock()
  if before then self.seen:take(before) end
  self.looked = self.steps.waits and core.clock() - from or 0
  local begun, reason, code = self.steps.begin(i)
  if not begun then return nil, reason, code end
  self.begun = i
  local sample, loss, skipped = true, nil, nil
  if before then
    sample, loss, skipped = finish(self)
    if not sample then return nil, loss, skipped end
    self.seen:judge()
  end
  self.open = {step = i}
  return sample, loss, skipped
end

-- Finishes the step that is under way -> what finish returns
function Walk:pause()
  local last = self.open
  self.looked = 0
  local sample, loss, skipped = finish(self)
  if not sample then return nil, loss, skipped end
  self.seen:take(last, true)
  self.seen:judge()
  return sample, loss, skipped
end

-- Makes more steps, until `steps` samples count, about twice as many as planned are made, or the time is up. Returns
-- the number of samples in the warm-up; nil, reason, code: a step failed.
local function extend(self, walk)
  local base, list = self.experiment.base, walk.list
  local limit = core.clock() + (base.time_limit or measure.TIME_LIMIT) / (base.rounds or 1)
  local most = self.warmup + 2 * (self.steps + 2 * WINDOW)
  local warm = measure.warm(list, self.warmup)
  -- ranks that train together make the same steps, though each has its own clock
  local agree = self.agree or function(wanted) return wanted end
  -- with those under way, of which nothing is known yet
  local function lacking()
    local open = walk.open and 1 or 0
    return agree((not warm or good(list, warm) + open < self.steps) and walk.begun < most and core.clock() < limit)
  end
  while lacking() do
    repeat
      local added, reason, code = walk:advance()
      if not added then return nil, reason, code end
      warm = warm or measure.warm(list, self.warmup)
    until not lacking()
    local last, reason, code = walk:pause()
    if not last then return nil, reason, code end
    warm = warm or measure.warm(list, self.warmup)
  end
  return warm or self.warmup
end

-- Makes the warmup + steps steps of `steps`, see Walk: {samples, losses, skipped = how many were, more()}; nil, reason, code: a
-- step failed. more() makes further steps if reliable times need them, and returns true; or nil, reason, code. progress(i, n) is
-- called before step i.
function measure.run(self, steps, device, progress)
  local losses, skipped, all = {}, 0, self.warmup + self.steps
  local walk = new_walk(steps, evidence.new(device))
  for i = 1, all + 1 do
    if i <= all then progress(i, all) end
    local sample, loss, more = (i <= all and walk.advance or walk.pause)(walk)
    if not sample then return nil, loss, more end
    if sample ~= true then
      losses[i - 1] = loss
      if more == true then skipped = skipped + 1 end
    end
  end
  local function more()
    local warm = self.warmup
    if measure.holds(self.experiment.base) then
      local reason, code
      warm, reason, code = extend(self, walk)
      if not warm then return nil, reason, code end
    end
    for i = 1, warm do walk.list[i].flag = "warmup" end
    return true
  end
  return {samples = walk.list, losses = losses, skipped = skipped, more = more}
end

-- What one visit's row has its times from: the seconds of its samples that count, and those of their graphs
function measure.seconds(list)
  return samples.counted({list})[1], samples.counted({list}, "graph_seconds")[1]
end

return measure
