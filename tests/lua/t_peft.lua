-- mt.peft beside PEFT: which layers get adapters, parameters, losses, files of adapters, merged weights; every technique that
-- saves memory with adapters; what is wrong with a configuration or a file.
local tap = dofile "tests/tap.lua"
local hf = require "memtide.net.hf"
local mt = require "memtide"
local script = require "memtide.sweep.script"
local cases = dofile "tests/oracle/peft.lua" -- by tests/peers/peft_cases.py
local values = dofile "tests/lua/values.lua"
local nn, optim = mt.nn, mt.optim

local TOKENS, SAMPLES = 12, 2
local folder = os.getenv "PEFT_FOLDER" or os.tmpname() -- for `peft_cases.py --read`: adapters stay there
os.remove(folder)
assert(os.execute("mkdir -p " .. folder))

local function write(path, text)
  local file <close> = assert(io.open(path, "wb"))
  file:write(text)
end

local function model_of(config, options)
  write(folder .. "/config.json", config)
  local text = hf.import(folder)
  local experiment = script.load_experiment("imported.lua", {}, text)
  local input, model = experiment.base.input, experiment.base.model()
  if options then mt.peft.lora(model, options) end
  return model, type(input) == "function" and input{tokens = TOKENS} or input, experiment.base.loss
end

local function fill(trainer)
  for _, param in ipairs((trainer:parameters())) do
    local name = param.name:gsub("%.base_layer%.", ".")
    assert(trainer:write(param.name, values.value_of(name, param.elements, param.shape)))
  end
end

local function norm(trainer, names)
  local sum = 0
  for _, name in ipairs(names) do
    for _, x in ipairs((trainer:read(name))) do sum = sum + x * x end
  end
  return sum ^ 0.5
end

-- The norm of what one step of SGD with lr = 1 changes, by kind of adapter: that of its gradients
local function gradients_of(case, x, labels)
  local model, input, loss = model_of(case.config, case.options)
  local trainer <close> = assert(mt.trainer{model = model, input = input, loss = loss, batch = SAMPLES, optimizer = optim.SGD{lr = 1}})
  fill(trainer)
  local before, sums = {}, {}
  for _, param in ipairs((trainer:parameters())) do
    if param.trainable then before[param.name] = trainer:read(param.name) end
  end
  assert(trainer:step(x, labels))
  for name, old in pairs(before) do
    local kind, new = name:match "%.(lora_[%w_]+)%.default", trainer:read(name)
    for i, value in ipairs(old) do sums[kind] = (sums[kind] or 0) + (value - new[i]) ^ 2 end
  end
  for kind, sum in pairs(sums) do sums[kind] = sum ^ 0.5 end
  return sums
end

local function labels_of(trainer, x)
  local _, shape = trainer:predict(x)
  local labels = {}
  for i = 0, shape[1] - 1 do labels[i + 1] = values.mixed(i, 2) % shape[2] end
  return labels
end

local function near(found, expected, limit, what)
  local apart = math.abs(found - expected) / math.abs(expected)
  tap.ok(apart <= limit, ("%s (%.1e apart)"):format(what, apart))
end

local function names_of(trainer, trained)
  local names = {}
  for _, param in ipairs((trainer:parameters())) do
    if not trained or param.trainable then names[#names + 1] = param.name end
  end
  return names
end

local function magnitudes_of(trainer)
  local names = {}
  for _, name in ipairs(names_of(trainer)) do
    if name:find("lora_magnitude_vector", 1, true) then names[#names + 1] = name end
  end
  return names
end

-- The values of a parameter as text
local function text_of(trainer, name) return table.concat((trainer:read(name)), " ") end

-- {name = "8x16"} of a safetensors file
local function shapes_of(path)
  local shapes = {}
  for _, tensor in ipairs(assert(require "memtide.core".safetensors(path)):list()) do
    shapes[tensor.name] = table.concat(tensor.shape, "x")
  end
  return shapes
end

for _, case in ipairs(cases) do
  local model, input, loss = model_of(case.config, case.options)
  local trainer <close> = assert(mt.trainer{model = model, input = input, loss = loss, batch = SAMPLES,
    optimizer = optim.AdamW{lr = 0.01}})
  local _, count, frozen = nil, trainer.network:parameters()
  tap.is(count, case.parameters, case.name .. ": parameters")
  tap.is(count - frozen, case.trained, case.name .. ": parameters that are trained")
  fill(trainer)
  local x = values.tokens(SAMPLES * TOKENS)
  local labels = labels_of(trainer, x)
  for i, want in ipairs(case.losses) do
    near(assert(trainer:step(x, labels)), want, 1e-5, ("%s: loss of step %d"):format(case.name, i))
  end
  near(norm(trainer, names_of(trainer, true)), case.norm, 1e-4, case.name .. ": adapters after the steps")
  tap.is(trainer:memory().peak.bytes, trainer:predicted().peak.bytes, case.name .. ": peak as predicted")

  local gradients = gradients_of(case, x, labels)
  for kind, wanted in pairs(case.gradients) do
    near(gradients[kind] or 0, wanted, 1e-4, ("%s: gradients of %s"):format(case.name, kind))
    gradients[kind] = nil
  end
  tap.is(next(gradients), nil, case.name .. ": no gradients of other kinds")

  local to = folder .. "/" .. case.name
  assert(trainer:save_adapter(to))
  local found, wanted = shapes_of(to .. "/adapter_model.safetensors"), 0
  for name, shape in pairs(case.tensors) do
    wanted = wanted + 1
    tap.is(found[name], table.concat(shape, "x"), case.name .. ": " .. name)
    found[name] = nil
  end
  tap.is(next(found), nil, ("%s: no tensor beside PEFT's %d"):format(case.name, wanted))

  -- the adapter in a new trainer, and the sum as a model without adapters
  local expected = assert(trainer:evaluate(x, labels))
  near(expected, case.after, 1e-5, case.name .. ": loss after the steps")
  local again <close> = assert(mt.trainer{model = model_of(case.config, mt.peft.config(to)), input = input, loss = loss, batch = SAMPLES,
    optimizer = optim.AdamW{}})
  fill(again)
  assert(again:load_adapter(to))
  tap.is(again:evaluate(x, labels), expected, case.name .. ": the adapter in another trainer gives the same loss")
  local file = folder .. "/" .. case.name .. ".safetensors"
  assert(trainer:save(file, {merged = true}))
  local plain <close> = assert(mt.trainer{model = model_of(case.config), input = input, loss = loss, batch = SAMPLES,
    optimizer = optim.AdamW{}})
  assert(plain:load(file))
  near(norm(plain, names_of(plain)), case.merged, 1e-5, case.name .. ": norm of the merged weights")
  near(plain:evaluate(x, labels), expected, 1e-5, case.name .. ": loss with the merged weights")
  assert(plain:save(file))
  assert(again:load(file)) -- names without base_layer; adapters stay
  tap.ok(math.abs(again:evaluate(x, labels) - expected) > 1e-4, case.name .. ": a base is loaded under its own names")
  assert(trainer:save(file))
  assert(again:load(file))
  tap.is(again:evaluate(x, labels), expected, case.name .. ": all parameters, saved and loaded")

  if case.options.use_dora then -- magnitudes that nobody trained follow the weights that are loaded, trained ones stay
    local fresh <close> = assert(mt.trainer{model = model_of(case.config, case.options), input = input, loss = loss, batch = SAMPLES,
      optimizer = optim.AdamW{lr = 0.01}})
    local bare <close> = assert(mt.trainer{model = model_of(case.config), input = input, loss = loss, batch = SAMPLES, optimizer = optim.AdamW{}})
    fill(bare)
    assert(bare:save(file))
    local own = norm(fresh, magnitudes_of(fresh))
    assert(fresh:load(file))
    tap.ok(math.abs(norm(fresh, magnitudes_of(fresh)) - own) > 1e-3, case.name .. ": a base that is loaded brings its magnitudes")
    near(norm(fresh, magnitudes_of(fresh)), case.magnitudes, 1e-6, case.name .. ": magnitudes of the base")
    near(fresh:evaluate(x, labels), bare:evaluate(x, labels), 1e-6, case.name .. ": a fresh adapter changes nothing")
    for _, limit in ipairs{{1e-12, case.losses[1], "nothing is dropped: PEFT's loss without dropout"},
      {1 - 1e-7, bare:evaluate(x, labels), "everything is dropped: the base's loss"}} do
      local options = {lora_dropout = limit[1]}
      for key, value in pairs(case.options) do options[key] = value end
      local dropping <close> = assert(mt.trainer{model = model_of(case.config, options), input = input, loss = loss, batch = SAMPLES,
        optimizer = optim.AdamW{lr = 0.01}})
      fill(dropping)
      near(assert(dropping:step(x, labels)), limit[2], 1e-5, ("%s: lora_dropout = %s, %s"):format(case.name, limit[1], limit[3]))
    end
    assert(fresh:step(x, labels))
    local trained = norm(fresh, magnitudes_of(fresh))
    assert(fresh:load(file))
    tap.is(norm(fresh, magnitudes_of(fresh)), trained, case.name .. ": magnitudes that were trained stay")
  end
end

-- ---- with every other technique: predicted as measured, and the same loss where only memory is saved

local SMALL = {vocab_size = 96, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 3, num_attention_heads = 4}
local function llama(options)
  options = options or {}
  options.target_modules = options.target_modules or {"q_proj", "v_proj", "down_proj"}
  options.r = options.r or 4
  return mt.peft.lora(mt.models.Llama(SMALL), options)
end

local BASE, ADAPTER = "model.layers.0.self_attn.q_proj.base_layer.weight", "model.layers.0.self_attn.q_proj.lora_A.default.weight"
local x, y = values.tokens(4 * 24), values.tokens(4 * 24)
local function techniques(what, make, precisions)
  for _, precision in ipairs(precisions) do
    local usual
    for _, more in ipairs{{}, {checkpoint = "all"}, {checkpoint = "selective"}, {offload = "all"}, {accumulate = 2}, {checkpoint = "sqrt", accumulate = 2}} do
      local options = {model = make(), input = {24}, loss = nn.CrossEntropyLoss(), batch = more.accumulate and 2 or 4,
        optimizer = optim.AdamW{lr = 0.01}, precision = precision, seed = 3}
      for key, value in pairs(more) do options[key] = value end
      local name = what .. " " .. precision
      for key, value in pairs(more) do name = name .. " " .. key .. "=" .. tostring(value) end
      local trainer <close> = assert(mt.trainer(options))
      local before, losses = text_of(trainer, BASE), {}
      for i = 1, 4 do losses[i] = assert(trainer:step(x, y)) end
      if not more.accumulate then
        usual = usual or losses
        tap.is(table.concat(losses, " "), table.concat(usual, " "), name .. ": losses")
      end
      tap.ok(losses[4] < losses[1], name .. ": it learns")
      tap.is(trainer:memory().peak.bytes, trainer:predicted(4).peak.bytes, name .. ": peak as predicted")
      tap.is(text_of(trainer, BASE), before, name .. ": the base stays")
    end
  end
end
techniques("LoRA", function() return llama{lora_dropout = 0.1} end, {"fp32", "amp_bf16", "amp_fp16", "bf16", "master_bf16"})
techniques("DoRA", function() return llama{use_dora = true, lora_dropout = 0.1} end, {"fp32", "amp_bf16", "bf16"})
techniques("DoRA without dropout", function() return llama{use_dora = true, use_rslora = true} end, {"amp_fp16", "master_bf16"})
local NF4 = {load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_use_double_quant = true}
for bits, config in pairs{[4] = NF4, [8] = {load_in_8bit = true}} do
  techniques(("DoRA over %d bits"):format(bits), function()
    return mt.peft.lora(mt.peft.quantize(mt.models.Llama(SMALL), config), {r = 4, use_dora = true, lora_dropout = 0.1,
      target_modules = {"q_proj", "v_proj", "down_proj"}})
  end, {"fp32", "bf16"})
end
-- layer:float(): fp32 parameters among 16-bit ones, with fp32 gradients and states; the products have 16 bits all the same.
local function wide(float)
  local first = nn.Linear(8, 16)
  if float then first:float() end
  local trainer = assert(mt.trainer{model = nn.Sequential{first, nn.ReLU(), nn.Linear(16, 3)}, input = {8}, batch = 4,
    loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{}, precision = "bf16"})
  local types = {}
  for _, buffer in ipairs(require "memtide.core".persistent(trainer.runtime)) do types[buffer.name] = buffer.dtype end
  assert(trainer:step(values.numbers(32, "x"), {0, 1, 2, 0}))
  tap.is(trainer:memory().peak.bytes, trainer:predicted().peak.bytes, "float: peak as predicted")
  trainer:close()
  return types
end
local narrow, mixed = wide(false), wide(true)
tap.is(narrow["0.weight"] .. narrow["0.weight.exp_avg"], "BF16BF16", "without float(): 16-bit")
tap.is(mixed["0.weight"] .. mixed["0.weight.exp_avg"] .. mixed["0.bias"], "F32F32F32", "float(): weights and states in fp32")
tap.is(mixed["2.weight"], "BF16", "float(): of this layer alone")

-- A frozen base keeps no gradient, no state, and no input that its own gradient alone would read.
local function categories(model)
  local trainer <close> = assert(mt.trainer{model = model, input = {24}, loss = nn.CrossEntropyLoss(), batch = 16, optimizer = optim.AdamW{},
    recompute_light = false})
  local sums = trainer:predicted(2).peak.categories
  return sums, trainer.network:parameters()
end
local whole, count = categories(mt.models.Llama(SMALL))
local lean, all, frozen = categories(llama())
tap.ok(lean.optimizer < whole.optimizer * (all - frozen) / count * 1.2, "states of the adapters alone")
tap.ok(lean.gradients < whole.gradients * (all - frozen) / count * 1.2, "gradients of the adapters alone")
tap.ok(lean.activations < whole.activations, "fewer activations than full training")
-- DoRA keeps each layer's sum beside it, and never the sum of the weights: three products of 32 or 64 features for 384 rows, norms
local dora = categories(llama{use_dora = true})
local sums = 3 * (3 * 384 * 32 * 4 + 3 * 32 * 4)
tap.ok(dora.activations - lean.activations <= sums, ("DoRA: %d more bytes of activations, at most %d"):format(
  dora.activations - lean.activations, sums))
tap.is(dora.optimizer - lean.optimizer, 2 * 3 * 3 * 128, "and states of the magnitudes alone")

-- A base that is trained, too, is refused, and so are magnitudes by themselves.
local thawed = llama{use_dora = true}
thawed:unfreeze()
tap.raises("expected a frozen base_layer, found that model.layers.0.self_attn.q_proj.base_layer.weight is trained",
  "DoRA over a base that is trained",
  mt.trainer, {model = thawed, input = {24}, loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{}})
tap.raises("is a part of what mt.peft.lora makes with use_dora", "nn.DoraLinear alone", mt.trainer,
  {model = nn.Sequential{nn.Linear(4, 4), nn.DoraLinear{scaling = 1}}, input = {4}, loss = nn.MSELoss(), optimizer = optim.AdamW{}})

-- ---- what is wrong

local function refuses(part, what, options, model)
  tap.raises(part, what, mt.peft.lora, model or mt.models.Llama(SMALL), options)
end
refuses("peft.lora: target_modules is missing", "no targets", {})
refuses('target_modules: the model has no layer "q_porj" (did you mean "q_proj"?)', "a name that is not there",
  {target_modules = {"q_porj", "v_proj"}})
refuses("model.embed_tokens is nn.Embedding: adapters are for Conv1D, Linear", "a layer of another kind", {target_modules = {"embed_tokens"}})
refuses("r: expected a whole number of at least 1, found 0", "rank 0", {target_modules = {"q_proj"}, r = 0})
refuses("r: expected a whole number of at least 1, found 1.5", "a rank that is no whole number", {target_modules = {"q_proj"}, r = 1.5})
refuses("lora_dropout: expected a number below 1, found 1", "everything dropped", {target_modules = {"q_proj"}, lora_dropout = 1})
refuses('"lora_aplha"', "an unknown field", {target_modules = {"q_proj"}, lora_aplha = 1})
refuses("layers_to_transform: no layer of that number", "a layer that is not there", {target_modules = {"q_proj"}, layers_to_transform = 7})
refuses("the model has adapters already", "twice", {target_modules = {"q_proj"}}, llama())
refuses('init_lora_weights: expected true, false or "gaussian", found pissa', "another initialisation",
  {target_modules = {"q_proj"}, init_lora_weights = "pissa"})
refuses("use_dora: expected true or false", "use_dora that is no flag", {target_modules = {"q_proj"}, use_dora = 1})
tap.raises("expected a model, found a number", "no model", mt.peft.lora, 3, {})

local bare <close> = assert(mt.trainer{model = mt.models.Llama(SMALL), input = {24}, loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{}})
tap.raises("the model has no adapters", "no adapters to save", bare.save_adapter, bare, folder .. "/none")
local function open(options)
  return assert(mt.trainer{model = llama(options), input = {24}, loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{}})
end
local first <close>, to = open(), folder .. "/first"
assert(first:save_adapter(to))
local other <close> = open{r = 8}
local function message_of(f, ...)
  local done, problem = pcall(f, ...)
  return done and "nothing" or tostring(require "memtide.base.util".text_of(problem))
end
tap.has(message_of(other.load_adapter, other, to), to .. "/adapter_config.json: r: expected 8, as mt.peft.lora was given it, found 4",
  "an adapter of another rank")
local elsewhere <close> = open{target_modules = {"q_proj"}}
tap.has(message_of(elsewhere.load_adapter, elsewhere, to), "does not fit this trainer: unexpected: base_model.model.model.layers.0.mlp.down_proj.lora_A.weight",
  "an adapter of other layers")
local kept = text_of(first, ADAPTER)
for _, damage in ipairs{
  {"peft_type: expected \"LORA\"", '{"peft_type": "IA3"}'}, {"use_dora: expected false, as mt.peft.lora was given it, found true",
    '{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": true}'},
  {"use_qalora: expected false", '{"peft_type": "LORA", "use_qalora": true}'},
  {"bias: expected \"none\"", '{"bias": "all"}'}, {"adapter_config.json", '{"r": '}, {"expected an object", "[1]"},
} do
  write(to .. "/adapter_config.json", damage[2])
  tap.has(message_of(first.load_adapter, first, to), damage[1], "adapter_config.json: " .. damage[2])
end
tap.is(text_of(first, ADAPTER), kept, "nothing has changed")
tap.has(message_of(first.load_adapter, first, folder .. "/nowhere"), "nowhere/adapter_config.json", "a folder that is not there")

if not os.getenv "PEFT_FOLDER" then os.execute("rm -r " .. folder) end
tap.done()
