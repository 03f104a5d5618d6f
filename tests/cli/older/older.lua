-- The script of the files beside it.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "older", input = {3, 8, 8}, classes = 4, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  model = function(s)
    if s.case == "raises" then error("on purpose, with a comma") end
    return nn.Sequential{nn.Conv2d(3, s.width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(s.width * 36, 4)}
  end,
  cases = {
    {case = "fine"}, {case = "loses", optimizer = optim.SGD{lr = 1e30}}, {case = "raises"},
    {case = "wide", batch = 1000}, {case = "tight", checkpoint = 1024},
  },
  sweep = {{"width", {8}}, {"biased", {true, false}}},
  steps = 6, warmup = 1,
}
