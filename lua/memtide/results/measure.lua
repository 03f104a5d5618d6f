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

-- Makes more steps, until `steps` samples count, about twice as many as planned are made, or the time is up. Returns
-- the number of samples in the warm-up; nil, reason, code: a step failed.
local function extend(self, list, take)
  local base = self.experiment.base
  local limit = core.clock() + (base.time_limit or measure.TIME_LIMIT) / (base.rounds or 1)
  local most = self.warmup + 2 * (self.steps + 2 * WINDOW)
  local warm = measure.warm(list, self.warmup)
  -- ranks that train together make the same steps, though each has its own clock
  local agree = self.agree or function(wanted) return wanted end
  while agree((not warm or good(list, warm) < self.steps) and #list < most and core.clock() < limit) do
    local added, reason, code = take(#list + 1, true)
    if not added then return nil, reason, code end
    list[#list + 1] = added
    warm = warm or measure.warm(list, self.warmup)
  end
  return warm or self.warmup
end

local function new_take(step, seen)
  return function(i, last)
    local loss, took, more = step(i, last)
    if not loss then return nil, took, more end
    local sample = {step = i, seconds = took}
    seen:take(sample, last)
    return sample, loss, more
  end
end

-- Makes the warmup + steps steps, by step(i, last) -> loss, seconds, skipped (nil, reason, code: it failed): {samples,
-- losses, skipped = how many were, more()}; nil, reason, code: a step failed. more() makes further steps if reliable times need
-- them, and returns true; or nil, reason, code. progress(i, n) is called before step i.
function measure.run(self, step, device, progress)
  local list, losses, skipped, all = {}, {}, 0, self.warmup + self.steps
  local take = new_take(step, evidence.new(device))
  for i = 1, all do
    progress(i, all)
    local sample, loss, more = take(i, i == all)
    if not sample then return nil, loss, more end
    list[i], losses[i] = sample, loss
    if more == true then skipped = skipped + 1 end
  end
  local function more()
    local warm = self.warmup
    if measure.holds(self.experiment.base) then
      local reason, code
      warm, reason, code = extend(self, list, take)
      if not warm then return nil, reason, code end
    end
    for i = 1, warm do list[i].flag = "warmup" end
    return true
  end
  return {samples = list, losses = losses, skipped = skipped, more = more}
end

-- The seconds of one visit that its row's times are computed from
function measure.seconds(list) return (samples.counted{list})[1] end

return measure
