-- The articles' comparison: what each memory technique saves and costs with one small convolutional network, and their
-- claims about it. "As listed" is a technique word by word; beside it stands a better form, where there is one.
-- "About" a factor means within a fifth of it. PyTorch's step of each: memtide predict experiments/pytorch.lua.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

-- The listing's network. Its first linear layer reads what two convolutions leave of an image of `side` pixels.
local function ConvNet(width, options)
  local o = options or {}
  local kernel, wrapped = o.kernel or 3, o.wrapped or function(layer) return layer end
  local side = (o.side or 32) - 2 * (kernel - 1)
  return nn.Sequential{
    wrapped(nn.Conv2d(3, width, kernel)),         nn.ReLU{inplace = o.inplace},
    wrapped(nn.Conv2d(width, 2 * width, kernel)), nn.ReLU{inplace = o.inplace},
    nn.Flatten(),                                 nn.Linear(2 * width * side * side, 10),
  }
end

local function PooledConvNet(width)
  return nn.Sequential{
    nn.Conv2d(3, width, 3),         nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(width, 2 * width, 3), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(),                   nn.Linear(2 * width * 6 * 6, 10),
  }
end

local ShorterConvNet = nn.Sequential{nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 30 * 30, 10)}

local base, memory, time = "baseline, batch 64", "peak_bytes", "step_ms"
local both = {case = base, of = {"activations_bytes", "activation_gradients_bytes"}}
local fp16, bf16 = "fp16 and GradScaler, as listed", "mixed precision"
local listed = "checkpoint of both convolutions, as listed"
local on_16_bits = "processors and GPUs with 16-bit instructions"
local function less(what, source, case) return {claim = what .. " needs less memory", source = source, of = memory, less = {case, base}} end

return mt.experiment{
  name = "article", counting = "article", model = ConvNet(64), input = {3, 32, 32}, classes = 10,
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3}, batch = 64,
  cases = {
    {case = base},
    {case = "batch 32", batch = 32},
    {case = "half the channels", model = ConvNet(32), model_name = "SmallerConvNet"},
    {case = "half the image's side", model = ConvNet(64, {side = 16}), input = {3, 16, 16}, model_name = "ConvNet of 16 x 16"},
    {case = "pooling after each convolution", model = PooledConvNet(64), model_name = "PooledConvNet"},
    {case = "one convolution", model = ShorterConvNet, model_name = "ShorterConvNet"},
    {case = "kernels of 1 x 1", model = ConvNet(64, {kernel = 1}), model_name = "ConvNet of 1 x 1 kernels"},
    {case = fp16, precision = "amp_fp16"},
    {case = bf16, precision = "amp_bf16"},
    -- with Adam's own 1e-8, which is 0 in fp16, its update is 0 / 0
    {case = "float16 throughout", precision = "fp16", optimizer = optim.Adam{lr = 1e-3, eps = 1e-4}},
    {case = "accumulation 16 x 4", batch = 16, accumulate = 4},
    {case = "evaluation, no gradients", mode = "eval"},
    {case = listed, model = ConvNet(64, {wrapped = nn.Checkpoint}), model_name = "ConvNet in checkpoints", checkpoint = "marked"},
    {case = "checkpointing", checkpoint = "sqrt"},
    {case = "in-place", model = ConvNet(64, {inplace = true}), model_name = "ConvNet in place"},
    {case = "SGD with momentum", optimizer = optim.SGD{lr = 1e-3, momentum = 0.9}},
  },
  claims = {
    {claim = "mixed precision about halves the memory", source = "mixed precision", of = memory,
      ratio = {bf16, base}, expect = 0.5, tolerance = 0.2, holds_on = on_16_bits},
    {claim = "... also with fp16 and GradScaler", source = "mixed precision", of = memory,
      ratio = {fp16, base}, expect = 0.5, tolerance = 0.2, holds_on = on_16_bits},
    {claim = "mixed precision is faster", source = "mixed precision", of = time, less = {bf16, base}, holds_on = on_16_bits},
    {claim = "... also with fp16 and GradScaler", source = "mixed precision", of = time, less = {fp16, base},
      holds_on = on_16_bits},
    {claim = "float16 throughout about halves the memory", source = "data types", of = memory,
      ratio = {"float16 throughout", base}, expect = 0.5, tolerance = 0.2, holds_on = on_16_bits},
    {claim = "a larger batch needs less memory", source = "batch size", of = memory, less = {base, "batch 32"}},
    less("half the batch", "batch size", "batch 32"),
    less("a smaller network", "model size", "half the channels"),
    less("a network of fewer layers", "model size", "one convolution"),
    less("a smaller kernel", "model size", "kernels of 1 x 1"),
    less("a smaller image", "image size", "half the image's side"),
    less("more pooling", "pooling", "pooling after each convolution"),
    {claim = "accumulation needs less memory than the large batch", source = "gradient accumulation", of = memory,
      less = {"accumulation 16 x 4", base}},
    {claim = "accumulation makes the large batch's update", source = "gradient accumulation", of = "loss_last",
      equal = {"accumulation 16 x 4", base}, tolerance = 1e-4},
    less("evaluation without gradients", "no_grad", "evaluation, no gradients"),
    less("a checkpoint of each convolution", "checkpointing", listed),
    less("checkpointing", "checkpointing", "checkpointing"),
    {claim = "checkpointing takes more time", source = "checkpointing", of = time, less = {base, "checkpointing"}},
    {claim = "the backward pass about doubles the activations", source = "the hand calculation",
      of = "activations_bytes", ratio = {both, base}, expect = 2, tolerance = 0.2},
    {claim = "Adam has twice the state of SGD with momentum", source = "the hand calculation", of = "optimizer_bytes",
      ratio = {base, "SGD with momentum"}, expect = 2, tolerance = 0.001},
    less("in-place ReLU", "in-place operations", "in-place"),
  },
  steps = 5, warmup = 2, rounds = 6, confidence = 0.02, time_limit = 30,
}
