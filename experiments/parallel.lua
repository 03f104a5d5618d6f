-- A small GPT that several ranks train together, in every way in which they can: each needs less memory than one rank, and none
-- changes what is learnt. Two ranks, or as many as are said:
--   memtide run experiments/parallel.lua -- 4
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local ranks = math.tointeger(tonumber(... or 2))
if not ranks or ranks < 2 or ranks % 2 ~= 0 then error("expected an even number of ranks, found " .. tostring(...)) end
local most = math.max(ranks, 4) -- half of them divide products, the other half have other samples

-- Each case trains on `ranks` times `batch` samples a step.
local cases = {
  {case = "one rank", accumulate = ranks},
  {case = "data parallel", world = ranks},
  {case = "ZeRO-1", world = ranks, zero = 1},
  {case = "ZeRO-2", world = ranks, zero = 2},
  {case = "ZeRO-3", world = ranks, zero = 3},
  {case = "tensor", world = ranks, mesh = {tensor = ranks}, accumulate = ranks},
  {case = "tensor and ZeRO-3", world = most, mesh = {data = 2, tensor = most // 2}, zero = 3, accumulate = ranks // 2},
}
-- and these on twice as many: gradients of several micro-batches stay until the update
for _, stage in ipairs{0, 2, 3} do
  cases[#cases + 1] = {case = ("stage %d, two micro-batches"):format(stage), world = ranks, zero = stage, accumulate = 2}
end

local function cell(case, precision, checkpoint)
  return {case = case, precision = precision or "fp32", checkpoint = checkpoint or "none"}
end
local claims = {}
local function claim(text, source, of, relation, a, b, expect, tolerance)
  claims[#claims + 1] = {claim = text, source = source, of = of, [relation] = {a, b}, expect = expect, tolerance = tolerance}
end

local ZERO, MEGATRON, PYTORCH = "ZeRO", "Megatron-LM", "PyTorch's DDP"
claim("ranks of other samples give the loss of one rank, to the bit", PYTORCH, "loss_last", "equal", cell "data parallel", cell "one rank")
for stage = 1, 3 do
  claim(("... also in stage %d"):format(stage), ZERO, "loss_last", "equal", cell("ZeRO-" .. stage), cell "one rank")
end
claim("... also where activations are computed again", ZERO, "loss_last", "equal", cell("ZeRO-3", nil, "all"), cell "one rank")
claim("products in parts give it but for rounding", MEGATRON, "loss_last", "equal", cell "tensor", cell "one rank", nil, 1e-4)
claim("... also with ZeRO-3", MEGATRON, "loss_last", "equal", cell "tensor and ZeRO-3", cell "one rank", nil, 1e-4)
for _, precision in ipairs{"fp32", "amp_bf16"} do
  local function of(case) return cell(case, precision) end
  local function divided(text, column, case, whole, tolerance)
    claim(("%s: %s by the number of ranks"):format(precision, text), ZERO, column, "ratio", of(case), of(whole), 1 / ranks, tolerance)
  end
  divided("ZeRO-1 divides the states", "optimizer_bytes", "ZeRO-1", "data parallel", 0.01)
  divided("ZeRO-2 divides the gradients, but for the layer that is made", "gradients_bytes", "stage 2, two micro-batches",
    "stage 0, two micro-batches", 0.25)
  divided("ZeRO-3 divides weights, gradients and states, but for the layers that compute",
    {"weights_bytes", "gradients_bytes", "optimizer_bytes"}, "stage 3, two micro-batches", "stage 0, two micro-batches", 0.25)
  claim(precision .. ": each stage needs less than the one before", ZERO, "peak_bytes", "less", of "ZeRO-1", of "data parallel")
  claim("... the second", ZERO, "peak_bytes", "less", of "stage 2, two micro-batches", of "stage 0, two micro-batches")
  claim("... the third", ZERO, "peak_bytes", "less", of "ZeRO-3", of "ZeRO-2")
  claim(precision .. ": divided products need less, too", MEGATRON, "peak_bytes", "less", of "tensor", of "data parallel")
end

return mt.experiment{
  name = "parallel", model = mt.models.GPT{block_size = 64, vocab_size = 512, n_layer = 6, n_head = 8, n_embd = 128},
  input = {64}, batch = 2, loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{lr = 1e-3},
  cases = cases, sweep = {{"precision", {"fp32", "amp_bf16"}}, {"checkpoint", {"none", "all"}}}, claims = claims,
  steps = 4, warmup = 1,
}
