-- Activations that are kept, computed again, or moved to the host's memory until they are needed: a small GPT, or with
--   memtide predict experiments/offload.lua --device cuda:h200 -- gpt2
-- GPT-2 small, for a GPU that is not here.
local mt = require "memtide"
local nn, optim, models = mt.nn, mt.optim, mt.models

local gpt = {block_size = 128, vocab_size = 512, n_layer = 8, n_head = 4, n_embd = 128}
if ... == "gpt2" then gpt = {block_size = 1024, vocab_size = 50257, n_layer = 12, n_head = 12, n_embd = 768} end

local cases, claims = {}, {}
for _, checkpoint in ipairs{"none", "selective", "all"} do
  local kept, waiting = checkpoint .. ", kept", checkpoint .. ", on the host"
  cases[#cases + 1] = {case = kept, checkpoint = checkpoint}
  cases[#cases + 1] = {case = waiting, checkpoint = checkpoint, offload = "all"}
  claims[#claims + 1] = {claim = "checkpoint = " .. checkpoint .. ": less memory with offloading",
    source = "PyTorch's documentation of save_on_cpu", of = "peak_bytes", less = {waiting, kept}}
end

return mt.experiment{
  name = "offload", model = models.GPT(gpt), input = {gpt.block_size}, batch = 8, cases = cases, claims = claims,
  loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{lr = 1e-3}, steps = 5,
}
