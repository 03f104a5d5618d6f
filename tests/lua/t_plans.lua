-- Plans at their lower bound: every model, mode and technique with every other, and programs of 8,000 tensors. Each plan above it
-- is listed with the bytes between. PLANS=full: more batches and precisions (15 seconds).
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local nn, models, optim = mt.nn, mt.models, mt.optim
local device = assert(core.device "cpu")
local full = os.getenv "PLANS" == "full"

local MODELS = {
  {"MLP", {784}}, {"LeNet", {1, 28, 28}}, {"SimpleConvNet", {3, 32, 32}}, {"SmallerConvNet", {3, 32, 32}},
  {"SimpleCNN", {1, 28, 28}}, {"VGG11", {3, 224, 224}}, {"VGG16", {3, 224, 224}}, {"VGG19", {3, 224, 224}},
  {"ResNet18", {3, 224, 224}}, {"ResNet50", {3, 224, 224}}, {"TextClassifier", {32}}, {"GPT", {1024}},
  {"DCGANGenerator", {100, 1, 1}}, {"DCGANDiscriminator", {3, 64, 64}}, {"UNet", {3, 64, 64}},
}
local BATCHES = full and {2, 3, 8, 16, 32, 64} or {2, 16}
local PRECISIONS = full and {"fp32", "amp_fp16", "amp_bf16", "master_fp16", "master_bf16", "bf16"}
  or {"fp32", "amp_fp16", "master_bf16"}

local SETTINGS = {}
for _, precision in ipairs(PRECISIONS) do
  SETTINGS[#SETTINGS + 1] = {precision = precision, mode = "eval"}
  for _, checkpoint in ipairs{"none", "sqrt", "all", "selective"} do
    for _, accumulate in ipairs{1, 2} do
      for _, inplace in ipairs{false, true} do
        SETTINGS[#SETTINGS + 1] =
          {precision = precision, checkpoint = checkpoint, accumulate = accumulate, inplace = inplace}
      end
    end
  end
end

local function network(name, sample, batch)
  local model, input = models[name](), {batch, table.unpack(sample)}
  local _, output = assert(core.network(model, nil, input)):shapes()
  local labels = #output == 2 and output[2] > 1
  return assert(core.network(model, labels and nn.CrossEntropyLoss() or nn.BCEWithLogitsLoss(), input))
end

local function above(net, settings)
  local all = {optimizer = optim.SGD{lr = 0.01, momentum = 0.9}}
  for key, value in pairs(settings) do all[key] = value end
  local found = assert(assert(core.compile(net, all, device)):predict{allocator = "planned", steps = 1, with = {}})
  return found.peak.bytes - found.lower_bound
end

for _, case in ipairs(MODELS) do
  local name, sample = table.unpack(case)
  local high = {}
  for _, batch in ipairs(BATCHES) do
    local net = network(name, sample, batch)
    for _, s in ipairs(SETTINGS) do
      local bytes = above(net, s)
      if bytes ~= 0 then
        high[#high + 1] = ("batch %d, %s, %s, checkpoint %s, accumulate %s, in place %s: %d bytes above"):format(batch,
          s.precision, s.mode or "train", s.checkpoint, s.accumulate, s.inplace, bytes)
      end
    end
  end
  tap.is(table.concat(high, "\n"), "", ("%s: %d plans, each as low as can be"):format(name, #BATCHES * #SETTINGS))
end

-- A Llama of 7 billion parameters with adapters: the whole cell, from the network to its prediction, in moments. The goal is 0.1 s of
-- a processor; the bound leaves room for a slow one.
local function adapted(method)
  local model = models.Llama{max_position_embeddings = 4096, rms_norm_eps = 1e-5}
  if method == "QLoRA" then
    mt.peft.quantize(model, {load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_use_double_quant = true})
  end
  return mt.peft.lora(model, {r = 64, lora_alpha = 16, lora_dropout = 0.05, target_modules = "all-linear"})
end
for _, case in ipairs{{"LoRA", "marked", 0, 0.4}, {"QLoRA", "marked", 0, 0.4}, {"LoRA", "none", 0, 0.4}} do
  local method, checkpoint, most, limit = table.unpack(case)
  local seconds = math.huge
  for _ = 1, 3 do
    local began = os.clock()
    local net = assert(core.network(adapted(method), nn.CrossEntropyLoss(), {1, 1024}))
    local bytes = above(net, {precision = "bf16", checkpoint = checkpoint})
    seconds = math.min(seconds, os.clock() - began)
    tap.ok(bytes <= most, ("Llama-2-7B, %s, checkpoint %s: the plan is at most %d bytes above the lowest"):format(method, checkpoint, most))
  end
  tap.ok(seconds < limit, ("%s, checkpoint %s: %.0f ms for a whole cell"):format(method, checkpoint, seconds * 1e3))
end
tap.done()
