-- When a sweep will end, by what its cells took so far: a range, and the clock's time. Cells that will not fit are left
-- out, as far as cells of their network show it; of cells of a network none of which has ended, nothing is known.
local frontier = require "memtide.sweep.frontier"
local pace = require "memtide.sweep.pace"
local rounds = require "memtide.sweep.rounds"

local eta = {}
local Eta = {}
Eta.__index = Eta

local LEAST = 10               -- seconds: less is over before anybody has read it
local AT_ONCE = 1000           -- cells that it looks at in one go, 10 ms; of no more it keeps each
local FIRST, EXACT = 0.7, 0.05 -- relative error of an estimate before errors are known, and at best
local ENOUGH = 3               -- cells that have ended tell how often the others will be visited
local OTHERWISE = 4            -- with other settings a network may need so many times less

-- cells: a plan; workers: how many of them run at a time; base: what the script says of the whole experiment
function eta.new(learnt, cells, workers, base)
  local self = setmetatable({pace = learnt, plan = cells, workers = workers, base = base or {}, counted = 0,
    ended = 0, visits = {}, n = 0, squares = 0, visited = 0, concluded = 0, needs = {}}, Eta)
  -- what is left: of few cells each, of many the sums for their models
  if cells:count() <= AT_ONCE then self.each, self.gone = {}, {} else self.sums = {} end
  return self
end

-- What the time of a cell hangs on; n: how many such there are.
local function describe(self, k)
  local values = self.plan:cell(k).values
  return {model = values.model, work = pace.work(values), n = 1, batch = values.batch, k = k,
    key = frontier.others(values, "batch")}
end

local function add_up(self, values, sign)
  local sum = self.sums[values.model] or {model = values.model, total = 0, n = 0}
  self.sums[values.model] = sum
  sum.total, sum.n = sum.total + sign * pace.work(values), sum.n + sign
  sum.work = sum.total / math.max(sum.n, 1)
end

-- Looks at more of the cells; true: it has looked at all. A sweep of a million begins at once.
local function count_more(self)
  local all = self.plan:count()
  local last = math.min(self.counted + AT_ONCE, all)
  for k = self.counted + 1, last do
    if self.sums then add_up(self, self.plan:cell(k).values, 1)
    elseif not self.gone[k] then self.each[k] = describe(self, k) end
  end
  self.counted = last
  return last == all
end

-- Where the bytes of a row are those of its batch, and where they are not.
local GROWS = {"activations_bytes", "activation_gradients_bytes", "input_bytes"}

-- What the row of a cell shows of others of its network.
local function learn_needs(self, values, row)
  local bytes, batch = tonumber(row.predicted_peak_bytes), tonumber(row.batch)
  if not bytes or not batch or not row.cost or not row.cost.room then return end
  local grows = 0
  for _, column in ipairs(GROWS) do grows = grows + (tonumber(row[column]) or 0) end
  local found = {batch = batch, fixed = bytes - grows, grows = grows, room = row.cost.room}
  for _, key in ipairs{frontier.others(values, "batch"), values.model} do
    local old = self.needs[key]
    if not old or old.batch <= batch then self.needs[key] = found end
  end
end

-- Will the cell be skipped, as far as others show?
local function is_unfit(self, one)
  if self.plan.purpose ~= "run" or self.plan.try_oom or math.type(one.batch) ~= "integer" then return false end
  -- what a function makes of other settings may be another network
  local same, alike = self.needs[one.key], type(one.model) ~= "function" and self.needs[one.model]
  local found = same or alike
  if not found then return false end
  return found.fixed + found.grows * one.batch / found.batch > found.room * (same and 1 or OTHERWISE)
end

-- The k-th cell has ended, or had before; row: what came of it.
function Eta:done(k, values, row)
  if self.sums then add_up(self, values, -1)
  else
    self.each[k], self.gone[k] = nil, true
    learn_needs(self, values, row or {})
  end
  if self.visits[k] then self.visited, self.concluded = self.visited + self.visits[k], self.concluded + 1 end
  self.visits[k] = nil
  self.ended = self.ended + 1
end

-- A visit of the k-th cell took so long; to be told before the pace learns it.
function Eta:learn(k, values, seconds)
  self.visits[k] = (self.visits[k] or 0) + 1
  local expected = self.pace:estimate(values)
  if not expected or expected <= 0 or seconds <= 0 then return end
  self.n, self.squares = self.n + 1, self.squares + math.log(seconds / expected) ^ 2
end

-- Of a cell each visit of which takes `seconds`: visits that are left, and their bounds.
local function visits_left(self, one, seconds)
  local least, most = rounds.visits(self.base, seconds)
  local expected = math.sqrt(least * most)
  if self.concluded > 0 then expected = math.max(least, math.min(self.visited / self.concluded, most)) end
  if self.concluded >= ENOUGH then least, most = expected, expected end
  local so_far = one.k and self.visits[one.k] or 0
  local function left(all) return math.max(all - so_far, so_far > 0 and 1 or 0) end
  return left(expected), left(least), left(most)
end

-- Seconds that are left, between which bounds they will lie, and of how many cells nothing is known, which are in none
-- of these; nil: nothing is known yet.
function Eta:remaining()
  if not count_more(self) or not self.pace:rate() then return nil end
  local seconds, low, high, unknown = 0, 0, 0, 0
  for _, one in pairs(self.sums or self.each) do
    local rate = one.batch ~= "max" and self.pace:rate(one.model)
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
  local cells = self.plan:count() - self.ended
  local spread = 2 * deviation * math.sqrt(1 / math.max(self.n, 1) + 1 / math.max(cells, 1))
  local factor = math.exp(math.max(spread, EXACT))
  return seconds, low / factor, high * factor, unknown
end

-- {seconds =, at = now, first =, last =, unknown =}: the seconds that are left, and between which times the sweep will
-- end; unknown: cells that are not in it, or nil. nil: not known, or too soon to be worth it
function Eta:range(now)
  local seconds, low, high, unknown = self:remaining()
  if not seconds or seconds < LEAST and unknown == 0 then return nil end
  return {seconds = seconds, at = now, first = math.floor(now + low), last = math.floor(now + high),
    unknown = unknown > 0 and unknown or nil}
end

return eta
