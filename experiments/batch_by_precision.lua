-- How batch size, precision and gradient accumulation combine: every pair of settings, one row each.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local SimpleConvNet = nn.Sequential{
  nn.Conv2d(3, 64, 3),   nn.ReLU(),
  nn.Conv2d(64, 128, 3), nn.ReLU(),
  nn.Flatten(),          nn.Linear(128 * 28 * 28, 10),
}

return mt.experiment{
  name = "batch_by_precision", model = SimpleConvNet,
  input = {3, 32, 32}, classes = 10,
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3},
  sweep = {
    {"batch", {8, 16, 32, 64}},
    {"precision", {"fp32", "amp_bf16", "master_bf16", "bf16"}},
    {"accumulate", {1, 4}},
  },
  steps = 3, warmup = 1,
}
