-- The hand calculation counts in the types in which a precision stores things, and where the step's program has a
-- buffer of the same thing the two agree.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local explain = require "memtide.cli.explain"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function explained(more)
  local all = {name = "explain", input = {3, 32, 32}, classes = 10, batch = 64, loss = nn.CrossEntropyLoss(),
    model = nn.Sequential{nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 30 * 30, 10)},
    optimizer = optim.Adam{lr = 1e-3}}
  for key, value in pairs(more) do all[key] = value end
  local one = cell.compile(cell.build(mt.experiment(all):cells()[1]))
  local rows = explain.layers(one)
  return rows, explain.article(one, rows), one
end

local parameters = 1792 + 576010
local image, output = 64 * 3 * 32 * 32, 64 * 64 * 30 * 30
-- by precision: bytes of a weight, of a number of the optimizer's state, of an output, of an input
for precision, bytes in pairs{fp32 = {4, 4, 4, 4}, tf32 = {4, 4, 4, 4},
  amp_bf16 = {4, 4, 2, 4}, amp_fp16 = {4, 4, 2, 4}, master_bf16 = {2, 4, 2, 2}, master_fp16 = {2, 4, 2, 2},
  bf16 = {2, 2, 2, 2}, fp16 = {2, 2, 2, 2}} do
  local weight, state, value, input = table.unpack(bytes)
  local rows, sum, one = explained{precision = precision}
  tap.is(rows[1].parameter_bytes, 1792 * weight, precision .. ": a layer's parameters")
  tap.is(rows[1].activation_bytes, output * value, precision .. ": its output")
  tap.is(rows[3].activation_bytes, output * value, precision .. ": one that is only seen otherwise")
  tap.is(sum.weights, parameters * weight, precision .. ": weights")
  tap.is(sum.gradients, parameters * weight, precision .. ": gradients")
  tap.is(sum.optimizer, 2 * parameters * state, precision .. ": the optimizer's state")
  tap.is(sum.activations, output * value, precision .. ": activations")
  tap.is(sum.input, image * input, precision .. ": the input")
  for _, row in ipairs(explain.compare(one, sum)) do
    tap.ok(row.article == row.step or row.reason ~= "", ("%s: explain says why %s differs"):format(precision, row.name))
  end
end

-- ---- what stays fp32 in 16 bits is counted as that
local rows, sum = explained{precision = "fp16", model = nn.Sequential{nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8),
  nn.Flatten(), nn.Linear(8 * 30 * 30, 10)}}
tap.is(rows[2].parameter_bytes, 16 * 4, "normalisation keeps its parameters in fp32")
tap.is(rows[2].activation_bytes, 64 * 8 * 30 * 30 * 2, "and not its output")
tap.is(sum.weights, 2 * (224 + 72010) + 4 * 16, "which the sum knows")
tap.is(sum.optimizer, 2 * sum.weights, "and that of the states")
local eight = select(2, explained{precision = "fp16", optimizer = optim.Adam8bit{lr = 1e-3}})
local wide = select(2, explained{optimizer = optim.Adam8bit{lr = 1e-3}})
tap.ok(eight.optimizer <= wide.optimizer and eight.optimizer > parameters, "states of 8 bits have 8 bits in 16, too")
local tokens = explained{precision = "bf16", input = {16}, classes = 4,
  model = nn.Sequential{nn.Embedding(10, 6), nn.Flatten(), nn.Linear(96, 4)}}
tap.is(tokens[1].activation_bytes, 64 * 16 * 6 * 2, "what an embedding gives")
tap.done()
