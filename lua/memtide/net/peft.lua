-- mt.peft: fine-tuning with few parameters. Names, defaults and formulas are those of PEFT 0.21 (peft/tuners/lora).
--
-- LoRA adds to the product of a frozen layer one of low rank: y = base_layer(x) + lora_B(lora_A(dropout(x))) scaling, with
-- scaling = lora_alpha / r, of rsLoRA lora_alpha / sqrt(r). lora_A starts as nn.Linear does, lora_B at zero. DoRA has a magnitude
-- for each output feature beside it, which takes the place of the norm of its row of the weights' sum (nn.DoraLinear).
local adapters = require "memtide.net.adapters"
local nn = require "memtide.net.nn"
local util = require "memtide.base.util"

local peft = {}

-- The kinds of layers that adapters are for: the options that have their sizes
local FEATURES = {
  Linear = {"in_features", "out_features"}, Conv1D = {"nx", "nf"},
  Linear4bit = {"input_features", "output_features"}, Linear8bitLt = {"input_features", "output_features"},
}
-- The layers that target_modules = "all-linear" leaves out: what gives the logits
local HEADS = {lm_head = true, embed_out = true, classifier = true, score = true, qa_outputs = true}

local DEFAULTS = {r = 8, lora_alpha = 8, lora_dropout = 0, use_rslora = false, use_dora = false, init_lora_weights = true,
  autocast_adapter_dtype = true}
local FIELDS = util.sorted_keys(DEFAULTS)
table.move({"target_modules", "exclude_modules", "layers_to_transform", "rank_pattern", "alpha_pattern"}, 1, 5, #FIELDS + 1, FIELDS)

-- ---- names

-- Is `path` the name, or does it end with it after a dot?
local function ends(path, name) return path == name or path:sub(-#name - 1) == "." .. name end

local function any_ends(path, names)
  for _, name in ipairs(names) do if ends(path, name) then return name end end
end

-- The names of a list, or of a set {name = true}, which Python writes with the same brackets
local function names_of(field, given)
  util.check_type("peft.lora: " .. field, given, "table")
  local list, set = table.move(given, 1, #given, 1, {}), {}
  for key, value in pairs(given) do if math.type(key) ~= "integer" then set[#set + 1] = {key, value} end end
  for _, pair in ipairs(set) do
    if pair[2] ~= true then util.fail("peft.lora: %s: expected a list of names, found %s = %s", field, tostring(pair[1]), tostring(pair[2])) end
    list[#list + 1] = pair[1]
  end
  for _, name in ipairs(list) do
    if type(name) ~= "string" or name == "" then util.fail("peft.lora: %s: expected names of layers, found %s", field, tostring(name)) end
  end
  if #list == 0 then util.fail("peft.lora: %s: expected names of layers, found none", field) end
  table.sort(list)
  return list
end

-- ---- the configuration

local function number(config, field, least, whole)
  local value = config[field]
  local kind = whole and math.type(value) == "integer" or not whole and type(value) == "number" and value == value and value < math.huge
  if not kind or value < least then
    util.fail("peft.lora: %s: expected a %s of at least %s, found %s", field, whole and "whole number" or "number", least, tostring(value))
  end
end

local function numbers_by_name(config, field)
  for name, value in pairs(config[field] or {}) do
    if type(name) ~= "string" or type(value) ~= "number" or value <= 0 then
      util.fail("peft.lora: %s: expected {name = number above 0}, found %s = %s", field, tostring(name), tostring(value))
    end
  end
end

local function configured(given)
  util.check_type("peft.lora", given, "table")
  util.check_keys("peft.lora", given, FIELDS)
  local config = {}
  for key, value in pairs(DEFAULTS) do config[key] = value end
  for key, value in pairs(given) do config[key] = value end
  number(config, "r", 1, true)
  number(config, "lora_alpha", 0)
  number(config, "lora_dropout", 0)
  if config.lora_dropout >= 1 then util.fail("peft.lora: lora_dropout: expected a number below 1, found %s", config.lora_dropout) end
  for _, flag in ipairs{"use_rslora", "use_dora", "autocast_adapter_dtype"} do util.check_flag("peft.lora: " .. flag, config[flag]) end
  if config.init_lora_weights ~= true and config.init_lora_weights ~= false and config.init_lora_weights ~= "gaussian" then
    util.fail('peft.lora: init_lora_weights: expected true, false or "gaussian", found %s', tostring(config.init_lora_weights))
  end
  for _, field in ipairs{"rank_pattern", "alpha_pattern"} do
    util.check_type("peft.lora: " .. field, config[field] or {}, "table")
    numbers_by_name(config, field)
  end
  if config.target_modules == nil then
    util.fail 'peft.lora: target_modules is missing: names of layers such as {"q_proj", "v_proj"}, or "all-linear"'
  end
  if config.target_modules ~= "all-linear" then config.target_modules = names_of("target_modules", config.target_modules) end
  if config.exclude_modules then config.exclude_modules = names_of("exclude_modules", config.exclude_modules) end
  local layers = config.layers_to_transform
  if math.type(layers) == "integer" then config.layers_to_transform = {layers} end
  for _, index in ipairs(config.layers_to_transform or {}) do
    if math.type(index) ~= "integer" or index < 0 then
      util.fail("peft.lora: layers_to_transform: expected numbers of layers from 0, found %s", tostring(index))
    end
  end
  return config
end

-- ---- which layers

local function is_head(path) return HEADS[path:match "[^.]*$"] end

local function in_layers(path, layers)
  if not layers then return true end
  local index = math.tointeger(tonumber(("." .. path):match "%.[^.]+%.(%d+)%."))
  for _, wanted in ipairs(layers) do if index == wanted then return true end end
  return false
end

-- The layers that get adapters, {{path, layer}, ...}
local function targets_of(model, config)
  local all, wanted, used, known = config.target_modules == "all-linear", {}, {}, {}
  nn.walk(model, function(path, layer)
    known[path:match "[^.]*$"] = true
    local name = all and (FEATURES[layer.kind] and not is_head(path) and "all-linear") or not all and any_ends(path, config.target_modules)
    if not name or config.exclude_modules and any_ends(path, config.exclude_modules) then return end
    used[name] = true
    if not in_layers(path, config.layers_to_transform) then return end
    if not FEATURES[layer.kind] then
      util.fail("peft.lora: target_modules: %s is nn.%s: adapters are for %s", path, layer.kind, table.concat(util.sorted_keys(FEATURES), ", "))
    end
    wanted[#wanted + 1] = {path, layer}
  end)
  for _, name in ipairs(all and {"all-linear"} or config.target_modules) do
    if not used[name] then
      util.fail('peft.lora: target_modules: the model has no layer "%s"%s', name, util.meant(name:match "[^.]*$", util.sorted_keys(known)))
    end
  end
  if #wanted == 0 then
    util.fail("peft.lora: layers_to_transform: no layer of that number has one of target_modules")
  end
  return wanted
end

-- ---- the adapters

local function of_pattern(pattern, path, usual)
  local longest
  for name in pairs(pattern or {}) do
    if ends(path, name) and (not longest or #name > #longest) then longest = name end
  end
  return longest and pattern[longest] or usual
end

-- What the layer with an adapter computes, of self's children. With DoRA `magnitudes` scales the features of base_layer(x) + the
-- adapter's; where dropout changes the adapter's input, base_layer gives these of that, too, and stays what it is of x.
local function forward(self, x)
  local result = self.base_layer(x)
  local dropped = self.lora_dropout and self["lora_dropout.default"](x) or x
  local low_rank = self["lora_B.default"](self["lora_A.default"](dropped)) * self.scaling
  if not self.use_dora then return result + low_rank end
  local magnitudes = self["lora_magnitude_vector.default"]
  if not self.lora_dropout then return magnitudes(result + low_rank) end
  local again = self.base_layer(dropped)
  local scaled = magnitudes(again + low_rank)
  return result - again + scaled
end

-- Turns the layer, in its place, into a graph of a copy of it and its adapter: whoever holds or calls it has the sum. graphs: those
-- that were made before, by scaling.
local function adapt(layer, path, config, graphs)
  local r, alpha = of_pattern(config.rank_pattern, path, config.r), of_pattern(config.alpha_pattern, path, config.lora_alpha)
  local scaling = alpha / (config.use_rslora and math.sqrt(r) or r)
  local names, base = FEATURES[layer.kind], setmetatable({}, getmetatable(layer))
  local from, to = layer.options[names[1]], layer.options[names[2]]
  for key, value in pairs(layer) do base[key] = value end
  local init = config.init_lora_weights
  local parts = {
    base_layer = base,
    ["lora_A.default"] = nn.nn.Linear(from, r, {bias = false, std = init == "gaussian" and 1 / r or nil}),
    ["lora_B.default"] = nn.nn.Linear(r, to, {bias = false, std = init and 0 or nil}),
  }
  if config.use_dora then parts["lora_magnitude_vector.default"] = nn.nn.DoraLinear{scaling = scaling} end
  if config.autocast_adapter_dtype then
    for _, name in ipairs{"lora_A.default", "lora_B.default", "lora_magnitude_vector.default"} do
      if parts[name] then parts[name]:float() end
    end
  end
  if config.lora_dropout > 0 then parts["lora_dropout.default"] = nn.nn.Dropout(config.lora_dropout) end
  local graph = graphs[scaling] and nn.graph_like(graphs[scaling], parts)
  if not graph then
    parts.listing, parts.forward, parts.scaling = "lora.Linear", forward, scaling
    parts.use_dora, parts.lora_dropout = config.use_dora, config.lora_dropout > 0
    graph = nn.nn.Graph(parts)
    graphs[scaling] = graph
  end
  for key in pairs(base) do layer[key] = nil end
  for key, value in pairs(graph) do layer[key] = value end
  layer.title, layer.where = "lora." .. base.kind, base.where
  return {path = path, r = r, scaling = scaling}
end

-- peft.lora(model, {r = 8, lora_alpha = 8, lora_dropout = 0, target_modules = {...}, ...}) -> the model, in which each layer
-- whose name is one of target_modules, or ends with one after a dot, has an adapter, and only the adapters are trained.
-- Fields are those of peft.LoraConfig:
--   r, lora_alpha        rank and numerator of the scaling
--   lora_dropout         the probability with which the adapter's input is dropped
--   target_modules       names of layers, or "all-linear": all but what gives the logits
--   exclude_modules      names of layers among these that get none
--   layers_to_transform  numbers of the layers that get adapters, from 0
--   rank_pattern, alpha_pattern  {name = r}, {name = lora_alpha} of some of the layers
--   autocast_adapter_dtype  adapters are fp32 where the precision makes weights 16-bit (of get_peft_model)
--   use_rslora           scaling = lora_alpha / sqrt(r)
--   use_dora             a magnitude for each output feature, too, which starts as the norm of its row
--   init_lora_weights    true; "gaussian": lora_A normal with the standard deviation 1 / r; false: lora_B as nn.Linear, too
-- Raises where a field is wrong, or a name is that of no layer.
function peft.lora(model, given)
  if not nn.is_layer(model) then util.fail("peft.lora: expected a model, found a %s", type(model)) end
  if rawget(model, "adapters") then util.fail "peft.lora: the model has adapters already" end
  local config = configured(given)
  local wanted, modules, graphs = targets_of(model, config), {}, {}
  model:freeze()
  for i, target in ipairs(wanted) do modules[i] = adapt(target[2], target[1], config, graphs) end
  model.adapters = {config = config, modules = modules}
  return model
end

-- peft.config(folder) -> the fields of the adapter_config.json there, for peft.lora. Raises a failure that names the field.
peft.config = adapters.read_config

peft.quantize = require "memtide.net.quantize"

return peft
