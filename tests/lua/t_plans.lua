-- Plans at their lower bound: every model, mode and technique with every other, and programs of 8,000 tensors. Each plan above it
-- is listed with the bytes between. PLANS=full: more batches and precisions (some minutes).
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

-- Activations that stay on the device fill what is free below the peak: plans with the least room to spare. The workspace of several
-- threads comes after that choice. Each number of threads needs a process of its own: memtide tests/lua/t_plans.lua offload.
local OFFLOAD_MODELS = full and {ResNet18 = true, ResNet50 = true} or {ResNet50 = true}
local OFFLOAD_BATCHES = full and {2, 3, 8, 16, 32, 64} or {16}
local OFFLOAD_THREADS = {1, 2, 16}
local OFFLOAD_SETTINGS = {}
for _, s in ipairs(SETTINGS) do
  if s.checkpoint == "none" or s.checkpoint == "selective" then
    local offloaded = {offload = "all"}
    for key, value in pairs(s) do offloaded[key] = value end
    OFFLOAD_SETTINGS[#OFFLOAD_SETTINGS + 1] = offloaded
  end
end

local function network(name, sample, batch)
  local model, input = models[name](), {batch, table.unpack(sample)}
  local _, output = assert(core.network(model, nil, input)):shapes()
  local labels = #output == 2 and output[2] > 1
  return assert(core.network(model, labels and nn.CrossEntropyLoss() or nn.BCEWithLogitsLoss(), input))
end

local function found_of(net, settings)
  local all = {optimizer = optim.SGD{lr = 0.01, momentum = 0.9}}
  for key, value in pairs(settings) do all[key] = value end
  return assert(assert(core.compile(net, all, device)):predict{allocator = "planned", steps = 1, with = {}})
end

local function above(net, settings)
  local found = found_of(net, settings)
  return found.peak.bytes - found.lower_bound
end

local function all_above(name, sample, batches, all_settings)
  local high = {}
  for _, batch in ipairs(batches) do
    local net = network(name, sample, batch)
    for _, s in ipairs(all_settings) do
      local bytes = above(net, s)
      if bytes ~= 0 then
        high[#high + 1] = ("batch %d, %s, %s, checkpoint %s, accumulate %s, in place %s: %d bytes above"):format(batch,
          s.precision, s.mode or "train", s.checkpoint, s.accumulate, s.inplace, bytes)
      end
    end
  end
  return table.concat(high, "\n")
end

if ... == "offload" then
  for _, case in ipairs(MODELS) do
    if OFFLOAD_MODELS[case[1]] then print("looked at", case[1], all_above(case[1], case[2], OFFLOAD_BATCHES, OFFLOAD_SETTINGS)) end
  end
  local net = network("ResNet50", {3, 224, 224}, 2)
  local least = found_of(net, {precision = "fp32", offload = "all"}).peak.bytes
  print("of a budget of what all need", least - found_of(net, {precision = "fp32", offload = least}).peak.bytes, "bytes are left")
  return
end

for _, case in ipairs(MODELS) do
  local name, sample = table.unpack(case)
  tap.is(all_above(name, sample, BATCHES, SETTINGS), "", ("%s: %d plans, each as low as can be"):format(name, #BATCHES * #SETTINGS))
end

for _, threads in ipairs(OFFLOAD_THREADS) do
  local command = ("OMP_NUM_THREADS=%d '%s' tests/lua/t_plans.lua offload"):format(threads, os.getenv "MEMTIDE" or "build/memtide")
  local pipe <close> = assert(io.popen(command))
  local expected = {}
  for _, case in ipairs(MODELS) do
    if OFFLOAD_MODELS[case[1]] then expected[#expected + 1] = ("looked at\t%s\t\n"):format(case[1]) end
  end
  expected[#expected + 1] = "of a budget of what all need\t0\tbytes are left\n"
  tap.is(pipe:read "a", table.concat(expected), ("offload, threads %d: %d plans of each model, each as low as can be"):format(threads,
    #OFFLOAD_BATCHES * #OFFLOAD_SETTINGS))
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
