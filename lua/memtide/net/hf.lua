-- Hugging Face's folders: a config.json, and perhaps weights, as a script with the model of mt.models that they mean.
local core = require "memtide.core"
local literal = require "memtide.base.literal"
local model = require "memtide.net.model"
local models = require "memtide.net.models"
local nn = require "memtide.net.nn"
local util = require "memtide.base.util"
local weights = require "memtide.net.weights"

local hf = {}

local AS_PLAIN = "left out: the script's weights are plain numbers, which mt.peft.quantize(Model(), {...}) changes"
local TOKENS = 512 -- of a sample, where the model allows as many
local SIZES = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}

local function with(list, ...) return table.move({...}, 1, select("#", ...), #list + 1, {table.unpack(list)}) end

local OF_TOKENS = with(SIZES, "vocab_size")

-- What a layer of the model is by transformers' word, where windows begin after some layers
local function qwen_type(o, i)
  return o.use_sliding_window and i > o.max_window_layers and "sliding_attention" or "full_attention"
end

-- The families, by model_type:
--   models    {architecture = name in mt.models}
--   needs     fields without which the sizes are not known
--   must      {field = the only value that is imported}: where the field is there
--   equal     {field = the field that it must be equal to}: where it is there
--   inputs    what the model reads, in the order of its forward function. Of each:
--     name             in forward; nil: there is one input
--     option           of the script, that says how many tokens a sample has
--     longest          the option that limits them; nil: nothing does
--     unread(options)  positions of that limit that no token reads
--     shape(options)   of a sample of what are no tokens
--     part             the option that has these options; nil: they are the model's own
--   parts     {option = fields of its table without which the sizes are not known}
--   loss      as the script has it, where it is not the usual one
--   says      what the script says of its samples
--   layer_type(options, i)  what the field layer_types must say of layer i
-- Options of the model are fields of the same name; `fields` below has those that are said in other ways.
local PLACES = "max_position_embeddings"

local function tokens(name, option, longest, unread, part)
  return {name = name, option = option, longest = longest, unread = unread, part = part}
end

local function images(name, part)
  return {name = name, part = part, shape = function(o) return {o.num_channels, o.image_size, o.image_size} end}
end

-- A decoder like Llama, by what its row has beside the usual
local function decoder(architecture, name, row)
  row = row or {}
  row.models, row.needs, row.inputs = {[architecture] = name}, row.needs or OF_TOKENS, {tokens(nil, "tokens", PLACES)}
  return row
end

-- An encoder of tokens, whose architectures begin with `prefix` and its models with `name`
local function encoder(prefix, name, row)
  row.models, row.inputs = {}, {tokens(nil, "tokens", PLACES, row.unread)}
  for _, head in ipairs{"ForMaskedLM", "ForSequenceClassification"} do row.models[prefix .. head] = name .. head end
  row.needs = row.needs or OF_TOKENS
  row.must = row.must or {position_embedding_type = "absolute", is_decoder = false, add_cross_attention = false}
  return row
end

local function roberta(prefix)
  return encoder(prefix, "Roberta", {unread = function(o) return o.pad_token_id + 1 end})
end

-- An encoder that reads `input`, and a decoder of tokens, at most as many as the option `longest` says
local function seq2seq(architecture, name, input, longest, row)
  row.models, row.inputs = {[architecture] = name}, {input, tokens("decoder_input_ids", "decoder_tokens", longest)}
  row.says = "A sample has %s, decoder_input_ids, and as its targets a label for each of these. transformers makes\n" ..
    "  -- decoder_input_ids of the labels, moved by one to the right; here they are an input of their own."
  row.says = row.says:format(input.name)
  return row
end

local OF_SIDES = {"d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
  "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size"}

local OF_IMAGES = with(SIZES, "image_size", "patch_size")

local FAMILIES = {
  llama = decoder("LlamaForCausalLM", "Llama"),
  mistral = decoder("MistralForCausalLM", "Mistral"),
  qwen2 = decoder("Qwen2ForCausalLM", "Qwen2", {layer_type = qwen_type}),
  qwen3 = decoder("Qwen3ForCausalLM", "Qwen3", {layer_type = qwen_type}),
  granite = decoder("GraniteForCausalLM", "Granite"),
  olmo = decoder("OlmoForCausalLM", "Olmo", {must = {clip_qkv = false}}),
  olmo2 = decoder("Olmo2ForCausalLM", "Olmo2"),
  starcoder2 = decoder("Starcoder2ForCausalLM", "Starcoder2",
    {must = {residual_dropout = 0, embedding_dropout = 0, norm_type = "layer_norm", mlp_type = "default"}}),
  phi = decoder("PhiForCausalLM", "Phi", {must = {resid_pdrop = 0, embd_pdrop = 0, qk_layernorm = false}}),
  stablelm = decoder("StableLmForCausalLM", "StableLm", {must = {hidden_dropout = 0, qk_layernorm = false}}),
  cohere = decoder("CohereForCausalLM", "Cohere", {must = {use_qk_norm = false}}),
  phi3 = decoder("Phi3ForCausalLM", "Phi3", {must = {embd_pdrop = 0}}),
  gemma = decoder("GemmaForCausalLM", "Gemma", {must = {use_bidirectional_attention = false}}),
  gemma2 = decoder("Gemma2ForCausalLM", "Gemma2", {must = {use_bidirectional_attention = false},
    layer_type = function(_, i) return i % 2 == 1 and "sliding_attention" or "full_attention" end}),
  gpt_neox = decoder("GPTNeoXForCausalLM", "GPTNeoX"),
  opt = decoder("OPTForCausalLM", "OPT", {must = {_remove_final_layer_norm = false, layerdrop = 0},
    needs = {"hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim", "vocab_size"},
    equal = {word_embed_proj_dim = "hidden_size"}}),
  gpt2 = {models = {GPT2LMHeadModel = "GPT2"}, needs = {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head"},
    inputs = {tokens(nil, "tokens", "n_positions")}, must = {scale_attn_by_inverse_layer_idx = false, reorder_and_upcast_attn = false,
      add_cross_attention = false}},
  bert = encoder("Bert", "Bert", {}),
  roberta = roberta "Roberta", ["xlm-roberta"] = roberta "XLMRoberta", camembert = roberta "Camembert",
  electra = encoder("Electra", "Electra", {needs = with(OF_TOKENS, "embedding_size")}),
  distilbert = encoder("DistilBert", "DistilBert", {needs = {"dim", "n_layers", "n_heads", "hidden_dim", "vocab_size"},
    must = {sinusoidal_pos_embds = false}}),
  vit = {models = {ViTForImageClassification = "ViTForImageClassification"}, needs = OF_IMAGES, inputs = {images()}},
  deit = {models = {DeiTForImageClassification = "DeiTForImageClassification"}, needs = OF_IMAGES,
    inputs = {images()}},
  t5 = seq2seq("T5ForConditionalGeneration", "T5", tokens("input_ids", "tokens"), nil, {must = {is_decoder = false},
    needs = {"d_model", "d_kv", "d_ff", "num_layers", "num_heads", "vocab_size"}}),
  bart = seq2seq("BartForConditionalGeneration", "Bart", tokens("input_ids", "tokens", PLACES), PLACES, {
    needs = with(OF_SIDES, PLACES), must = {encoder_layerdrop = 0, decoder_layerdrop = 0, tie_word_embeddings = true,
      normalize_before = false, add_final_layer_norm = false, normalize_embedding = true}}),
  whisper = seq2seq("WhisperForConditionalGeneration", "Whisper",
    {name = "input_features", shape = function(o) return {o.num_mel_bins, 2 * o.max_source_positions} end},
    "max_target_positions", {needs = with(OF_SIDES, "num_mel_bins", "max_source_positions", "max_target_positions"),
      must = {encoder_layerdrop = 0, decoder_layerdrop = 0, apply_spec_augment = false}}),
  clip = {models = {CLIPModel = "CLIP"}, needs = {"projection_dim"},
    parts = {text_config = with(OF_TOKENS, PLACES), vision_config = OF_IMAGES},
    inputs = {tokens("input_ids", "tokens", PLACES, nil, "text_config"), images("pixel_values", "vision_config")},
    loss = "0.5 * nn.CrossEntropyLoss() + 0.5 * nn.CrossEntropyLoss()",
    says = "Text i of a batch belongs to image i: the targets of N samples are 0 to N - 1. Random data have any numbers\n" ..
      "  -- below N, which changes the loss and nothing else."},
}

-- Families that are known and cannot be imported, and why
local NOT_HERE = {
  mixtral = "mixtures of experts are no layer",
  mamba = "scans of states are no layer",
}

-- The architecture that is taken where the file names one without a head, or none
local function plain_of(family)
  for _, architecture in ipairs(util.sorted_keys(family.models)) do
    if architecture:find "MaskedLM$" then return architecture end
  end
  return next(family.models)
end

-- ---- reading

local function fail(path, format, ...)
  error(util.failure(("%s: %s"):format(path, format:format(...)), "format"), 0)
end

-- {rope_theta, rope_scaling, ...} of transformers 4, and rope_parameters of 5, as one table; nil: neither
local function rope_of(path, config)
  local given = config.rope_parameters or config.rope_scaling
  if not given then return {} end
  if type(given) ~= "table" then fail(path, "rope_scaling: expected an object, found %s", literal.of(given)) end
  local rope = literal.copy(given)
  rope.rope_type, rope.type = rope.rope_type or rope.type, nil
  return rope
end

local fields = {}

function fields.rope_theta(path, config)
  return rope_of(path, config).rope_theta or config.rope_theta or config.rotary_emb_base
end

function fields.partial_rotary_factor(path, config)
  return rope_of(path, config).partial_rotary_factor or config.partial_rotary_factor or config.rotary_pct
end

function fields.rope_scaling(path, config)
  local rope = rope_of(path, config)
  if (rope.rope_type or "default") == "default" then return nil end
  rope.rope_theta, rope.partial_rotary_factor = nil, nil
  return rope
end

-- T5 1.1 and its kin have a product of logits of their own, and no scale before it.
function fields.scale_decoder_outputs(_, config)
  if config.scale_decoder_outputs ~= nil then return config.scale_decoder_outputs end
  return config.tie_word_embeddings
end

function fields.num_labels(_, config)
  if config.num_labels then return config.num_labels end
  local n = 0
  for _ in pairs(type(config.id2label) == "table" and config.id2label or {}) do n = n + 1 end
  return n > 0 and n or nil
end

-- Options that a file may say to be null, and the value of mt.models that means the same
local NULL = {sliding_window = 0, num_key_value_heads = 0, head_dim = 0, num_decoder_layers = 0, n_inner = 0, attn_logit_softcapping = 0,
  final_logit_softcapping = 0, classifier_dropout = -1, pad_token_id = -1}

-- The value of an option as the file says it; nil: its default. Raises if it has another type.
local function option_of(path, config, name, default)
  local value = config[name]
  if fields[name] then value = fields[name](path, config) end
  if value == nil then return nil end
  if value == false and type(default) ~= "boolean" and NULL[name] then return NULL[name] end
  if math.type(default) == "integer" and math.type(value) == "float" and math.tointeger(value) then
    value = math.tointeger(value)
  end
  local expected = type(default) == "number" and "a number" or type(default) == "boolean" and "true or false"
    or type(default) == "string" and "a word" or "an object"
  if type(value) ~= type(default) then fail(path, "%s: expected %s, found %s", name, expected, literal.of(value)) end
  return value
end

-- Raises unless the file has the size, a whole number.
local function check_size(path, config, name)
  local value = config[name]
  if value == nil then fail(path, '"%s" is missing', name) end
  if math.type(value) ~= "integer" or value < 1 then
    fail(path, "%s: expected a whole number of at least 1, found %s", name, literal.of(value))
  end
end

local function read_config(path)
  local config = util.must(core.json(util.read_file(path, "import"), path))
  if type(config) ~= "table" or config[1] ~= nil then fail(path, "expected an object of settings") end
  return config
end

local function family_of(path, config)
  local word = config.model_type
  if type(word) ~= "string" then fail(path, '"model_type" is missing') end
  local known = util.sorted_keys(FAMILIES)
  if NOT_HERE[word] then fail(path, 'model_type: "%s" is not imported: %s', word, NOT_HERE[word]) end
  return FAMILIES[word] or fail(path, 'model_type: expected one of %s, found "%s"%s', table.concat(known, ", "), word,
    util.meant(word, known))
end

-- The architecture that is imported, and whether the file names it.
local function architecture_of(path, config, family)
  local known, said = util.sorted_keys(family.models), config.architectures
  local word = type(said) == "table" and said[1] or nil
  if family.models[word] then return word, true end
  local plain = plain_of(family)
  if word == nil or tostring(word):match "Model$" then return plain, false end
  fail(path, 'architectures: expected one of %s, found "%s"', table.concat(known, ", "), tostring(word))
end

local function check_fixed(path, config, family)
  for _, name in ipairs(util.sorted_keys(family.must or {})) do
    local value = config[name]
    if value ~= nil and value ~= family.must[name] and (value or family.must[name] == true) then
      fail(path, "%s: expected %s, the only form that is imported, found %s", name, literal.of(family.must[name]),
        literal.of(value))
    end
  end
  for name, other in pairs(family.equal or {}) do
    if config[name] and config[name] ~= config[other] then
      fail(path, "%s: expected %s, as %s is, found %s", name, literal.of(config[other]), other,
        literal.of(config[name]))
    end
  end
end

-- Raises if the file says of a layer what the model's other options do not mean.
local function check_layers(path, config, family, o)
  if type(config.layer_types) ~= "table" then return end
  for i, word in ipairs(config.layer_types) do
    local meant = family.layer_type and family.layer_type(o, i) or "full_attention"
    if word ~= meant then
      fail(path, 'layer_types: layer %d: expected "%s", as the other fields have it, found %s', i - 1, meant,
        literal.of(word))
    end
  end
end

-- The options of a model, or of a part of one, as the file says them: those that a script has, which are the sizes in
-- `needs` and what differs from its default, and all
local function read_options(path, config, defaults, needs, parts)
  local options, all, shown = {}, {}, {}
  for _, name in ipairs(needs) do
    check_size(path, config, name)
    shown[name] = true
  end
  for option, default in pairs(defaults) do
    local value = option_of(path, config, option, default)
    if parts[option] then
      if value == nil then fail(path, '"%s" is missing', option) end
      options[option], all[option] = read_options(path .. ": " .. option, value, default, parts[option], {})
    else
      if value ~= nil and (shown[option] or literal.of(value) ~= literal.of(default)) then options[option] = value end
      if value == nil then all[option] = default else all[option] = value end
    end
  end
  return options, all
end

-- The model that a config.json describes -> {name, options, all, family, architecture, said, quantized}: its name in
-- mt.models, the sizes and the options that differ from their defaults, and all options; are its weights quantised there?
-- Raises a failure that names the file and the field.
function hf.read(path)
  local config = read_config(path)
  local family = family_of(path, config)
  local architecture, said = architecture_of(path, config, family)
  check_fixed(path, config, family)
  local name = family.models[architecture]
  local options, all = read_options(path, config, model.defaults[name], family.needs, family.parts or {})
  check_layers(path, config, family, all)
  local quantized = type(config.quantization_config) == "table"
  return {quantized = quantized, name = name, options = options, all = all, family = family, architecture = architecture, said = said}
end

-- ---- the script

-- The options as they stand in a script, sizes first, in lines that are not too long; parts in lines of their own
local function options_text(options, needs, parts, margin)
  local first, lines, line = {}, {}, margin
  for i, name in ipairs(needs) do first[name] = i end
  local names = util.sorted_keys(options)
  table.sort(names, function(a, b)
    local x, y = first[a] or math.huge, first[b] or math.huge
    if x ~= y then return x < y end
    return a < b
  end)
  for _, name in ipairs(names) do
    local inner = parts[name] and options_text(options[name], parts[name], {}, margin .. "  ")
    local word = inner and ("%s = {\n%s\n%s },"):format(name, inner, margin)
      or ("%s = %s,"):format(name, literal.of(options[name]))
    if line ~= margin and (inner or #line + 1 + #word > 110) then lines[#lines + 1], line = line, margin end
    line = line .. " " .. word
    if inner then lines[#lines + 1], line = line, margin end
  end
  if line:find "%S" then lines[#lines + 1] = line end
  return table.concat(lines, "\n")
end

local SCRIPT = [[
-- %s%s
-- %d parameters. Written by memtide import.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function Model()
  return mt.models.%s{
%s
  }
end

return mt.experiment{
  name = %s, model = Model,
%s
  optimizer = optim.AdamW{lr = 5e-5, weight_decay = 0.01},
  sweep = {{"batch", {1, 4}}, {"precision", {"fp32", "amp_bf16"}}, {"checkpoint", {"none", "selective"}}},
  steps = 3, warmup = 1,
}
]]

-- The inputs as a table in the script, and the options that it needs, {}: none
local function input_text(found)
  local options, parts = {}, {}
  for i, input in ipairs(found.family.inputs) do
    local o = input.part and found.all[input.part] or found.all
    if input.option then
      local most = input.longest and o[input.longest] - (input.unread and input.unread(o) or 0)
      local limit = most and (", at most %d"):format(most) or ""
      options[#options + 1] = ('{"%s", %d, "of a sample%s"}'):format(input.option, math.min(most or TOKENS, TOKENS), limit)
      parts[i] = ("{s.%s}"):format(input.option)
    else
      parts[i] = "{" .. table.concat(input.shape(o), ", ") .. "}"
    end
    if input.name then parts[i] = ("%s = %s"):format(input.name, parts[i]) end
  end
  local text = table.concat(parts, ", ")
  return found.family.inputs[1].name and ("{%s}"):format(text) or text, options
end

-- What the script says of input, loss and weights
local function data_lines(found, given)
  local o, lines, text, options = found.all, {}, input_text(found)
  if found.family.says then lines[1] = "  -- " .. found.family.says end
  if #options > 0 then
    lines[#lines + 1] = ("  options = {%s},"):format(table.concat(options, ", "))
    text = ("function(s) return %s end"):format(text)
  end
  lines[#lines + 1] = ("  input = %s,"):format(text)
  local loss = found.family.loss or o.num_labels == 1 and "nn.MSELoss()" or "nn.CrossEntropyLoss()"
  lines[#lines + 1] = ("  loss = %s,"):format(loss)
  if given then lines[#lines + 1] = "  weights = " .. given .. "," end
  return table.concat(lines, "\n")
end

-- How the script names the folder's weights, and what to say about them; nil: there are none
local function weights_of(folder, layer, network, notes)
  if not weights.exist(folder) then return nil end
  local missing, unexpected, misfits = weights.compare({network = network, files = rawget(layer, "files")}, folder)
  if not missing then error(util.failure(unexpected, misfits), 0) end
  if #misfits > 0 then error(util.failure(("%s: %s"):format(folder, misfits[1]), "format"), 0) end
  for what, list in pairs{["not in the weights, and starts anew"] = missing, ["only in the weights"] = unexpected} do
    if #list > 0 then notes[#notes + 1] = ("%s: %s (%d tensors)"):format(what, list[1], #list) end
  end
  table.sort(notes)
  local lax = #missing + #unexpected > 0
  return lax and ("{%s, strict = false}"):format(literal.of(folder)) or literal.of(folder)
end

-- What one sample of one token, or of one image, is
local function least_input(found)
  local least = {}
  for _, input in ipairs(found.family.inputs) do
    local shape = input.shape and input.shape(input.part and found.all[input.part] or found.all) or {1}
    if not input.name then return shape end
    least[input.name] = shape
  end
  return least
end

-- import(path) -> the script's text, and notes for the user as a list; raises a failure that says what is wrong with
-- which file. path: a folder with config.json, or that file; a file of another name has no weights beside it
function hf.import(path)
  local folder = path:match "^(.*)/config%.json$" or path == "config.json" and "." or path
  local alone = folder:find "%.json$" ~= nil
  local file = path:match "%.json$" and path or path .. "/config.json"
  if not core.can_read(file, "import") then
    local message = "%s: cannot be read: expected a folder with Hugging Face's config.json"
    error(util.failure(message:format(file), "file"), 0)
  end
  local found, notes = hf.read(file), {}
  local built, layer = util.try(models[found.name], nil, found.options)
  local network
  if built then built, network = util.try(nn.network, nil, layer, nil, 1, least_input(found)) end
  if not built then fail(file, "%s", util.text_of(network or layer)) end
  local parameters = network:parameters()
  if found.quantized then notes[1] = "quantization_config: " .. AS_PLAIN end
  local given = not alone and weights_of(folder, layer, network, notes) or nil
  local from = found.said and "" or ("; the file names no model with a head: this is %s"):format(found.architecture)
  local name = (folder:gsub("%.json$", ""):match "([^/]+)/*$" or ""):gsub("[^%w_.-]", "_")
  if name:match "^%.*$" then name = found.name:lower() end
  local options = options_text(found.options, found.family.needs, found.family.parts or {}, "   ")
  local text = SCRIPT:format(util.printable(file), from, parameters, found.name, options, literal.of(name),
    data_lines(found, given))
  network:close()
  return text, notes
end

return hf
