-- memtide profile: the time of each op of real steps, rolled up by layer, beside the machine's roof.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local first_cell = require "memtide.cli.first_cell"
local profile = require "memtide.net.profile"
local nn, optim = mt.nn, mt.optim

local experiment = mt.experiment{
  name = "timed", input = {3, 16, 16}, classes = 10, batch = 8,
  model = nn.Sequential{nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 10)},
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3}, accumulate = 2, steps = 3, warmup = 1,
}
local first = first_cell(experiment, {set = {}, say = function() end})
local roof = profile.roof(first)
tap.ok(roof.flops > 1e8, "operations a second were measured", roof.flops)
tap.ok(roof.bytes > 1e8, "and bytes a second", roof.bytes)

local found = profile.measure(first, roof)
tap.is(found.steps, 3, "as many steps as the script says")
local sum, kinds, flops = 0, {}, 0
for _, op in ipairs(found.ops) do
  sum, kinds[op.kind] = sum + op.seconds, true
  flops = flops + (op.flops or 0)
  tap.ok(op.seconds >= 0 and op.seconds_min <= op.seconds_p90, ("op %d, %s: its times are in order"):format(op.op, op.kind))
end
tap.near(found.ops_seconds, sum, 1e-12, "all ops are the sum of each")
tap.ok(kinds.conv2d and kinds.conv2d_dw and kinds.linear and kinds.adam, "ops of all phases were timed")
-- forward, dw and dx of two micro-batches of 8; the first layer's input needs no gradient
local conv, linear = 2 * 8 * 16 * 14 * 14 * 27, 2 * 8 * 16 * 14 * 14 * 10
tap.ok(flops >= 2 * (2 * conv + 3 * linear), "their operations are those of two micro-batches", flops)
tap.ok(found.step.seconds > 0 and found.step.seconds_min <= found.step.seconds_p90, "steps were timed as a whole")
tap.done()
