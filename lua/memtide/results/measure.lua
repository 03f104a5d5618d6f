-- How the steps of one visit of a cell are timed. A visit makes warmup + steps steps, which are the run: its losses and
-- its memory are those of these steps, whatever the clock says. Where times are to be believed (`rounds` or
-- `confidence` are set) more follow, until there are `steps` times that count: of steps after the warm-up, at a steady
-- pace, which nothing disturbed.
local core = require "memtide.core"
local evidence = require "memtide.results.evidence"
local util = require "memtide.base.util"
local samples = require "memtide.results.samples"
local stats = require "memtide.results.stats"

local measure = {}

measure.names = {"rounds", "confidence", "time_limit"} -- of an experiment, not of a case
measure.TIME_LIMIT = 60 -- seconds for a cell, where the script says nothing
local WINDOW = 3        -- steps whose median tells the pace
local STEADY = 1.05     -- the pace is steady where it was at most so much slower than what follows

-- Are times asked for that hold?
function measure.holds(base) return base.rounds ~= nil or base.confidence ~= nil end

local function pace(list, from)
  local seconds = {}
  for i = from, from + WINDOW - 1 do seconds[#seconds + 1] = list[i].seconds end
  return stats.median(seconds)
end

-- How many of the samples, at least `warmup`, stand before the pace is steady; nil: not yet.
function measure.warm(list, warmup)
  for s = warmup, #list - 2 * WINDOW do
    if pace(list, s + 1) <= STEADY * pace(list, s + 1 + WINDOW) then return s end
  end
end

-- How many samples after the warm-up nothing disturbed
local function good(list, warm)
  local n = 0
  for i = warm + 1, #list do if list[i].flag == "" then n = n + 1 end end
  return n
end

-- Makes steps until `steps` samples count, twice as many as the run has are made, or the time is up.
local function extend(self, list, take)
  local base = self.experiment.base
  local limit = core.clock() + (base.time_limit or measure.TIME_LIMIT) / (base.rounds or 1)
  local most = self.warmup + 2 * (self.steps + 2 * WINDOW)
  local warm = measure.warm(list, self.warmup)
  while (not warm or good(list, warm) < self.steps) and #list < most and core.clock() < limit do
    local added, reason, code = take(#list + 1, true)
    if not added then return nil, reason, code end
    list[#list + 1] = added
    warm = warm or measure.warm(list, self.warmup)
  end
  return warm or self.warmup
end

local function new_take(self, runtime, loader, seen)
  local schedule = self.values.mode ~= "eval" and self.values.schedule
  return function(i, last)
    if schedule then util.must(runtime:write("lr", {schedule:rate(self.values.optimizer:rate(), i - 1)})) end
    local loss, took, code = runtime:step(1, loader, not last)
    if not loss then return nil, took, code end
    local sample = {step = i, seconds = took}
    seen:take(sample, last)
    return sample, loss
  end
end

-- The run: {samples, losses, more()}, or nil, reason, code. more() makes the further steps, if any, and returns true,
-- or nil, reason, code.
function measure.run(self, runtime, loader, device, progress)
  local list, losses, all = {}, {}, self.warmup + self.steps
  local take = new_take(self, runtime, loader, evidence.new(device))
  for i = 1, all do
    progress(i, all)
    local sample, loss, code = take(i, i == all)
    if not sample then return nil, loss, code end
    list[i], losses[i] = sample, loss
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
  return {samples = list, losses = losses, more = more}
end

-- The seconds that make the row: of a run that asks for no more, all of its steps.
function measure.seconds(self, list)
  if measure.holds(self.experiment.base) then return (samples.counted(list)) end
  local out = {}
  for i = self.warmup + 1, #list do out[#out + 1] = list[i].seconds end
  return out
end

return measure
