-- Where the time of a cell's steps goes: the time of each op inside of real steps, beside what the op computes and moves
-- by the one rule of costs (core/program/cost.c), and the roof: what the machine does per second at most.
--
-- Steps that are timed as a whole and steps in which every op is timed by itself take turns, so that both meet the same
-- machine. Of every op the median over the steps counts, without the time that the timing of nothing takes.
local cards = require "memtide.net.cards"
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local nn = require "memtide.net.nn"
local optim = require "memtide.net.optim"
local settings = require "memtide.net.settings"
local stats = require "memtide.results.stats"
local util = require "memtide.base.util"

local profile = {}

-- ---- the roof

-- The sides of the products that are tried, each twice the one before; one that would take longer than ENOUGH seconds, at
-- the rate of the last one, is not: all of this takes a second at most.
local SIDES, TURNS, ENOUGH = {256, 512, 1024, 2048, 4096}, 5, 0.1

-- Seconds of the fastest product of two matrices with n rows and columns, as a Linear layer computes it in this
-- precision, and its operations.
local function product(device, precision, n)
  local network <close> = nn.network(nn.nn.Linear(n, n, {bias = false}), nn.nn.MSELoss(), n, {n})
  local values = {optimizer = optim.optim.SGD{}, mode = "eval", precision = precision}
  local program <close> = util.must(core.compile(network, values, device))
  local runtime <close> = util.must(core.runtime{programs = {program}, seed = 1})
  local half = string.pack("f", 0.5):rep(n * n)
  local least, flops = math.huge, 0
  for _ = 1, TURNS + 1 do -- the first one touches memory for the first time
    local _, seconds = util.must(runtime:step_timed(1, half, half))
    for i, op in ipairs(program:ops()) do
      if op.kind == "linear" then least, flops = math.min(least, seconds[i]), op.flops end
    end
  end
  return least, flops
end

-- What the cell's device does per second at most, in the cell's precision: {flops, bytes, flops_source, bytes_source}.
-- On a CPU both are measured now: the fastest of several products of large matrices, by the kernels that steps use, and
-- the fastest of several copies of more than the caches hold. A card's are those of its data sheet; without one, what
-- cannot be measured is nil.
function profile.roof(self)
  local device = cell.device(self.values.device)
  local info = util.must(device:info())
  local peaks, precision = cards.peaks(info.name), self.values.precision
  if peaks then
    local sheet = "the card's data sheet"
    return {flops = peaks[precision:match "%w+$"], bytes = peaks.bytes, flops_source = sheet, bytes_source = sheet}
  end
  local best, side = 0, nil
  for _, n in ipairs(SIDES) do
    local seconds, flops = product(device, precision, n)
    if flops / seconds > best then best, side = flops / seconds, n end
    if 8 * seconds > ENOUGH then break end
  end
  local bytes, problem, code = device:stream()
  if problem then error(util.failure(problem, code), 0) end
  return {flops = best, bytes = bytes, flops_source = ("a product of %d x %d matrices in %s, measured now"):format(side, side,
    settings.type_of[precision]), bytes_source = bytes and "a copy of memory that fits no cache, measured now" or "not measured"}
end

-- ---- the steps

-- The layer that an op belongs to: the longest beginning of its path that is a layer's path. The update of a parameter
-- has the parameter's name as its path. "" is the step itself, or a network of a single layer.
local function layer_of(path, layers)
  local rest = path
  while rest ~= "" and not layers[rest] do rest = rest:match "^(.*)%.[^.]*$" or "" end
  return layers[rest] and rest or path
end

local function layers_by_path(self)
  local found = {}
  for _, layer in ipairs(self.network:layers()) do found[layer.path] = layer end
  return found
end

-- {seconds, seconds_min, seconds_p90} of a list of seconds, of which each holds `timing` seconds for the timing itself.
local function summary(list, timing)
  local sorted = stats.sorted(list)
  local function less(seconds) return math.max(seconds - timing, 0) end
  return {seconds = less(util.quantile(sorted, 0.5)), seconds_min = less(sorted[1]),
    seconds_p90 = less(util.quantile(sorted, 0.9))}
end

-- Sets what a time, operations and bytes come to: flops_per_s, bytes_per_s, roof_share (the least time at the roof divided
-- by the time) and bound ("compute" or "memory": what that least time is of). What is not known is nil.
function profile.rates(one, roof)
  if one.seconds <= 0 then return one end
  one.flops_per_s, one.bytes_per_s = one.flops / one.seconds, one.bytes / one.seconds
  if roof.flops and roof.flops > 0 and roof.bytes then
    local compute, memory = one.flops / roof.flops, one.bytes / roof.bytes
    one.roof_seconds = one.roof_seconds or math.max(compute, memory)
    one.roof_share = one.roof_seconds / one.seconds
    one.bound = compute >= memory and "compute" or "memory"
  end
  return one
end

-- The ops with their times, in the program's order; times: a list of seconds for each.
local function ops_of(self, times, timing, roof)
  local list, layers = {}, layers_by_path(self)
  for i, op in ipairs(self.program:ops()) do
    local one = summary(times[i], timing * op.times)
    one.op, one.kind, one.path, one.phase, one.times = i - 1, op.kind, op.path, op.phase, op.times
    one.layer, one.recomputed = layer_of(op.path, layers), op.recomputed
    one.flops, one.bytes = op.flops * op.times, op.traffic * op.times
    list[i] = profile.rates(one, roof)
  end
  return list
end

-- Runs the compiled cell: its warm-up, then its steps twice, as a whole and op by op in turns.
-- -> {step = {seconds, seconds_min, seconds_p90} of whole steps, timed: the same of the sums of the ops of a step,
-- ops = {...}, ops_seconds: the sum of their medians, roof_seconds: the sum of their least times at the roof, 0 where that is
-- not known, timing_seconds: of one timing, taken off, steps}
function profile.measure(self, roof)
  settings.check_one_rank("profile", self.values)
  local device = cell.device(self.values.device)
  local loader <close> = util.must(cell.loader(self))
  local runtime <close> = util.must(core.runtime{programs = {self.program}, allocator = self.values.allocator,
    memory = self.memory, seed = self.seed})
  local whole, sums, times = {}, {}, {}
  for i in ipairs(self.program:ops()) do times[i] = {} end
  for _ = 1, self.warmup do util.must(runtime:step(1, loader)) end
  local timing = util.must(runtime:timing_seconds())
  for k = 1, self.steps do
    local _, _, _, ops = util.must(runtime:step(1, loader))
    whole[k] = ops
    local _, of_ops = util.must(runtime:step_timed(1, loader))
    local sum = 0
    for i, list in ipairs(times) do
      list[k] = of_ops[i]
      sum = sum + of_ops[i]
    end
    sums[k] = sum
  end
  local out = {step = summary(whole, 0), timed = summary(sums, 0), timing_seconds = timing, steps = self.steps,
    ops_seconds = 0, roof_seconds = 0, device = util.must(device:info())}
  out.ops = ops_of(self, times, timing, roof)
  for _, op in ipairs(out.ops) do
    out.ops_seconds, out.roof_seconds = out.ops_seconds + op.seconds, out.roof_seconds + (op.roof_seconds or 0)
  end
  return out
end

return profile
