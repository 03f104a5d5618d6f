-- What an optimizer's state costs: nothing for SGD, one tensor per parameter with momentum, two for Adam.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

return mt.experiment{
  name = "optimizers",
  model = nn.Sequential{
    nn.Conv2d(3, 64, 3),   nn.ReLU(),
    nn.Conv2d(64, 128, 3), nn.ReLU(),
    nn.Flatten(),          nn.Linear(128 * 28 * 28, 10),
  },
  input = {3, 32, 32}, classes = 10, batch = 16,
  loss = nn.CrossEntropyLoss(),
  cases = {
    {case = "SGD", optimizer = optim.SGD{lr = 0.01}},
    {case = "SGD with momentum", optimizer = optim.SGD{lr = 0.01, momentum = 0.9}},
    {case = "Adam", optimizer = optim.Adam{lr = 1e-3}},
    {case = "AdamW", optimizer = optim.AdamW{lr = 1e-3}},
  },
  steps = 5, warmup = 1,
}
