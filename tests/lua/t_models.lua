-- mt.models: parameters as they are known, names as in PyTorch's state_dict, plans at their lower bound, and runs in
-- which what was predicted is measured.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local nn, models, optim = mt.nn, mt.models, mt.optim
local device = assert(core.device "cpu")

local function product(list)
  local n = 1
  for _, d in ipairs(list) do n = n * d end
  return n
end

-- {model, options, one sample, parameters}: the whole models, in one shape that they are used with. counted: larger or
-- smaller than one whose plans are looked at
local WHOLE = {
  {"MLP", {}, {784}, 669706},
  {"LeNet", {}, {1, 28, 28}, 61706},
  {"LeNet", {in_channels = 3, size = 32, padding = 0}, {3, 32, 32}, 62006},
  {"SimpleConvNet", {}, {3, 32, 32}, 1079178},
  {"SmallerConvNet", {}, {3, 32, 32}, 521162},
  {"SimpleCNN", {}, {1, 28, 28}, 31530},
  {"VGG11", {}, {3, 224, 224}, 132863336, counted = true},
  {"VGG16", {}, {3, 224, 224}, 138357544},
  {"VGG19", {}, {3, 224, 224}, 143667240, counted = true},
  {"ResNet18", {}, {3, 224, 224}, 11689512},
  {"ResNet50", {}, {3, 224, 224}, 25557032},
  {"GoogLeNet", {}, {3, 224, 224}, 13004888, heads = 2},
  {"GoogLeNet", {aux_logits = false}, {3, 224, 224}, 6624904, counted = true},
  {"TextClassifier", {}, {32}, 1675778},
  {"GPT", {}, {1024}, 124439808},
  {"Llama", {}, {64}, 6738415616, counted = true},
  {"DCGANGenerator", {}, {100, 1, 1}, 3576704},
  {"DCGANDiscriminator", {}, {3, 64, 64}, 2765568},
  {"UNet", {}, {3, 64, 64}, 31037633},
}

-- Small ones of the same kinds, which are run. `below`: the input holds indices
local SMALL = {
  {"MLP", {in_features = 12, hidden = {9, 7}}, {12}},
  {"LeNet", {}, {1, 28, 28}},
  {"SmallerConvNet", {width = 4, size = 12}, {3, 12, 12}},
  {"SimpleCNN", {size = 12}, {1, 12, 12}},
  {"ResNet18", {num_classes = 10}, {3, 32, 32}},
  {"GoogLeNet", {num_classes = 10}, {3, 64, 64}, heads = 2},
  {"TextClassifier", {vocab_size = 30, embedding_dim = 6, hidden_size = 5, num_layers = 2}, {7}, below = 30},
  {"GPT", {block_size = 8, vocab_size = 13, n_layer = 2, n_head = 2, n_embd = 8, dropout = 0.1}, {8}, below = 13},
  {"Llama", {vocab_size = 13, hidden_size = 16, intermediate_size = 20, num_hidden_layers = 2, num_attention_heads = 4,
    num_key_value_heads = 2}, {8}, below = 13},
  {"DCGANGenerator", {latent = 5, features = 4, channels = 1, size = 28}, {5, 1, 1}},
  {"DCGANDiscriminator", {features = 4, channels = 1, size = 28}, {1, 28, 28}},
  {"UNet", {features = 4, depth = 2}, {3, 12, 8}},
}

local SETTINGS = {
  {}, {mode = "eval"}, {checkpoint = "sqrt", inplace = true}, {checkpoint = "all", precision = "amp_bf16"},
  {precision = "master_bf16", accumulate = 2}, {checkpoint = "selective", precision = "amp_bf16"},
}

local function loss_for(net, case)
  local _, output = net:shapes()
  local loss = #output == 2 and output[2] > 1 and nn.CrossEntropyLoss() or nn.BCEWithLogitsLoss()
  local sum = loss
  for _ = 1, case.heads or 0 do sum = sum + 0.3 * loss end
  return sum, loss.kind == "CrossEntropyLoss"
end

local function compiled(case, batch, settings)
  local model, input = models[case[1]](case[2]), {batch, table.unpack(case[3])}
  local net = core.network(model, loss_for(assert(core.network(model, nil, input)), case), input)
  local all = {optimizer = optim.SGD{lr = 0.01, momentum = 0.9}}
  for key, value in pairs(settings) do all[key] = value end
  return assert(core.compile(net, all, device)), net
end

local function text_of(settings)
  local list = {}
  for key, value in pairs(settings) do list[#list + 1] = key .. "=" .. tostring(value) end
  table.sort(list)
  return #list > 0 and table.concat(list, " ") or "plain"
end

-- ---- the whole models: counts, and plans at the bound
for _, case in ipairs(WHOLE) do
  local name = case[1]
  for _, settings in ipairs(case.counted and {SETTINGS[1]} or SETTINGS) do
    local program, net = compiled(case, 2, settings)
    if settings == SETTINGS[1] then tap.is(net:parameters(), case[4], name .. ": parameters") end
    local found = assert(program:predict{allocator = "planned", steps = 2, with = {}})
    tap.is(found.peak.bytes, found.lower_bound,
      ("%s, %s: the plan is as low as can be"):format(name, text_of(settings)))
  end
end

-- ---- small ones: predicted is measured
local function inputs(case, count)
  local x = {}
  for i = 1, count do x[i] = case.below and (5 * i) % case.below or math.sin(0.377 * i) end
  return x
end

local function run(case, settings, allocator)
  local batch, program, net = 2, compiled(case, 2, settings)
  local predicted = assert(program:predict{allocator = allocator, steps = 2, with = {}})
  local runtime <close> = assert(core.runtime{programs = {program}, allocator = allocator, seed = 1})
  local input, output = net:shapes()
  local t = {}
  local micros = settings.accumulate or 1
  local _, labels = loss_for(net, case)
  local x = inputs(case, micros * product(input))
  for i = 1, micros * (labels and output[1] or product(output)) do t[i] = labels and 7 * i % output[2] or i % 2 end
  local what = ("%s, %s, %s"):format(case[1], text_of(settings), allocator)
  for _ = 1, 2 do
    local loss = runtime:step(1, x, t)
    if not (loss and loss == loss and loss < 1e4) then tap.ok(false, what .. ": the loss is a number") end
  end
  local memory = runtime:memory()
  tap.is(memory.peak.bytes, predicted.peak.bytes, what .. ": predicted is measured")
  tap.is(memory.used, predicted.allocated, what .. ": and after a step")
  tap.ok(batch == input[1] and runtime:finish(), what .. ": nothing is left")
end
for _, case in ipairs(SMALL) do
  for i, settings in ipairs(SETTINGS) do run(case, settings, i % 2 == 1 and "planned" or "caching") end
end

-- ---- names
local function names(model, input)
  local list, network = {}, assert(core.network(model, nil, input))
  for _, some in ipairs{network:params(), network:buffers()} do
    for _, param in ipairs(some) do list[#list + 1] = param.name end
  end
  return "\n" .. table.concat(list, "\n") .. "\n"
end

local function has(name, options, input, wanted)
  local found = names(models[name](options), input)
  for word in wanted:gmatch "%S+" do tap.has(found, "\n" .. word .. "\n", name .. ": " .. word) end
end
has("VGG16", {}, {1, 3, 32, 32}, "features.0.weight features.28.bias classifier.0.weight classifier.6.bias")
has("ResNet18", {}, {2, 3, 64, 64}, [[conv1.weight bn1.weight bn1.running_mean bn1.num_batches_tracked
  layer1.0.conv1.weight layer2.0.downsample.0.weight layer2.0.downsample.1.running_var layer4.1.bn2.bias fc.weight]])
has("ResNet50", {}, {2, 3, 64, 64},
  "layer1.0.conv3.weight layer1.0.downsample.0.weight layer4.2.bn3.running_var fc.bias")
has("GoogLeNet", {}, {2, 3, 64, 64}, [[conv1.conv.weight inception3a.branch1.bn.weight
  inception4e.branch2.1.conv.weight inception5b.branch4.1.bn.running_var aux1.conv.conv.weight aux2.fc1.bias
  fc.weight]])
has("TextClassifier", {}, {2, 4}, "embedding.weight lstm.weight_ih_l0 lstm.bias_hh_l0 fc.bias")
has("GPT", {n_layer = 2, n_embd = 24, vocab_size = 5}, {2, 4}, [[transformer.wte.weight transformer.wpe.weight
  transformer.h.0.ln_1.weight
  transformer.h.1.attn.c_attn.bias transformer.h.1.mlp.c_proj.weight transformer.ln_f.bias]])
has("DCGANGenerator", {}, {2, 100, 1, 1}, "main.0.weight main.1.running_mean main.12.weight")
has("DCGANDiscriminator", {}, {2, 3, 64, 64}, "main.0.weight main.3.weight main.11.weight")
local gpt = assert(core.network(models.GPT{n_layer = 1, n_embd = 24, vocab_size = 5}, nil, {2, 4}))
tap.is(gpt:params()[1].aliases[1], "lm_head.weight", "GPT: the output layer has the embedding's weight")

-- ---- random tokens: ids, and labels per token
local cell = require "memtide.net.cell"
local tokens = mt.data.random{count = 20, shape = {6}, tokens = 5, classes = 3, target = {6}, seed = 1}
local x, y, n = mt.data.loader{tokens, batch = 8}.core:next()
local seen, most, whole = {}, 0, true
for _, id in ipairs(x:values()) do
  seen[id], whole = true, whole and id == math.floor(id) and id >= 0 and id < 5
end
for _, label in ipairs(y:values()) do most = math.max(most, label) end
tap.ok(whole and seen[0] and seen[4], "tokens are ids below their number")
tap.ok(n == 8 and #y:values() == 48 and most == 2, "with a label for each")
for _, case in ipairs(SMALL) do
  local one = mt.experiment{name = "tokens", model = models[case[1]](case[2]), input = case[3], batch = 2, steps = 2,
    warmup = 0, loss = nn.CrossEntropyLoss()}:cells()[1]
  if case.below then
    tap.is(cell.run(cell.compile(cell.build(one)), function() end).status, "ok", case[1] .. " runs in an experiment")
  end
end
tap.raises("expected 1 to", "tokens without classes", mt.data.random, {count = 2, shape = {3}, tokens = 5})

-- ---- manners
tap.has(tostring(models.ResNet18()), "ResNet18(\n  (conv1): Conv2d(", "a model prints by its name")
tap.raises('num_clases', "an unknown option", models.VGG16, {num_clases = 10})
tap.raises("num_classes: expected a number, found ten", "one of the wrong type", models.VGG16, {num_classes = "ten"})
tap.raises('did you mean "ResNet18"', "an unknown model", function() return models.Resnet18 end)
tap.raises("size: expected 2 to 7 times", "a size that DCGAN cannot have", models.DCGANGenerator, {size = 36 + 1})

tap.done()
