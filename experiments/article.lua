-- The article's comparison: one small convolutional network, and what each memory technique saves and costs.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function ConvNet(width)
  return nn.Sequential{
    nn.Conv2d(3, width, 3),         nn.ReLU(),
    nn.Conv2d(width, 2 * width, 3), nn.ReLU(),
    nn.Flatten(),                   nn.Linear(2 * width * 28 * 28, 10),
  }
end

return mt.experiment{
  name = "article",
  model = ConvNet(64),
  input = {3, 32, 32}, classes = 10,
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3},
  cases = {
    {case = "baseline, batch 64", batch = 64},
    {case = "batch 32", batch = 32},
    {case = "half the channels", batch = 64, model = ConvNet(32), model_name = "SmallerConvNet"},
    {case = "mixed precision", batch = 64, precision = "amp_bf16"},
    {case = "accumulation 16 x 4", batch = 16, accumulate = 4},
    {case = "evaluation, no gradients", batch = 64, mode = "eval"},
    {case = "checkpointing", batch = 64, checkpoint = "sqrt"},
    {case = "in-place", batch = 64, inplace = true},
  },
  steps = 5, warmup = 2,
}
