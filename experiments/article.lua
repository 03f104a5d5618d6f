-- The article's comparison: what each memory technique saves and costs with one small convolutional network, and the
-- article's claims about it. "About" a factor means within a fifth of it.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function ConvNet(width)
  return nn.Sequential{
    nn.Conv2d(3, width, 3),         nn.ReLU(),
    nn.Conv2d(width, 2 * width, 3), nn.ReLU(),
    nn.Flatten(),                   nn.Linear(2 * width * 28 * 28, 10),
  }
end

local base, memory, time = "baseline, batch 64", "peak_bytes", "step_ms"
local both = {case = base, of = {"activations_bytes", "activation_gradients_bytes"}}

return mt.experiment{
  name = "article", counting = "article", model = ConvNet(64), input = {3, 32, 32}, classes = 10,
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3}, batch = 64,
  cases = {
    {case = base},
    {case = "batch 32", batch = 32},
    {case = "half the channels", model = ConvNet(32), model_name = "SmallerConvNet"},
    {case = "mixed precision", precision = "amp_bf16"},
    {case = "accumulation 16 x 4", batch = 16, accumulate = 4},
    {case = "evaluation, no gradients", mode = "eval"},
    {case = "checkpointing", checkpoint = "sqrt"},
    {case = "in-place", inplace = true},
    {case = "SGD with momentum", optimizer = optim.SGD{lr = 1e-3, momentum = 0.9}},
  },
  claims = {
    {claim = "mixed precision about halves the memory", source = "mixed precision", of = memory,
      ratio = {"mixed precision", base}, expect = 0.5, tolerance = 0.2},
    {claim = "mixed precision is faster", source = "mixed precision", of = time, less = {"mixed precision", base}},
    {claim = "half the batch needs less memory", source = "batch size", of = memory, less = {"batch 32", base}},
    {claim = "a smaller network needs less memory", source = "model size", of = memory,
      less = {"half the channels", base}},
    {claim = "accumulation needs less memory than the large batch", source = "gradient accumulation", of = memory,
      less = {"accumulation 16 x 4", base}},
    {claim = "accumulation makes the large batch's update", source = "gradient accumulation", of = "loss_last",
      equal = {"accumulation 16 x 4", base}, tolerance = 1e-4},
    {claim = "evaluation without gradients needs less memory", source = "no_grad", of = memory,
      less = {"evaluation, no gradients", base}},
    {claim = "checkpointing needs less memory", source = "checkpointing", of = memory, less = {"checkpointing", base}},
    {claim = "checkpointing takes more time", source = "checkpointing", of = time, less = {base, "checkpointing"}},
    {claim = "the backward pass about doubles the activations", source = "the hand calculation",
      of = "activations_bytes", ratio = {both, base}, expect = 2, tolerance = 0.2},
    {claim = "Adam has twice the state of SGD with momentum", source = "the hand calculation", of = "optimizer_bytes",
      ratio = {base, "SGD with momentum"}, expect = 2, tolerance = 0.001},
    {claim = "in-place ReLU needs less memory", source = "in-place operations", of = memory, less = {"in-place", base}},
  },
  steps = 5, warmup = 2, rounds = 6, confidence = 0.02, time_limit = 30,
}
