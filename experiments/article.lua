-- The article's comparison: one small convolutional network, what each memory technique saves and costs, and what the
-- article claims of it.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function ConvNet(width)
  return nn.Sequential{nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3), nn.ReLU(),
    nn.Flatten(), nn.Linear(2 * width * 28 * 28, 10)}
end

local base, both, of_article = "baseline, batch 64", {"activations_bytes", "activation_gradients_bytes"}, "the article: "
local memory, time = "peak_bytes", "step_ms"
local function claim(section, text, of, relation)
  relation.claim, relation.source, relation.of = text, of_article .. section, of
  return relation
end

return mt.experiment{
  name = "article", model = ConvNet(64), input = {3, 32, 32}, classes = 10,
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
    {case = "SGD with momentum", optimizer = optim.SGD{lr = 1e-2, momentum = 0.9}},
  },
  claims = {
    claim("mixed precision", "mixed precision halves the memory", memory, {ratio = {"mixed precision", base}, expect = 0.5, tolerance = 0.2}),
  },
  steps = 5, warmup = 2,
}
