-- Where the time of a step goes: every op has its time, its cost by the one rule, and its layer.
local tap = dofile "tests/tap.lua"
local cards = require "memtide.net.cards"
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local mt = require "memtide"
local profile = require "memtide.net.profile"
local util = require "memtide.base.util"
local nn, optim = mt.nn, mt.optim

local function compiled(more)
  local all = {name = "profile", input = {3, 12, 12}, classes = 10, batch = 4, loss = nn.CrossEntropyLoss(), steps = 5,
    model = nn.Sequential{nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 10)}, optimizer = optim.Adam{lr = 1e-3}}
  for key, value in pairs(more or {}) do all[key] = value end
  return cell.compile(cell.build(mt.experiment(all):cells()[1]))
end

-- ---- the roof is no less than what was seen of the machine
local one = compiled()
local roof = profile.roof(one)
tap.ok(roof.flops > 1e7 and roof.flops < 1e16, "operations per second", roof.flops)
tap.ok(roof.bytes > 1e7 and roof.bytes < 1e15, "bytes per second", roof.bytes)
tap.has(roof.flops_source, "matrices in fp32", "of a product in the step's type")
tap.has(profile.roof(compiled{precision = "amp_bf16"}).flops_source, "matrices in bf16", "whatever the precision calls it")
local peaks_of = cards.peaks
cards.peaks = function() return {fp32 = 7, bf16 = 9, bytes = 11} end
local card = profile.roof(compiled{precision = "amp_bf16"})
cards.peaks = peaks_of
tap.is(card.flops .. " " .. card.bytes, "9 11", "a card's is its data sheet's, in the step's type")

-- ---- timed steps compute what others do
local x, t = {}, {}
for i = 1, 2 * 4 * 3 * 12 * 12 do x[i] = math.sin(i) end
for i = 1, 2 * 4 do t[i] = i % 10 end

-- The losses of four steps, of which timed[i] says how they are run, and weights after them; bytes at the peak and after
local function trained(more, timed)
  local self, out = compiled(more), {}
  local runtime <close> = util.must(core.runtime{programs = {self.program}, seed = 1})
  for i = 1, 4 do
    local step = timed[i] and runtime.step_timed or runtime.step
    out[i] = ("%a"):format((util.must(step(runtime, 1, x, t))))
  end
  for _, value in ipairs((runtime:read "3.weight")) do out[#out + 1] = ("%a"):format(value) end
  local memory = runtime:memory()
  return table.concat(out, " "), memory.peak.bytes .. " " .. memory.used
end

for what, more in pairs{accumulation = {accumulate = 2}, checkpointing = {accumulate = 2, checkpoint = "sqrt"},
  ["loss scaling"] = {accumulate = 2, precision = "amp_fp16"}} do
  local values, memory = trained(more, {})
  local timed_values, timed_memory = trained(more, {false, true, false, true})
  tap.ok(timed_values == values, what .. ": timed steps compute what others do, and so do those after them")
  tap.is(timed_memory, memory, what .. ": in the same memory")
end

-- ---- every op
local found = profile.measure(one, roof)
local ops, flops, bytes, seconds, path = one.program:ops(), 0, 0, 0, {}
tap.is(#found.ops, #ops, "each op of the program")
local wrong = 0
for i, op in ipairs(found.ops) do
  flops, bytes, seconds, path[op.layer] = flops + op.flops, bytes + op.bytes, seconds + op.seconds, op.phase
  if op.kind ~= ops[i].kind or op.path ~= ops[i].path or op.op ~= i - 1 then wrong = wrong + 1 end
  if op.kind == "view" and op.seconds_p90 > 0 then wrong = wrong + 1 end
  if op.seconds_min > op.seconds or op.seconds > op.seconds_p90 then wrong = wrong + 1 end
  if op.seconds > 0 and math.abs(op.flops_per_s * op.seconds - op.flops) > 1e-6 * op.flops then wrong = wrong + 1 end
  if op.seconds > 0 then
    local least = math.max(op.flops / roof.flops, op.bytes / roof.bytes)
    if math.abs(op.roof_share * op.seconds - least) > 1e-9 * least then wrong = wrong + 1 end
  end
end
tap.is(wrong, 0, "has its name, times in order, and rates that follow from time and cost")
local step_flops, step_bytes = one.program:cost()
tap.near(flops, step_flops, 1e-6 * step_flops, "their operations are the step's")
tap.near(bytes, step_bytes, 1e-6 * step_bytes, "and their bytes")
tap.near(found.ops_seconds, seconds, 1e-12, "their times add up")
tap.ok(seconds > 0 and found.step.seconds > 0 and seconds < 20 * found.step.seconds and found.step.seconds < 20 * seconds,
  "to about the step's time", ("%g and %g"):format(seconds, found.step.seconds))
tap.ok(found.timing_seconds >= 0 and found.timing_seconds < 1e-4, "of which the timing itself is taken off")
for _, name in ipairs{"0", "3", "loss"} do tap.ok(path[name], ("ops belong to %s"):format(name)) end
tap.ok(not path["0.weight"] and not path["3.bias"], "the update of a parameter belongs to its layer")
tap.is(path["0"] .. path["3"], "updateupdate", "as its last phase")

-- ---- micro-batches
local many = compiled{accumulate = 3}
local of_many, times = profile.measure(many, roof), {}
flops = 0
for _, op in ipairs(of_many.ops) do
  flops, times[op.phase] = flops + op.flops, op.times
end
tap.is(times.forward .. " " .. times.update, "3 1", "the body runs for each, the update once")
tap.near(flops, (many.program:cost()), 1e-6 * flops, "and counts so")

-- ---- without a roof there is no share of it
local unknown = profile.rates({seconds = 2, flops = 8, bytes = 4}, {flops = 1})
tap.is(unknown.flops_per_s .. " " .. unknown.bytes_per_s .. " " .. tostring(unknown.roof_share), "4.0 2.0 nil", "rates alone")
local known = profile.rates({seconds = 2, flops = 8, bytes = 4}, {flops = 8, bytes = 8})
tap.is(known.roof_share .. " " .. known.bound, "0.5 compute", "the larger one of the two times")
tap.is(profile.rates({seconds = 2, flops = 1, bytes = 4}, {flops = 8, bytes = 8}).bound, "memory", "bounds it")

-- ---- evaluation
local eval = profile.measure(compiled{mode = "eval"}, roof)
for _, op in ipairs(eval.ops) do tap.is(op.phase, "forward", "evaluation is a forward pass: " .. op.kind) end
tap.done()
