-- NAME: a multilayer perceptron.
--   memtide predict NAME.lua      the memory of each setting; nothing is computed
--   memtide run NAME.lua          each setting trained for a few steps; the rows go to NAME.csv
--   memtide explain NAME.lua      where the memory goes
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

return mt.experiment{
  name = "NAME",

  -- the network: names, order and defaults of the arguments are PyTorch's
  model = nn.Sequential{
    nn.Linear(784, 512), nn.ReLU(),
    nn.Linear(512, 512), nn.ReLU(),
    nn.Linear(512, 10),
  },
  input = {784}, classes = 10, -- one sample without the batch; random data, unless `data` names some:
  -- data = mt.data.idx{images = "train-images-idx3-ubyte.gz", labels = "train-labels-idx1-ubyte.gz"},

  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3},

  -- every combination of these is a cell, and a row of the CSV file (memtide help settings lists what can stand here)
  sweep = {
    {"batch", {64, 256, 1024}},
    {"precision", {"fp32", "amp_bf16"}},
  },
  steps = 10, warmup = 2,
}
