-- The article's techniques twice: as memtide executes them, and as eager PyTorch would on an A100 with 80 GB. PyTorch's
-- cells are predicted and never run; predicted_peak_bytes is its max_memory_allocated.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function ConvNet(width, inplace)
  return nn.Sequential{
    nn.Conv2d(3, width, 3),         nn.ReLU{inplace = inplace},
    nn.Conv2d(width, 2 * width, 3), nn.ReLU{inplace = inplace},
    nn.Flatten(),                   nn.Linear(2 * width * 28 * 28, 10),
  }
end

-- torch.utils.checkpoint of all that comes before the Linear layer
local function CheckpointedConvNet(width)
  return nn.Sequential{
    nn.Checkpoint(nn.Sequential{nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3), nn.ReLU()}),
    nn.Flatten(), nn.Linear(2 * width * 28 * 28, 10),
  }
end

local base, of = "baseline, batch 64", "predicted_peak_bytes"
local function memtide(case) return {case = case, framework = "memtide"} end
local function pytorch(case) return {case = case, framework = "pytorch"} end

return mt.experiment{
  name = "pytorch", model = ConvNet(64), input = {3, 32, 32}, classes = 10,
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3}, batch = 64,
  cases = {
    {case = base},
    {case = "batch 32", batch = 32},
    {case = "half the channels", model = ConvNet(32), model_name = "SmallerConvNet"},
    {case = "mixed precision", precision = "amp_bf16"},
    {case = "accumulation 16 x 4", batch = 16, accumulate = 4},
    {case = "evaluation, no gradients", mode = "eval"},
    {case = "checkpointing", model = CheckpointedConvNet(64), model_name = "CheckpointedConvNet", checkpoint = "marked"},
    {case = "in-place", model = ConvNet(64, true), model_name = "InplaceConvNet"},
    {case = "SGD with momentum", optimizer = optim.SGD{lr = 1e-3, momentum = 0.9}},
  },
  sweep = {{"framework", {"memtide", "pytorch"}}},
  claims = {
    {claim = "eager PyTorch needs more memory for the same step", of = of, less = {memtide(base), pytorch(base)}},
    {claim = "... also where nothing is trained", of = of,
      less = {memtide "evaluation, no gradients", pytorch "evaluation, no gradients"}},
    {claim = "mixed precision takes a third off PyTorch's", of = of,
      ratio = {pytorch "mixed precision", pytorch(base)}, expect = 2 / 3, tolerance = 0.1},
    {claim = "checkpointing both convolutions saves PyTorch less than a hundredth", of = of,
      equal = {pytorch "checkpointing", pytorch(base)}, tolerance = 0.01},
    {claim = "small micro-batches save memory in PyTorch, too", of = of,
      less = {pytorch "accumulation 16 x 4", pytorch(base)}},
  },
  steps = 2, warmup = 1,
}
