-- Medians and their intervals against what tables of the binomial distribution say; orders; pace.
local tap = dofile "tests/tap.lua"
local evidence = require "memtide.results.evidence"
local measure = require "memtide.results.measure"
local rounds = require "memtide.sweep.rounds"
local samples = require "memtide.results.samples"
local stats = require "memtide.results.stats"

-- ---- ranks: n, the rank k of 95 %; P(X < k) of n throws of a coin is at most 2.5 %, P(X <= k) more
for _, known in ipairs{{6, 1}, {8, 1}, {9, 2}, {10, 2}, {12, 3}, {15, 4}, {20, 6}, {25, 8}, {30, 10}, {50, 18},
  {100, 40}} do
  tap.is(stats.rank(known[1]), known[2], ("the interval of %d values starts at rank %d"):format(known[1], known[2]))
end
tap.is(stats.rank(5), nil, "five values are too few for 95 %")
tap.is(stats.rank(5, 0.9), 1, "and enough for 90 %")
tap.is(stats.rank(8, 0.99), 1, "eight are enough for 99 %")
tap.is(stats.rank(7, 0.99), nil, "seven are not")
tap.is(stats.rank(5000), 2431, "many values: 2500 - 1.96 sqrt(5000) / 2")

local function fact(n) return n < 2 and 1 or n * fact(n - 1) end
for n = 6, 18 do
  local k, below, upto = stats.rank(n), 0, 0
  for i = 0, k do
    local p = fact(n) // (fact(i) * fact(n - i)) / 2 ^ n
    upto = upto + p
    if i < k then below = upto end
  end
  tap.ok(below <= 0.025 and upto > 0.025, ("rank %d of %d by counting"):format(k, n))
end

-- ---- intervals
local function upto(n)
  local out = {}
  for i = 1, n do out[i] = n + 1 - i end
  return out
end
local ten = stats.interval{upto(10)}
tap.is(("%g %g %g"):format(ten.median, ten.low, ten.high), "5.5 2 9", "the interval of 1 to 10")
tap.near(stats.half_width(ten), 3.5 / 5.5, 1e-12, "its half width in parts of the median")
tap.is(stats.interval{upto(5)}.low, nil, "five values have a median only")
tap.is(stats.interval{{}, {}}, nil, "no values, nothing")
local spread = {}
for r = 1, 6 do spread[r] = {r, r, r, r, r, r, r, r, r, r} end
local found = stats.interval(spread)
tap.is(("%g %g"):format(found.low, found.high), "1 6", "rounds that differ widen the interval")

-- how often the interval holds the median of what was drawn from: uniform in 0 to 1, of which it is 1/2
local random, held = stats.random(7), 0
for _ = 1, 2000 do
  local values = {}
  for i = 1, 20 do values[i] = random(1000000) / 1e6 end
  local one = stats.interval{values}
  if one.low <= 0.5 and 0.5 <= one.high then held = held + 1 end
end
tap.ok(held >= 1880 and held <= 1960, ("95.9 %% of intervals hold the median: %d of 2000"):format(held))

-- ---- ratios
local r = stats.ratio(stats.exact(1), stats.exact(4))
tap.is(("%g %g %g"):format(r.median, r.low, r.high), "0.25 0.25 0.25", "a ratio of exact values is exact")
r = stats.ratio({median = 2, low = 1, high = 4}, stats.exact(1))
tap.near(r.low, 1, 1e-12, "over an exact value, the interval is the other's")
tap.near(r.high, 4, 1e-12, "on both sides")
local function around_1(x) return {median = 1, low = math.exp(-x), high = math.exp(x)} end
r = stats.ratio(around_1(3), around_1(4))
tap.near(math.log(r.high), 5, 1e-12, "distances add up as the sides of a right angle: 3 and 4 give 5")
tap.is(stats.ratio(stats.exact(1), stats.exact(0)), nil, "there is no ratio to 0")
tap.is(stats.ratio({median = 1}, stats.exact(2)).low, nil, "nor an interval without one")
local inside = 0
for _ = 1, 500 do
  local a, b = {}, {}
  for i = 1, 15 do a[i], b[i] = 1 + random(1000) / 1000, 2 + random(2000) / 1000 end
  local one = stats.ratio(stats.interval{a}, stats.interval{b})
  if one.low <= 0.5 and 0.5 <= one.high then inside = inside + 1 end
end
tap.ok(inside >= 470, ("at least 94 %% of the ratio's intervals hold the ratio: %d of 500"):format(inside))

-- ---- orders
local list = {1, 2, 3, 4, 5, 6, 7, 8}
tap.is(table.concat(stats.shuffled(list, 3)), table.concat(stats.shuffled(list, 3)), "a seed is an order")
tap.ok(table.concat(stats.shuffled(list, 3)) ~= table.concat(stats.shuffled(list, 4)), "another one, another")
tap.is(table.concat(stats.sorted(stats.shuffled(list, 5))), "12345678", "of the same things")
tap.is(table.concat(list), "12345678", "which are left as they were")
local first = {0, 0, 0}
for seed = 1, 3000 do first[stats.shuffled({1, 2, 3}, seed)[1]] = first[stats.shuffled({1, 2, 3}, seed)[1]] + 1 end
tap.ok(math.min(table.unpack(first)) > 900, "each comes first as often as the others: " .. table.concat(first, " "))

-- ---- pace
local function timed(...)
  local out = {}
  for i, seconds in ipairs{...} do out[i] = {step = i, seconds = seconds, flag = ""} end
  return out
end
tap.is(measure.warm(timed(1, 1, 1, 1, 1, 1), 0), 0, "a steady pace from the first step on")
tap.is(measure.warm(timed(1, 1, 1, 1, 1), 0), nil, "is not seen in five steps")
tap.is(measure.warm(timed(9, 5, 2, 1, 1, 1, 1, 1, 1), 0), 2, "two slow steps are warm-up: the third is one of three")
tap.is(measure.warm(timed(9, 1, 1, 1, 1, 1, 1, 1, 1), 2), 2, "the script's warm-up is the least")
tap.is(measure.warm(timed(9, 8, 7, 6, 5, 4, 3, 2, 1), 0), nil, "a pace that rises all the time is not steady")

-- ---- steps: the result of one is asked for after the next one has begun
local function visit(rounds_wanted, seconds_of, fails, waits)
  local said, begun, given = {}, 0, 0
  local steps = {
    waits = waits,
    begin = function(i)
      said[#said + 1] = "b" .. i
      if fails == "b" .. i then return nil, "no begin", "oom" end
      begun = i
      return true
    end,
    result = function()
      given = given + 1
      said[#said + 1] = "r" .. given
      if fails == "r" .. given then return nil, "no result", "device" end
      return given / 10, seconds_of(given), given == 2, seconds_of(given) / 2, given > 2
    end}
  local self = {warmup = 1, steps = 3, experiment = {base = {rounds = rounds_wanted, time_limit = 60}}}
  local run, reason, code = measure.run(self, steps, nil, function(i) said[#said + 1] = "p" .. i end)
  return run, run and said or reason, code, begun
end
local run, said = visit(nil, function() return 1 end)
tap.is(table.concat(said, " "), "p1 b1 p2 b2 r1 p3 b3 r2 p4 b4 r3 r4", "one is under way while the next one begins")
tap.is(table.concat(run.losses, " "), "0.1 0.2 0.3 0.4", "each step has its own loss")
tap.is(run.skipped, 1, "and is counted if it was skipped")
tap.ok(run.more() and run.samples[1].flag == "warmup" and run.samples[4].flag ~= "warmup" and #run.samples == 4, "no more were made")
local of_steps, of_graphs = measure.seconds(run.samples)
tap.is(("%d %d %s"):format(#of_steps, #of_graphs, of_graphs[1]), "3 2 0.5", "times of steps, and of their graphs, where they have one")
tap.is(run.samples[2].seconds, 1, "what the host does meanwhile is part of a GPU's step, or beside it")
local alone = visit(nil, function() return 1 end, nil, true).samples
tap.ok(alone[2].seconds < 1 and alone[2].seconds > 0.5, "its look at the machine is no part of the CPU's")
tap.is(alone[4].seconds, 1, "nor does the last step, which ends before it, lose any of its time")
for _, fails in ipairs{"b1", "b3", "r1", "r4"} do
  local none, reason, code = visit(nil, function() return 1 end, fails)
  tap.is(("%s %s %s"):format(none, reason, code), fails:find "b" and "nil no begin oom" or "nil no result device", fails .. " fails")
end
local longer, log = visit(1, function(i) return i < 4 and 9 or 1 end)
tap.ok(longer.more(), "with rounds")
tap.ok(#longer.samples > 4 and longer.samples[#longer.samples].seconds == 1 and not table.concat(log, " "):find "b%d+ b%d+ b", "more are made, one under way")
for i, sample in ipairs(longer.samples) do
  if sample.step ~= i or not sample.flag then tap.ok(false, "sample " .. i .. " has its step and its flag") end
end
tap.is(#longer.losses, 4, "their losses are not the visit's")

-- a flag comes once the time is known
do
  local seen = evidence.new()
  local under_way, last = {}, {seconds = 1}
  seen:take(under_way, true)
  seen:judge()
  tap.is(under_way.flag, nil, "a step that is under way has no flag yet")
  seen:take(last, true)
  under_way.seconds = 1
  seen:judge()
  tap.ok(under_way.flag and last.flag, "then it has")
end

-- ---- which samples count
-- visits: {{flag of each step, ...}, ...}; the times of one visit are 1, 2, 3, ...
local function counted(visits)
  local lists, words = {}, {}
  for i, flags in ipairs(visits) do
    lists[i] = timed(1, 2, 3, 4, 5, 6, 7)
    for k, flag in ipairs(flags) do lists[i][k].flag = flag end
  end
  local times, count = samples.counted(lists)
  for i, seconds in ipairs(times) do words[i] = table.concat(seconds, " ") end
  return ("%s (%d timed, %d disturbed, %d count)"):format(table.concat(words, ", "), count.timed, count.disturbed, count.counted)
end
tap.is(counted{{"warmup"}}, "2 3 4 5 6 7 (6 timed, 0 disturbed, 6 count)", "the warm-up does not count")
tap.is(counted{{"steal"}}, "2 3 4 5 6 7 (7 timed, 1 disturbed, 6 count)", "nor does what was disturbed")
tap.is(counted{{"warmup", "steal"}}, "2 3 4 5 6 7 (6 timed, 1 disturbed, 6 count)", "unless fewer than six others remain")
tap.is(counted{{"steal", "preempted", "steal", "steal"}, {"", "steal", "steal", "steal"}},
  "5 6 7, 1 5 6 7 (14 timed, 7 disturbed, 7 count)", "the visits of a cell are one: six of all are enough")
tap.is(counted{{"steal", "steal", "steal", "steal", "steal", "steal", "steal"}, {}},
  ", 1 2 3 4 5 6 7 (14 timed, 7 disturbed, 7 count)", "and a visit of which nothing counts is no harm")
tap.is(counted{}, " (0 timed, 0 disturbed, 0 count)", "a cell without visits")
tap.is(stats.least(), 6, "six values have an interval of 95 %")
tap.is(samples.told{timed = 9, disturbed = 0, counted = 9, cells = 0}, "0 of 9 timed steps were disturbed", "in words")
tap.is(samples.told{timed = 9, disturbed = 2, counted = 7, cells = 0}, "2 of 9 timed steps were disturbed and do not count", "left out")
tap.is(samples.told{timed = 9, disturbed = 5, counted = 9, cells = 1},
  "5 of 9 timed steps were disturbed and do not count, except in 1 row, where fewer than 6 others remain", "counted all the same")
tap.is(samples.told{timed = 0, disturbed = 0, counted = 0, cells = 0}, nil, "nothing timed, nothing told")

local quiet = {seconds = 0.1, preempted = 10, steal_ms = 0, cpu_mhz = 3000, gpu_mhz = 1900, gpu_throttle = "power"}
local best = {cpu_mhz = 3500, gpu_mhz = 1980}
tap.is(evidence.flag(quiet, best), "", "a quiet moment, also at the power limit")
local function with(name, value)
  local sample = setmetatable({}, {__index = quiet})
  sample[name] = value
  return evidence.flag(sample, best)
end
tap.is(with("preempted", 11), "preempted", "more than 100 preemptions a second")
tap.is(with("seconds", 0.08), "preempted", "... of its own time")
tap.is(with("steal_ms", 10), "steal", "time that the host took")
tap.is(with("cpu_mhz", 2700), "cpu_clock", "a low clock")
tap.is(with("gpu_mhz", 1500), "gpu_clock", "of the GPU")
tap.is(with("gpu_throttle", "power thermal brake"), "thermal brake", "heat and brakes")
tap.is(evidence.steal_ms("cpu  1 2 3 4 5 6 7 8 9 10"), 80, "steal is the eighth number, in hundredths of a second")
tap.is(evidence.steal_ms("cpu  1 2 3"), nil, "or is not known")

-- ---- rounds
local plain = rounds.new({base = {}}, "run", 3)
tap.is(("%s %s %s %s"):format(plain:next(), plain:next(), plain:next(), plain:next()), "1 2 3 nil", "one visit each")
local function visits(base, noise)
  local order, self, random2 = {}, rounds.new({base = base}, "run", 3), stats.random(1)
  for k in function() return self:next() end do
    order[#order + 1] = k
    local row, seconds = {cell = "c" .. k, ["repeat"] = 1, version = "v"}, {}
    for i = 1, 4 do seconds[i] = 1 + (k == 2 and noise or 0) * random2(1000) / 1000 end
    self:visited(k, row, timed(table.unpack(seconds)), require "memtide.core".clock())
  end
  return order
end
local order = visits({rounds = 3, seed = 1}, 0)
tap.is(#order, 9, "three rounds are three visits of each")
for i = 1, 9, 3 do
  tap.is(table.concat(stats.sorted{order[i], order[i + 1], order[i + 2]}), "123", "in every round each cell once")
end
tap.is(table.concat(order), table.concat(visits({rounds = 3, seed = 1}, 0)), "in the order of the seed")
tap.is(#visits({confidence = 0.02}, 0), 6, "eight equal times are sure")
local noisy, of = visits({confidence = 0.1}, 1), {0, 0, 0}
for _, k in ipairs(noisy) do of[k] = of[k] + 1 end
tap.ok(of[1] == 2 and of[3] == 2 and of[2] > 4, "only the noisy cell is visited on: " .. table.concat(of, " "))
tap.is(#visits({confidence = 0.0001, time_limit = 1e-9}, 1), 3, "until its time is up")
tap.done()
