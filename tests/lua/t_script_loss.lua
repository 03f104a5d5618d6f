-- nn.Loss: a loss that a script writes as a function of logits and labels, beside the built-in one that it stands for.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local BATCH, FEATURES, CLASSES, STEPS = 6, 40, 5, 8

local function cross_entropy(x, y)
  local rescaled = x - x:max(-1, true)
  return nn.log(nn.exp(rescaled):sum(-1, true)) - rescaled:gather(-1, y:unsqueeze(-1))
end

local function network() return nn.Sequential{nn.Linear(FEATURES, 96), nn.Tanh(), nn.Linear(96, CLASSES)} end

-- The last loss and the first layer's weights after training
local function train(loss, precision)
  local trainer <close> = assert(mt.trainer{model = network(), input = {FEATURES}, batch = BATCH, loss = loss, seed = 3,
    optimizer = optim.SGD{lr = 0.1}, precision = precision})
  local last
  for s = 1, STEPS do
    local x, y = {}, {}
    for i = 1, BATCH * FEATURES do x[i] = math.cos(0.37 * i + s) end
    for i = 1, BATCH do y[i] = (i + s) % CLASSES end
    last = assert(trainer:step(x, y))
  end
  return last, trainer:read "0.weight"
end

local function farthest(a, b)
  local most = 0
  for i = 1, #a do
    local d = math.abs(a[i] - b[i])
    if d > most or d ~= d then most = d end -- a NaN, too
  end
  return most
end

for _, case in ipairs{{"fp32", 2e-6}, {"amp_bf16", 2e-2}} do
  local precision, tolerance = table.unpack(case)
  for _, reduction in ipairs{"mean", "sum"} do
    local loss, weights = train(nn.CrossEntropyLoss{reduction = reduction}, precision)
    local own, found = train(nn.Loss(cross_entropy, {reduction = reduction}), precision)
    tap.ok(math.abs(own - loss) <= tolerance * math.abs(loss), ("%s, %s: loss %g"):format(precision, reduction, own))
    tap.ok(farthest(found, weights) <= tolerance, ("%s, %s: the weights"):format(precision, reduction))
  end
end

local _, half = train(0.5 * nn.CrossEntropyLoss(), "fp32")
local _, own = train(0.5 * nn.Loss(cross_entropy), "fp32")
tap.ok(farthest(half, own) <= 2e-6, "times a number")

-- ---- logits of sequences, (N, T, C): the same as their rows

local function sequences(last, loss)
  local model = nn.Sequential{nn.Linear(FEATURES, 96), nn.Tanh(), nn.Linear(96, CLASSES), last}
  local trainer <close> = assert(mt.trainer{model = model, input = {3, FEATURES}, batch = BATCH, loss = loss, seed = 3,
    optimizer = optim.SGD{lr = 0.1}})
  local x, y, found = {}, {}, nil
  for i = 1, BATCH * 3 * FEATURES do x[i] = math.cos(0.37 * i) end
  for i = 1, BATCH * 3 do y[i] = i % CLASSES end
  for _ = 1, STEPS do found = assert(trainer:step(x, y)) end
  return found, trainer:read "0.weight"
end

local rows_loss, rows = sequences(nn.Flatten(0, 1), nn.CrossEntropyLoss())
local whole_loss, whole = sequences(nn.Identity(), nn.Loss(cross_entropy))
tap.ok(math.abs(rows_loss - whole_loss) <= 2e-6, ("(N, T, C): loss %g"):format(whole_loss))
tap.ok(farthest(rows, whole) <= 2e-6, "the weights")
tap.raises("a row of classes for each label, found (18, 5) for (6, 3)", "labels of another shape", function()
  return sequences(nn.Identity(), nn.Loss(function(x, y) return x:flatten(0, 1):gather(-1, y:unsqueeze(-1)) end))
end)
tap.raises("expected the last dimension", "unsqueeze(1) of labels (N, T)", function()
  return sequences(nn.Identity(), nn.Loss(function(x, y) return x:gather(-1, y:unsqueeze(1)) end))
end)

-- ---- mistakes, with the line of the script
local function wrong(expected, what, forward)
  tap.raises(expected, what, function() return train(nn.Loss(forward)) end)
end
tap.raises("Loss: forward: expected a function", "no function", nn.Loss)
wrong("labels have no method float", "labels are no numbers", function(x, y) return x - y:float() end)
wrong(tap.line(), "says the line", function(x, y) return x - y:float() end)
wrong("expected y:unsqueeze(-1) of the labels", "gather by another value", function(x) return x:gather(-1, x) end)
wrong("expected the last dimension, -1, found 0", "gather along another dimension", function(x, y) return x:gather(0, y:unsqueeze(-1)) end)
tap.done()
