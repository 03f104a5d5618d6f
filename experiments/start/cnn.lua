-- NAME: a convolutional network with residual blocks.
--   memtide predict NAME.lua      the memory of each setting; nothing is computed
--   memtide run NAME.lua          each setting trained for a few steps; the rows go to NAME.csv
--   memtide explain NAME.lua      where the memory goes
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

-- A module with a forward function is an nn.Graph: the table is PyTorch's __init__, `forward` its forward.
local function Block(channels)
  return nn.Graph{
    conv1 = nn.Conv2d(channels, channels, 3, {padding = 1, bias = false}), bn1 = nn.BatchNorm2d(channels),
    conv2 = nn.Conv2d(channels, channels, 3, {padding = 1, bias = false}), bn2 = nn.BatchNorm2d(channels),
    relu = nn.ReLU(),
    forward = function(self, x)
      local y = self.relu(self.bn1(self.conv1(x)))
      return self.relu(self.bn2(self.conv2(y)) + x)
    end,
  }
end

return mt.experiment{
  name = "NAME",
  model = nn.Sequential{
    nn.Conv2d(3, 64, 3, {padding = 1}), nn.ReLU(),
    Block(64), Block(64),
    nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, {padding = 1}), nn.ReLU(),
    Block(128), Block(128),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
  },
  input = {3, 32, 32}, classes = 10, -- one sample without the batch; random data, unless `data` names some:
  -- data = mt.data.cifar10{"data_batch_1.bin"},

  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1, momentum = 0.9, weight_decay = 5e-4},

  -- every combination of these is a cell, and a row of the CSV file (memtide help settings lists what can stand here)
  sweep = {
    {"batch", {32, 128}},
    {"precision", {"fp32", "amp_bf16"}},
    {"checkpoint", {"none", "sqrt"}}, -- forget activations, and compute them again in the backward pass
  },
  steps = 5, warmup = 1,
}
