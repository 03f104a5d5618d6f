-- What an optimizer's states cost: none for SGD, one number per parameter with momentum, up to three for others, for
-- Adafactor one per row and one per column, for states of 8 bits a quarter of the bytes, and for paged ones those of one parameter
-- at a time.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function numbers(case, n)
  return {claim = ("%s keeps %d for each parameter"):format(case, n), source = "PyTorch's states",
    of = "optimizer_bytes", ratio = {case, "SGD with momentum"}, expect = n, tolerance = 1e-3}
end

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
    {case = "Adafactor", optimizer = optim.Adafactor{lr = 1e-2}},
    {case = "Lion", optimizer = optim.Lion{lr = 1e-4}},
    {case = "Adagrad", optimizer = optim.Adagrad{lr = 1e-3}},
    {case = "RMSprop", optimizer = optim.RMSprop{lr = 1e-3}},
    {case = "RMSprop with momentum", optimizer = optim.RMSprop{lr = 1e-3, momentum = 0.9}},
    {case = "RMSprop with momentum, centered", optimizer = optim.RMSprop{lr = 1e-3, momentum = 0.9, centered = true}},
    {case = "Adam", optimizer = optim.Adam{lr = 1e-3}},
    {case = "AdamW", optimizer = optim.AdamW{lr = 1e-3}},
    {case = "AdamW8bit", optimizer = optim.AdamW8bit{lr = 1e-3}},
    {case = "PagedAdamW", optimizer = optim.PagedAdamW{lr = 1e-3}},
    {case = "AdamW with amsgrad", optimizer = optim.AdamW{lr = 1e-3, amsgrad = true}},
  },
  claims = {
    {claim = "Adafactor keeps less than one for each parameter", source = "PyTorch's states", of = "optimizer_bytes",
      less = {"Adafactor", "SGD with momentum"}},
    {claim = "states of 8 bits have a quarter of the bytes, and 4 more for each 256 numbers", of = "optimizer_bytes",
      source = "torchao's states", ratio = {"AdamW8bit", "AdamW"}, expect = 0.25 + 1 / 256, tolerance = 0.01},
    {claim = "paged states change no loss", of = "loss_last", equal = {"PagedAdamW", "AdamW"}},
    {claim = "... and need less of the device", of = "peak_bytes", less = {"PagedAdamW", "AdamW"}},
    numbers("Lion", 1), numbers("Adagrad", 1), numbers("RMSprop", 1), numbers("RMSprop with momentum", 2),
    numbers("RMSprop with momentum, centered", 3), numbers("Adam", 2), numbers("AdamW", 2),
    numbers("AdamW with amsgrad", 3),
  },
  steps = 5, warmup = 1,
}
