-- Fine-tuning a Llama of 7 billion parameters on a card of 24 GB: all its parameters, LoRA, and QLoRA, each with and without
-- checkpointing, in memtide's own step and in PyTorch's. Nothing is run: predictions are all that it needs. A small Llama that is
-- trained by each method: experiments/lora_small.lua.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

-- From their config.json files
local SIZES = {
  small = {vocab_size = 512, hidden_size = 256, intermediate_size = 704, num_hidden_layers = 4, num_attention_heads = 8,
    num_key_value_heads = 4},
  ["Llama-2-7B"] = {max_position_embeddings = 4096, rms_norm_eps = 1e-5},
}

-- QLoRA's paper adapts every linear layer but the one that gives the logits, with r = 64 and alpha = 16; LoRA here has the same.
local function Llama(s)
  local model = mt.models.Llama(SIZES[s.size] or error("there is no size " .. s.size))
  if s.method == "full" then return model end
  if s.method == "qlora" then
    mt.peft.quantize(model, {load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_use_double_quant = true})
  elseif s.method ~= "lora" then
    error("there is no method " .. s.method)
  end
  return mt.peft.lora(model, {r = s.r, lora_alpha = 16, lora_dropout = 0.05, target_modules = "all-linear"})
end

local CARD = 24081 << 20 -- what a process gets of an RTX 4090
local of = "predicted_peak_bytes"
local function cell(method, checkpoint, framework)
  return {method = method, checkpoint = checkpoint, framework = framework or "memtide"}
end
local function fits(what, ...) return {claim = what, source = "a card of 24 GB", of = of, less = {cell(...), CARD}} end
local function fails(what, ...) return {claim = what, source = "a card of 24 GB", of = of, less = {CARD, cell(...)}} end

return mt.experiment{
  name = "lora", model = Llama, input = function(s) return {s.seq} end,
  options = {{"size", "Llama-2-7B", "of the model"}, {"seq", 1024, "tokens of a sample"}, {"r", 64, "rank of the adapters"}},
  loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{lr = 2e-4}, batch = 1, precision = "bf16",
  sweep = {{"method", {"full", "lora", "qlora"}}, {"checkpoint", {"none", "marked"}},
    mt.zip{{"framework", {"memtide", "pytorch"}}, {"device", {"cpu", "pytorch:rtx4090"}}}},
  claims = {
    fails("all parameters do not fit, with checkpointing neither", "full", "marked"),
    fails("... nor in PyTorch", "full", "marked", "pytorch"),
    fits("LoRA fits, even without checkpointing", "lora", "none"),
    fails("... which does not fit in PyTorch", "lora", "none", "pytorch"),
    fits("... but does with checkpointing", "lora", "marked", "pytorch"),
    fits("QLoRA fits with checkpointing", "qlora", "marked"),
    fits("... also in PyTorch", "qlora", "marked", "pytorch"),
    {claim = "... in less than a third of the card", source = "QLoRA", of = of, less = {cell("qlora", "marked", "pytorch"), CARD / 3}},
    {claim = "weights in NF4 take little more than a quarter of those in bf16", source = "QLoRA", of = "weights_bytes",
      ratio = {cell("qlora", "marked"), cell("lora", "marked")}, expect = 0.3, tolerance = 0.15},
    {claim = "LoRA keeps a twentieth of the optimizer's states", source = "LoRA", of = "optimizer_bytes",
      ratio = {cell("lora", "marked"), cell("full", "marked")}, expect = 0.05, tolerance = 0.1},
  },
  predict_only = true, steps = 8, warmup = 1,
}
