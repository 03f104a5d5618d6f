-- Statistics of times: medians and their confidence intervals. No distribution of the times is assumed.
local util = require "memtide.base.util"

local stats = {}

stats.CONFIDENCE = 0.95 -- of all intervals: 95 of 100 contain the median

function stats.sorted(values)
  local out = table.move(values, 1, #values, 1, {})
  table.sort(out)
  return out
end

function stats.median(values) return util.quantile(stats.sorted(values), 0.5) end

-- The rank k such that the median of a distribution lies between the k-th smallest and the k-th largest of n values
-- drawn from it, with at least this confidence; nil: n is too small. The number of values below the median is binomial,
-- as n throws of a fair coin, and k is the largest number with P(fewer than k) <= (1 - confidence) / 2.
function stats.rank(n, confidence)
  local allowed = (1 - (confidence or stats.CONFIDENCE)) / 2
  local log_term, below, k = n * math.log(0.5), 0, 0
  while k < n do
    below = below + math.exp(log_term)
    if below > allowed then break end
    log_term = log_term + math.log((n - k) / (k + 1))
    k = k + 1
  end
  return k > 0 and k or nil
end

-- The least number of values that have an interval
function stats.least(confidence)
  local n = 1
  while not stats.rank(n, confidence) do n = n + 1 end
  return n
end

-- values -> {median, low, high, n}; low and high are nil if there are too few values for an interval
local function of_values(values)
  local sorted = stats.sorted(values)
  local n = #sorted
  local k = stats.rank(n)
  return {median = util.quantile(sorted, 0.5), low = k and sorted[k], high = k and sorted[n + 1 - k], n = n}
end

-- rounds: {{value, ...}, ...} -> {median, low, high, n} of all values; nil: there are none. Values of one round are
-- more alike than values of two rounds, so the interval also covers that of the rounds' medians, if there are enough
-- rounds.
function stats.interval(rounds)
  local all, medians = {}, {}
  for _, values in ipairs(rounds) do
    table.move(values, 1, #values, #all + 1, all)
    if #values > 0 then medians[#medians + 1] = stats.median(values) end
  end
  if #all == 0 then return nil end
  local found, of_rounds = of_values(all), of_values(medians)
  if of_rounds.low then
    found.low, found.high = math.min(found.low, of_rounds.low), math.max(found.high, of_rounds.high)
  end
  return found
end

-- Half the interval divided by the median; nil: there is no interval.
function stats.half_width(found)
  if not found or not found.low or found.median <= 0 then return nil end
  return (found.high - found.low) / 2 / found.median
end

-- The interval of a number that is exact
function stats.exact(value) return {median = value, low = value, high = value} end

-- The ratio of two independent medians, with its interval; nil: one of the two is not above 0. The distances from the
-- medians to the ends of their intervals, as logarithms, are added as the sides of a right angle are (Zou and Donner,
-- "Construction of confidence limits about effect measures: a general approach", Statistics in Medicine, 2008).
function stats.ratio(a, b)
  if not a or not b or a.median <= 0 or b.median <= 0 then return nil end
  local out = {median = a.median / b.median}
  if not a.low or not b.low or a.low <= 0 or b.low <= 0 then return out end
  local function distance(x, y) return math.sqrt(math.log(x) ^ 2 + math.log(y) ^ 2) end
  local down = distance(a.low / a.median, b.high / b.median)
  local up = distance(a.high / a.median, b.low / b.median)
  out.low, out.high = out.median * math.exp(-down), out.median * math.exp(up)
  return out
end

-- A generator: random(n) gives 1 to n, the same numbers for the same seed. It leaves a script's math.random alone.
-- SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
function stats.random(seed)
  local state = seed
  return function(n)
    state = state + 0x9e3779b97f4a7c15
    local z = (state ~ state >> 30) * 0xbf58476d1ce4e5b9
    z = (z ~ z >> 27) * 0x94d049bb133111eb
    return ((z ~ z >> 31) >> 1) % n + 1
  end
end

-- A copy of the list in an order drawn from the seed.
function stats.shuffled(list, seed)
  local out, random = table.move(list, 1, #list, 1, {}), stats.random(seed)
  for i = #out, 2, -1 do
    local j = random(i)
    out[i], out[j] = out[j], out[i]
  end
  return out
end

return stats
