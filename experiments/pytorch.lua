-- The articles' techniques of experiments/article.lua twice: as memtide executes them, and as eager PyTorch would on an
-- A100 with 80 GB. PyTorch's cells are predicted and never run; predicted_peak_bytes is its max_memory_allocated.
local mt = require "memtide"
local article = require "article"

local base, listed, of = "baseline, batch 64", "checkpoint of both convolutions, as listed", "predicted_peak_bytes"
local reentrant = {use_reentrant = true} -- the form of torch.utils.checkpoint that PyTorch had first
local function memtide(case) return {case = case, framework = "memtide"} end
local function pytorch(case, options) return {case = case, framework = "pytorch", pytorch = options or {}} end

return article:with{
  name = "pytorch", predict_only = true, rounds = false, confidence = false, time_limit = false,
  sweep = {mt.zip{{"framework", {"memtide", "pytorch", "pytorch"}}, {"pytorch", {{}, {}, reentrant}}}},
  where = function(s) return s.pytorch == "" or s.checkpoint == "marked" end,
  claims = {
    {claim = "eager PyTorch needs more memory for the same step", of = of, less = {memtide(base), pytorch(base)}},
    {claim = "... also where nothing is trained", of = of,
      less = {memtide "evaluation, no gradients", pytorch "evaluation, no gradients"}},
    {claim = "mixed precision takes a third off PyTorch's", of = of,
      ratio = {pytorch "mixed precision", pytorch(base)}, expect = 2 / 3, tolerance = 0.1},
    {claim = "... with fp16 and GradScaler, too", of = of,
      ratio = {pytorch "fp16 and GradScaler, as listed", pytorch(base)}, expect = 2 / 3, tolerance = 0.1},
    {claim = "smaller kernels save PyTorch memory", of = of, less = {pytorch "kernels of 1 x 1", pytorch(base)}},
    {claim = "in-place ReLU saves PyTorch memory", of = of, less = {pytorch "in-place", pytorch(base)}},
    {claim = "a checkpoint of each convolution saves PyTorch less than a hundredth", of = of,
      equal = {pytorch(listed), pytorch(base)}, tolerance = 0.01},
    {claim = "the reentrant form saves, because it trains nothing but the last layer", of = of,
      less = {pytorch(listed, reentrant), pytorch(base)}},
    {claim = "small micro-batches save memory in PyTorch, too", of = of,
      less = {pytorch "accumulation 16 x 4", pytorch(base)}},
  },
}
