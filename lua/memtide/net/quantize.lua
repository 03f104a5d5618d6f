-- mt.peft.quantize: a model's linear layers with weights of 4 or 8 bits. Fields and defaults are those of transformers 5.23's
-- BitsAndBytesConfig, and so are the layers that are left out.
local nn = require "memtide.net.nn"
local util = require "memtide.base.util"

local DEFAULTS = {load_in_4bit = false, load_in_8bit = false, bnb_4bit_quant_type = "fp4", bnb_4bit_use_double_quant = false,
  llm_int8_skip_modules = false}

-- Fields of the config that memtide has other words for, or that only bitsandbytes' kernels know
local INSTEAD = {
  bnb_4bit_compute_dtype = 'the setting precision says it, such as precision = "bf16"',
  bnb_4bit_quant_storage = "codes are stored as bytes",
  llm_int8_threshold = "inputs are not quantised, only weights", llm_int8_has_fp16_weight = "weights are stored as 8 bits",
  llm_int8_enable_fp32_cpu_offload = "the setting offload moves activations",
}

-- What gives the logits, by the names that models have for it
local HEADS = {"lm_head", "embed_out", "classifier", "score", "qa_outputs"}

-- The fields, checked, with defaults
local function configured(given)
  util.check_type("peft.quantize", given, "table")
  for field, why in pairs(INSTEAD) do
    if given[field] ~= nil then util.fail("peft.quantize: %s is no field here: %s", field, why) end
  end
  util.check_keys("peft.quantize", given, util.sorted_keys(DEFAULTS))
  local config = {}
  for field, default in pairs(DEFAULTS) do
    config[field] = default
    if given[field] ~= nil then config[field] = given[field] end
  end
  for _, flag in ipairs{"load_in_4bit", "load_in_8bit", "bnb_4bit_use_double_quant"} do
    util.check_flag("peft.quantize: " .. flag, config[flag])
  end
  if config.load_in_4bit == config.load_in_8bit then
    util.fail("peft.quantize: expected one of load_in_4bit and load_in_8bit, found %s", config.load_in_4bit and "both" or "neither")
  end
  local kind = config.bnb_4bit_quant_type
  if kind ~= "fp4" and kind ~= "nf4" then
    util.fail('peft.quantize: bnb_4bit_quant_type: expected "fp4" or "nf4", found %s', tostring(kind))
  end
  if config.llm_int8_skip_modules then
    util.check_type("peft.quantize: llm_int8_skip_modules", config.llm_int8_skip_modules, "table")
    for _, name in ipairs(config.llm_int8_skip_modules) do
      util.check_type("peft.quantize: llm_int8_skip_modules", name, "string")
    end
  end
  return config
end

-- ---- which layers

-- All layers without children, {path, layer}, once each, in their order, and {layer = true} of those that share weights
local function leaves_of(model)
  local leaves, tied = {}, {}
  nn.walk(model, function(path, layer)
    if layer.tied then tied[layer], tied[layer.tied] = true, true end
    if #layer == 0 then leaves[#leaves + 1] = {path, layer} end
  end)
  return leaves, tied
end

local function ends(path, name) return path:sub(-#name) == name end

-- Is it one of these modules, or in one?
local function is_named(path, names)
  for _, name in ipairs(names) do
    if ends(path, name) or path:sub(1, #name + 1) == name .. "." then return true end
  end
end

-- The last linear layer, unless a normalisation follows
local function last_linear(leaves)
  for i = #leaves, 1, -1 do
    local layer = leaves[i][2]
    if layer.kind:find "Norm" then return nil end
    if layer.kind == "Linear" then return layer end
  end
end

local function targets_of(model, skipped)
  local leaves, tied = leaves_of(model)
  local head, wanted = not skipped and last_linear(leaves), {}
  for _, leaf in ipairs(leaves) do
    local path, layer = leaf[1], leaf[2]
    local left_out = layer == head or tied[layer] or is_named(path, skipped or HEADS)
    if layer.kind == "Linear" and not left_out then wanted[#wanted + 1] = layer end
  end
  if #wanted == 0 then
    util.fail("peft.quantize: the model has no nn.Linear but %s", skipped and "those of llm_int8_skip_modules, and tied ones"
      or "what gives the logits, and tied ones")
  end
  return wanted
end

-- ---- quantised layers

-- Turns nn.Linear, in its place, into a layer of the other kind: whoever holds or calls it has that.
local function convert(layer, config)
  local given = layer.options
  local options = {input_features = given.in_features, output_features = given.out_features, bias = given.bias, std = given.std}
  if config.load_in_4bit then
    options.quant_type, options.compress_statistics = config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant
  end
  local made = (config.load_in_4bit and nn.nn.Linear4bit or nn.nn.Linear8bitLt)(options)
  layer.kind, layer.options, layer.text = made.kind, made.options, made.text
end

-- peft.quantize(model, {load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_use_double_quant = true}) -> the model, in
-- which nn.Linear has become nn.Linear4bit, or nn.Linear8bitLt. These are not trained; call peft.lora after it for what is.
--   load_in_4bit, load_in_8bit  one of them is true
--   bnb_4bit_quant_type         "fp4" or "nf4"
--   bnb_4bit_use_double_quant   the largest magnitudes of blocks are codes, too
--   llm_int8_skip_modules       names of layers, or their ends, that stay as they are; without it those that give the logits: by
--                               name (lm_head ...), or the model's last linear layer if no normalisation follows
-- Layers that share a weight with others stay as they are. Raises where a field is wrong, or no layer is left.
return function(model, given)
  if not nn.is_layer(model) then util.fail("peft.quantize: expected a model, found a %s", type(model)) end
  if rawget(model, "adapters") then util.fail "peft.quantize: the model has adapters: quantize comes before lora" end
  local config = configured(given)
  for _, layer in ipairs(targets_of(model, config.llm_int8_skip_modules or nil)) do convert(layer, config) end
  return model
end
