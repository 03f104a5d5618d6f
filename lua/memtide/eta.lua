-- When a sweep will end, by what its cells took so far: a range, and the clock's time.
local pace = require "memtide.pace"

local eta = {}
local Eta = {}
Eta.__index = Eta

local LEAST = 10              -- seconds: less is over before anybody has read it
local AT_ONCE = 1000 -- cells that it looks at in one go, 10 ms
local FIRST, EXACT = 0.7, 0.05 -- relative error of an estimate before errors are known, and at best

-- What is left of each model, in the pace's units of work.
local function count(self, values, sign)
  local of = self.left[values.model] or 0
  self.left[values.model], self.cells = of + sign * pace.work(values), self.cells + sign
end

-- learnt: a pace that is told what cells took; workers: how many cells run at a time
function eta.new(learnt, cells, workers)
  return setmetatable({pace = learnt, plan = cells, counted = 0, left = {}, cells = 0, workers = workers, n = 0,
    squares = 0}, Eta)
end

-- Looks at more of the cells; true: it has looked at all. A sweep of a million begins at once.
local function count_more(self)
  local all = self.plan:count()
  for k = self.counted + 1, math.min(self.counted + AT_ONCE, all) do count(self, self.plan:cell(k).values, 1) end
  self.counted = math.min(self.counted + AT_ONCE, all)
  return self.counted == all
end

-- The cell has ended, or had before.
function Eta:done(values) count(self, values, -1) end

-- The cell took so long; to be told before the pace learns it.
function Eta:learn(values, seconds)
  local expected = self.pace:estimate(values)
  if not expected or expected <= 0 or seconds <= 0 then return end
  self.n, self.squares = self.n + 1, self.squares + math.log(seconds / expected) ^ 2
end

-- Seconds that are left, and between which bounds they will lie; nil: nothing is known yet.
function Eta:remaining()
  local seconds = 0
  if not count_more(self) then return nil end
  for model, work in pairs(self.left) do
    local rate = self.pace:rate(model) or self.pace:rate()
    if not rate then return nil end
    seconds = seconds + rate * math.max(work, 0) / self.workers
  end
  local deviation = self.n > 2 and math.sqrt(self.squares / self.n) or FIRST
  local spread = 2 * deviation * math.sqrt(1 / math.max(self.n, 1) + 1 / math.max(self.cells, 1))
  local factor = math.exp(math.max(spread, EXACT))
  return seconds, seconds / factor, seconds * factor
end

-- {seconds =, at = now, first =, last =}: the seconds that are left, and between which times the sweep will end; nil:
-- not known, or too soon to be worth it
function Eta:range(now)
  local seconds, low, high = self:remaining()
  if not seconds or seconds < LEAST then return nil end
  return {seconds = seconds, at = now, first = math.floor(now + low), last = math.floor(now + high)}
end

return eta
