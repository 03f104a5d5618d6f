-- The files of adapters, as PEFT's save_pretrained writes them and PeftModel.from_pretrained reads them: a folder with
-- adapter_model.safetensors and adapter_config.json.
local core = require "memtide.core"
local literal = require "memtide.base.literal"
local report = require "memtide.results.report"
local util = require "memtide.base.util"

local adapters = {}

adapters.WEIGHTS, adapters.CONFIG = "adapter_model.safetensors", "adapter_config.json"

-- What a file calls the parameter of that name: "q_proj.lora_A.default.weight" is
-- "base_model.model.q_proj.lora_A.weight"; a magnitude of DoRA is a tensor of its own, "...q_proj.lora_magnitude_vector". nil: it
-- is no adapter's.
function adapters.file_name(name)
  local path, part, rest = name:match "^(.*)%.(lora_[%w_]+)%.default(%.?.*)$"
  if part == "lora_magnitude_vector" then rest = "" end
  return path and ("base_model.model.%s.%s%s"):format(path, part, rest)
end

-- ---- the configuration

-- Fields that mt.peft.lora takes as the file has them
local TAKEN = {"r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "init_lora_weights", "target_modules", "exclude_modules",
  "layers_to_transform", "rank_pattern", "alpha_pattern"}
-- The only values that are known of others, where the file has them and they are not null
local MUST = {peft_type = "LORA", bias = "none", lora_bias = false, use_qalora = false,
  modules_to_save = false, target_parameters = false, trainable_token_indices = false, layer_replication = false,
  arrow_config = false, alora_invocation_tokens = false}
-- Those on which the values hang that an adapter's file has
local MEANS = {"r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"}

local function fail(path, format, ...) error(util.failure(util.printable(path .. ": " .. format:format(...)), "format"), 0) end

-- The fields of a folder's adapter_config.json that mt.peft.lora takes. Raises a failure that names file and field.
function adapters.read_config(folder)
  local path = folder .. "/" .. adapters.CONFIG
  local found, config = util.must(core.json(util.read_file(path, "peft.config"), path)), {}
  if type(found) ~= "table" or found[1] ~= nil then fail(path, "expected an object of fields") end
  for _, field in ipairs(util.sorted_keys(MUST)) do
    local value = found[field]
    if value and value ~= MUST[field] then
      fail(path, "%s: expected %s, the only form that is known, found %s", field, literal.of(MUST[field]), literal.of(value))
    end
  end
  for _, field in ipairs(TAKEN) do
    local value = found[field]
    if type(value) == "table" and next(value) == nil then value = nil end
    if value or field == "init_lora_weights" then config[field] = value end
  end
  return config
end

-- The same fields of a model's configuration, as text
function adapters.config_text(config)
  local fields, names = {peft_type = "LORA", bias = "none", inference_mode = true}, {}
  for _, field in ipairs(TAKEN) do fields[field] = config[field] end
  for _, name in ipairs(util.sorted_keys(fields)) do names[#names + 1] = name end
  return report.json(fields, names) .. "\n"
end

-- Raises unless the adapter of that folder was trained with what this configuration means.
function adapters.check_config(folder, config)
  local found = adapters.read_config(folder)
  for _, field in ipairs(MEANS) do
    local expected, value = literal.of(config[field] or false), literal.of(found[field] or false)
    if expected ~= value then
      fail(folder .. "/" .. adapters.CONFIG, "%s: expected %s, as mt.peft.lora was given it, found %s", field, expected, value)
    end
  end
end

return adapters
