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
  {case = "tensor and sequence", world = ranks, mesh = {tensor = ranks}, sequence_parallel = true, accumulate = ranks},
  {case = "tensor and ZeRO-3", world = most, mesh = {data = 2, tensor = most // 2}, zero = 3, accumulate = ranks // 2},
}
for _, stage in ipairs{0, 3} do
  cases[#cases + 1] = {case = ("stage %d, checkpointed"):format(stage), world = ranks, zero = stage, checkpoint = "all"}
end
-- and these on twice as many: gradients of several micro-batches stay until the update
for _, stage in ipairs{0, 2, 3} do
  cases[#cases + 1] = {case = ("stage %d, two micro-batches"):format(stage), world = ranks, zero = stage, accumulate = 2}
end

local function cell(case, precision) return {case = case, precision = precision or "fp32"} end
local claims = {}
local function claim(text, source, of, relation, a, b, expect, tolerance)
  claims[#claims + 1] = {claim = text, source = source, of = of, [relation] = {a, b}, expect = expect, tolerance = tolerance}
end

local ZERO, MEGATRON, SEQUENCE, PYTORCH = "ZeRO", "Megatron-LM", "Megatron-LM's sequence parallelism", "PyTorch's DDP"
claim("ranks of other samples give the loss of one rank, to the bit", PYTORCH, "loss_last", "equal", cell "data parallel", cell "one rank")
for stage = 1, 3 do
  claim(("... also in stage %d"):format(stage), ZERO, "loss_last", "equal", cell("ZeRO-" .. stage), cell "one rank")
end
claim("... also where activations are computed again", ZERO, "loss_last", "equal", cell "stage 3, checkpointed", cell "one rank")
claim("products in parts give it but for rounding", MEGATRON, "loss_last", "equal", cell "tensor", cell "one rank", nil, 1e-4)
claim("... also with slices of the sequence between them", SEQUENCE, "loss_last", "equal", cell "tensor and sequence", cell "one rank", nil, 1e-4)
claim("... also with ZeRO-3", MEGATRON, "loss_last", "equal", cell "tensor and ZeRO-3", cell "one rank", nil, 1e-4)
for _, precision in ipairs{"fp32", "amp_bf16"} do
  local function of(case) return cell(case, precision) end
  local function divided(stage, what, columns, whole) -- whole: the share that a rank has not divided, at most
    claim(("%s: ZeRO-%d divides %s by the number of ranks"):format(precision, stage, what), ZERO, columns, "ratio",
      of(stage == 1 and "ZeRO-1" or ("stage %d, two micro-batches"):format(stage)),
      of(stage == 1 and "data parallel" or "stage 0, two micro-batches"), 1 / ranks, whole * (ranks - 1))
  end
  divided(1, "states", "optimizer_bytes", 0.02) -- those of small parameters
  divided(2, "gradients, too,", "gradients_bytes", 0.2) -- those that are made at the peak
  divided(3, "weights, gradients and states", {"weights_bytes", "gradients_bytes", "optimizer_bytes"}, 0.2)
  claim(precision .. ": each stage needs less than the one before", ZERO, "peak_bytes", "less", of "ZeRO-1", of "data parallel")
  claim("... the second", ZERO, "peak_bytes", "less", of "stage 2, two micro-batches", of "stage 0, two micro-batches")
  claim("... the third", ZERO, "peak_bytes", "less", of "ZeRO-3", of "ZeRO-2")
  claim(precision .. ": divided products need less, too", MEGATRON, "peak_bytes", "less", of "tensor", of "data parallel")
  claim("... and less with the sequence divided between them", SEQUENCE, "activations_bytes", "less", of "tensor and sequence", of "tensor")
end

return mt.experiment{
  name = "parallel", model = mt.models.GPT{block_size = 64, vocab_size = 256, n_layer = 12, n_head = 8, n_embd = 64},
  input = {64}, batch = 2, loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{lr = 1e-3},
  cases = cases, sweep = {{"precision", {"fp32", "amp_bf16"}}}, claims = claims,
  steps = 4, warmup = 1,
}
