-- The memory for training a LLaMA of published sizes. The small one runs on a CPU in seconds; predict the others with
-- memtide predict --device cuda:h200 --set size=TinyLlama-1.1B,Llama-2-7B,Llama-3-8B --set seq=2048
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

-- From their config.json files
local SIZES = {
  small = {vocab_size = 512, hidden_size = 128, intermediate_size = 352, num_hidden_layers = 4,
    num_attention_heads = 8, num_key_value_heads = 2},
  ["small-32000"] = {hidden_size = 256, intermediate_size = 704, num_hidden_layers = 4, num_attention_heads = 8,
    num_key_value_heads = 4},
  ["TinyLlama-1.1B"] = {hidden_size = 2048, intermediate_size = 5632, num_hidden_layers = 22, num_key_value_heads = 4,
    rms_norm_eps = 1e-5},
  ["Llama-2-7B"] = {max_position_embeddings = 4096, rms_norm_eps = 1e-5},
  ["Llama-3-8B"] = {vocab_size = 128256, intermediate_size = 14336, num_key_value_heads = 8,
    max_position_embeddings = 8192, rms_norm_eps = 1e-5, rope_theta = 500000},
}

local function Llama(s)
  local o = {}
  for key, value in pairs(SIZES[s.size] or error("there is no size " .. s.size)) do o[key] = value end
  if s.kv_heads > 0 then o.num_key_value_heads = s.kv_heads end
  return mt.models.Llama(o)
end

return mt.experiment{
  name = "llama", model = Llama, input = function(s) return {s.seq} end,
  options = {{"kv_heads", 0, "heads of keys and values, 0: as published"}},
  loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{lr = 3e-4, betas = {0.9, 0.95}, weight_decay = 0.1},
  sweep = {{"size", {"small"}}, {"seq", {64, 256}}, {"batch", {1, 4}}, {"precision", {"fp32", "amp_bf16"}},
    {"checkpoint", {"none", "selective", "all"}}},
  steps = 3, warmup = 1,
}
