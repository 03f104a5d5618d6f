-- How long a cell will take, judged by those of its model that have ended.
local pace = {}
local Pace = {}
Pace.__index = Pace

local LEAST = 10 -- seconds: below, an estimate says little about what goes wrong

-- limits: {seconds = most seconds of a cell, times = most in multiples of its estimate}; nil: none
function pace.new(limits) return setmetatable({limits = limits or {}, of_model = {}}, Pace) end

-- Samples that pass through the network, or epochs: what the time of a cell grows with. Of batch "max", whose size is
-- not known before it runs, the least.
function pace.work(values)
  if values.epochs then return values.epochs end
  return (tonumber(values.batch) or 1) * values.accumulate * ((values.steps or 10) + (values.warmup or 2))
end

function Pace:learn(values, seconds)
  if values.batch == "max" then return end
  local of = self.of_model[values.model] or {seconds = 0, work = 0}
  of.seconds, of.work = of.seconds + seconds, of.work + pace.work(values)
  self.of_model[values.model] = of
end

-- nil: no cell of this model has ended yet, or it is not known how large the cell is
function Pace:estimate(values)
  local rate = values.batch ~= "max" and self:rate(values.model)
  return rate and rate * pace.work(values) or nil
end

-- Seconds for a unit of work, of a model or (nil) of all that have ended; nil: none has.
function Pace:rate(model)
  local seconds, work = 0, 0
  for one, of in pairs(self.of_model) do
    if one == model or model == nil then seconds, work = seconds + of.seconds, work + of.work end
  end
  return work > 0 and seconds / work or nil
end

-- Seconds after which the cell counts as hanging; nil: it may take as long as it does.
function Pace:limit(values)
  local absolute, estimate = self.limits.seconds, self.limits.times and self:estimate(values)
  local relative = estimate and math.max(LEAST, estimate * self.limits.times)
  return absolute and relative and math.min(absolute, relative) or absolute or relative
end

return pace
