-- How long cells take, judged by cells of the same model that have ended, and between which times the sweep will end.
-- Cells that will not fit, judged by other cells of their network, are left out. Nothing is known about cells of a
-- model until one of them has ended.
local frontier = require "memtide.sweep.frontier"
local rounds = require "memtide.sweep.rounds"

local pace = {}
local Pace = {}
Pace.__index = Pace

local LEAST = 10               -- seconds: no shorter time limit from an estimate, and no shorter end is shown
local AT_ONCE = 1000           -- cells looked at in one call (10 ms); up to this many cells are kept one by one
local FIRST, EXACT = 0.7, 0.05 -- relative error of an estimate before any error is known; the smallest assumed
local ENOUGH = 3               -- cells that must have ended to know how often the others will be visited
local OTHERWISE = 4            -- with other settings a network may need this many times less memory

-- limits: {seconds = the most for a cell, times = the most in multiples of its estimate}, or nil; cells: the selection
-- whose end is wanted (nil: not wanted); workers: how many cells run at a time; base: experiment.base
function pace.new(limits, cells, workers, base)
  local self = setmetatable({limits = limits or {}, of_model = {}}, Pace)
  if not cells then return self end
  self.selection, self.workers, self.base = cells, workers, base or {}
  self.counted, self.ended, self.visits, self.n, self.squares = 0, 0, {}, 0, 0
  self.visited, self.concluded, self.needs = 0, 0, {}
  -- the cells that are left: each of them if there are few, else sums for each model
  if cells:count() <= AT_ONCE then self.each, self.gone = {}, {} else self.sums = {} end
  return self
end

-- What the time of a cell is proportional to: samples that pass through the network, or epochs. For batch "max", which
-- is not known before the cell runs, as for batch 1.
function pace.work(values)
  if values.epochs then return values.epochs end
  return (tonumber(values.batch) or 1) * values.accumulate * ((values.steps or 10) + (values.warmup or 2))
end

-- What the times of cells are compared by: the model, or the trainings in its place
local function model_in(values) return values.model or values.trainings end

local function learn_rate(self, values, seconds)
  if values.batch == "max" then return end
  local of = self.of_model[model_in(values)] or {seconds = 0, work = 0}
  of.seconds, of.work = of.seconds + seconds, of.work + pace.work(values)
  self.of_model[model_in(values)] = of
end

-- Learns that a visit of the k-th cell, which has these values, took so many seconds.
function Pace:learn(k, values, seconds)
  assert(seconds >= 0)
  if self.selection then
    self.visits[k] = (self.visits[k] or 0) + 1
    local expected = self:estimate(values)
    if expected and expected > 0 and seconds > 0 then
      self.n, self.squares = self.n + 1, self.squares + math.log(seconds / expected) ^ 2
    end
  end
  learn_rate(self, values, seconds)
end

-- Seconds for a visit; nil: no cell of this model has ended yet, or the cell's batch is not known
function Pace:estimate(values)
  local rate = values.batch ~= "max" and self:rate(model_in(values))
  return rate and rate * pace.work(values) or nil
end

-- Seconds per unit of work, for a model or (nil) for all; nil: no such cell has ended.
function Pace:rate(model)
  local seconds, work = 0, 0
  for one, of in pairs(self.of_model) do
    if one == model or model == nil then seconds, work = seconds + of.seconds, work + of.work end
  end
  return work > 0 and seconds / work or nil
end

-- Seconds after which the cell counts as hanging; nil: there is no limit.
function Pace:limit(values)
  local absolute, estimate = self.limits.seconds, self.limits.times and self:estimate(values)
  local relative = estimate and math.max(LEAST, estimate * self.limits.times)
  return absolute and relative and math.min(absolute, relative) or absolute or relative
end

-- ---- the end of the sweep

-- The cell in the form of an element of self.sums, where n is the number of cells
local function describe(self, k)
  local values = self.selection:cell(k).values
  return {model = model_in(values), work = pace.work(values), n = 1, batch = values.batch, k = k,
    key = frontier.others(values, "batch")}
end

local function add_up(self, values, sign)
  local sum = self.sums[model_in(values)] or {model = model_in(values), total = 0, n = 0}
  self.sums[model_in(values)] = sum
  sum.total, sum.n = sum.total + sign * pace.work(values), sum.n + sign
  sum.work = sum.total / math.max(sum.n, 1)
end

-- Looks at some more cells; returns whether all have been looked at. So a sweep of a million cells begins at once.
local function count_more(self)
  local all = self.selection:count()
  local last = math.min(self.counted + AT_ONCE, all)
  for k = self.counted + 1, last do
    if self.sums then add_up(self, self.selection:cell(k).values, 1)
    elseif not self.gone[k] then self.each[k] = describe(self, k) end
  end
  self.counted = last
  return last == all
end

-- Columns whose bytes are proportional to the batch
local GROWS = {"activations_bytes", "activation_gradients_bytes", "input_bytes"}

-- Learns from the row of a cell how much memory other cells of its network need.
local function learn_needs(self, values, row)
  local bytes, batch = tonumber(row.predicted_peak_bytes), tonumber(row.batch)
  if not bytes or not batch or not row.cost or not row.cost.room then return end
  local grows = 0
  for _, column in ipairs(GROWS) do grows = grows + (tonumber(row[column]) or 0) end
  local found = {batch = batch, fixed = bytes - grows, grows = grows, room = row.cost.room}
  for _, key in ipairs{frontier.others(values, "batch"), model_in(values)} do
    local old = self.needs[key]
    if not old or old.batch <= batch then self.needs[key] = found end
  end
end

-- Will the cell be skipped, judged by other cells?
local function is_unfit(self, one)
  local cells = self.selection
  if cells.purpose ~= "run" or cells.try_oom or math.type(one.batch) ~= "integer" then return false end
  -- a function may return another network for other settings
  local same, alike = self.needs[one.key], type(one.model) ~= "function" and self.needs[one.model]
  local found = same or alike
  if not found then return false end
  return found.fixed + found.grows * one.batch / found.batch > found.room * (same and 1 or OTHERWISE)
end

-- Notes that the k-th cell has ended, now or in an earlier run; row: its row.
function Pace:done(k, values, row)
  if not self.selection then return end
  if self.sums then add_up(self, values, -1)
  else
    self.each[k], self.gone[k] = nil, true
    learn_needs(self, values, row or {})
  end
  if self.visits[k] then self.visited, self.concluded = self.visited + self.visits[k], self.concluded + 1 end
  self.visits[k] = nil
  self.ended = self.ended + 1
end

-- Visits that are left of a cell if each takes `seconds`: expected, at least, at most.
local function visits_left(self, one, seconds)
  local least, most = rounds.visits(self.base, seconds)
  local expected = math.sqrt(least * most)
  if self.concluded > 0 then expected = math.max(least, math.min(self.visited / self.concluded, most)) end
  if self.concluded >= ENOUGH then least, most = expected, expected end
  local so_far = one.k and self.visits[one.k] or 0
  local function left(all) return math.max(all - so_far, so_far > 0 and 1 or 0) end
  return left(expected), left(least), left(most)
end

-- Seconds that are left, their lower and upper bound, and the number of cells of unknown time, which these do not
-- include; nil: nothing is known yet, or the end is not wanted.
function Pace:remaining()
  if not self.selection or not count_more(self) or not self:rate() then return nil end
  local seconds, low, high, unknown = 0, 0, 0, 0
  for _, one in pairs(self.sums or self.each) do
    local rate = one.batch ~= "max" and self:rate(one.model)
    if is_unfit(self, one) or one.n <= 0 then goto next end
    if rate then
      local expected, least, most = visits_left(self, one, rate * one.work)
      local visit = one.n * rate * math.max(one.work, 0) / self.workers
      seconds, low, high = seconds + visit * expected, low + visit * least, high + visit * most
    else
      unknown = unknown + one.n
    end
    ::next::
  end
  local deviation = self.n > 2 and math.sqrt(self.squares / self.n) or FIRST
  local cells = self.selection:count() - self.ended
  local spread = 2 * deviation * math.sqrt(1 / math.max(self.n, 1) + 1 / math.max(cells, 1))
  local factor = math.exp(math.max(spread, EXACT))
  return seconds, low / factor, high * factor, unknown
end

-- {seconds =, at = now, first =, last =, unknown =}: the seconds that are left, and the times between which the sweep
-- will end; unknown: the number of cells of unknown time, or nil. Returns nil if the end is not known or near.
function Pace:range(now)
  local seconds, low, high, unknown = self:remaining()
  if not seconds or seconds < LEAST and unknown == 0 then return nil end
  return {seconds = seconds, at = now, first = math.floor(now + low), last = math.floor(now + high),
    unknown = unknown > 0 and unknown or nil}
end

return pace
