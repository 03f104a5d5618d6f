-- memtide import of Hugging Face's folders: parameters, logits, loss and gradients as transformers has them; weights in
-- its names; what is wrong with a file.
local tap = dofile "tests/tap.lua"
local hf = require "memtide.net.hf"
local mt = require "memtide"
local script = require "memtide.sweep.script"
local cases = dofile "tests/oracle/hf.lua" -- by tests/peers/hf_cases.py, which has these formulas, too
local optim = mt.optim

local STEPS, DECODER_STEPS, SAMPLES = 12, 8, 2

local values = dofile "tests/lua/values.lua"
local mixed, numbers, value_of = values.mixed, values.numbers, values.value_of

local folder = os.tmpname()
os.remove(folder)
assert(os.execute("mkdir " .. folder))

local function write(name, text)
  local path = folder .. "/" .. name
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
  return path
end

-- The experiment that import writes for a config.json, its text and its model
local function imported(config)
  write("config.json", config)
  local text, notes = hf.import(folder)
  local experiment = script.load_experiment("imported.lua", {}, text)
  return experiment, text, notes
end

local function trainer_of(experiment, input, optimizer)
  return assert(mt.trainer{model = experiment.base.model(), input = input, loss = experiment.base.loss, batch = SAMPLES,
    optimizer = optimizer})
end

-- Sum of squares of what a step of SGD at rate 1 changes
local function gradient_norm(trainer, before)
  local sum = 0
  for _, param in ipairs((trainer:parameters())) do
    local after = trainer:read(param.name)
    for i, x in ipairs(before[param.name]) do sum = sum + (x - after[i]) ^ 2 end
  end
  return sum ^ 0.5
end

local function product(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end

-- SAMPLES samples of that shape: tokens where it has one dimension, else numbers
local function samples(shape)
  if #shape > 1 then return numbers(SAMPLES * product(shape), "input") end
  return values.tokens(SAMPLES * shape[1])
end

-- What the experiment says that it reads, and samples of it
local function inputs_of(experiment)
  local input = experiment.base.input
  if type(input) == "function" then input = input{tokens = STEPS, decoder_tokens = DECODER_STEPS} end
  if input[1] then return input, samples(input) end
  local x = {}
  for name, shape in pairs(input) do x[name] = samples(shape) end
  return input, x
end

local function apart(a, b) return math.abs(a - b) / math.max(1, math.abs(b)) end

-- tests/peers/hf.py reads these lines.
local function within(limit, by, case, what)
  tap.ok(by <= limit, ("%s: %s (%.1e apart)"):format(case.name, what, by))
end

for _, case in ipairs(cases) do
  local experiment = imported(case.config)
  local input, x = inputs_of(experiment)
  local trainer <close> = trainer_of(experiment, input, optim.SGD{lr = 1})
  local params, count = trainer:parameters()
  tap.is(count, case.parameters, case.name .. ": parameters")
  local before = {}
  for _, param in ipairs(params) do
    before[param.name] = value_of(param.name, param.elements, param.shape)
    assert(trainer:write(param.name, before[param.name]))
  end
  local logits, shape = trainer:predict(x)
  local worst = 0
  for i, want in ipairs(case.logits) do
    worst = math.max(worst, apart(logits[(i - 1) * case.step + 1], want))
  end
  within(1e-5, worst, case, "logits")
  local labels = {}
  local matches = experiment.base.loss.kind == "sum" -- text i of a batch belongs to image i
  for i = 0, shape[1] - 1 do labels[i + 1] = matches and i or mixed(i, 2) % shape[2] end
  within(1e-5, apart(trainer:step(x, labels), case.loss), case, "loss")
  within(1e-4, math.abs(gradient_norm(trainer, before) - case.norm) / case.norm, case, "gradients")
  tap.is(trainer:memory().peak.bytes, trainer:predicted().peak.bytes, case.name .. ": peak as predicted")
end

-- ---- published sizes

-- {config.json, parameters: of models with two inputs, as transformers counts them}
for _, row in ipairs{
  {[[{"model_type": "t5", "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}]],
    60506624, "t5-small"},
  {[[{"model_type": "t5", "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
    "num_decoder_layers": 8, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false}]], 76961152, "flan-t5-small"},
  {[[{"model_type": "bart", "architectures": ["BartModel"], "vocab_size": 50265, "d_model": 768, "encoder_layers": 6,
    "decoder_layers": 6, "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072, "max_position_embeddings": 1024, "normalize_before": false}]], 139420416, "bart-base"},
  {[[{"model_type": "whisper", "vocab_size": 51865, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536,
    "num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448}]], 37760640, "whisper-tiny"},
  {[[{"model_type": "clip", "projection_dim": 512, "text_config": {"vocab_size": 49408, "hidden_size": 512,
    "num_hidden_layers": 12, "num_attention_heads": 8, "intermediate_size": 2048, "max_position_embeddings": 77,
    "eos_token_id": 2}, "vision_config": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "image_size": 224, "patch_size": 32}}]], 151277313, "clip-vit-base-patch32"},
} do
  local _, text = imported(row[1])
  tap.is(tonumber(text:match "(%d+) parameters"), row[2], row[3])
end

-- ---- what is wrong with a file

local LLAMA = [[{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
  "intermediate_size": 24, "vocab_size": 50%s}]]

for field, said in pairs{[', "quantization_config": {"load_in_4bit": true}'] = true, [', "quantization_config": null'] = false, [""] = false} do
  local _, _, notes = imported(LLAMA:format(field))
  tap.is(notes[1] and notes[1]:find("quantization_config: left out", 1, true) ~= nil or false, said, "weights that are quantised there are told: " .. field)
end

local function refused(config, message, what)
  write("config.json", config)
  local good, found = pcall(hf.import, folder)
  found = good and "imported" or tostring(type(found) == "table" and found.message or found)
  tap.ok(not good and found:find(message, 1, true) and not found:find "\n", what .. ": " .. found:gsub("^.*json: ", ""))
end

refused("{", "config.json", "no JSON")
refused("[1]", "expected an object of settings", "a list")
refused("{}", '"model_type" is missing', "no family")
refused('{"model_type": "lama"}', 'did you mean "llama"', "an unknown family")
refused('{"model_type": "mamba"}', '"mamba" is not imported: scans of states are no layer', "a family that is not there")
refused('{"model_type": "llama"}', '"hidden_size" is missing', "no size")
refused(LLAMA:format ', "head_dim": "x"', "head_dim: expected a number", "a word for a number")
refused(LLAMA:format ', "rope_scaling": {"rope_type": "yarn"}', 'found "yarn"', "positions that are not here")
refused(LLAMA:format ', "hidden_act": "swoosh"', '"swoosh" is none of the activations', "an unknown activation")
refused(LLAMA:format ', "architectures": ["LlamaForTokenClassification"]', "architectures: expected one of", "a head")
refused('{"model_type": "olmo", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, ' ..
  '"intermediate_size": 24, "vocab_size": 50, "clip_qkv": 8}', "clip_qkv: expected false", "a form that is not here")

local T5 = [[{"model_type": "t5", "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4, "vocab_size": 50%s}]]
refused(T5:format ', "feed_forward_proj": "twice-relu"', '"twice-relu" is none of the activations', "an unknown feed forward")
refused(T5:format ', "is_decoder": true', "is_decoder: expected false", "half a model")
refused(T5:format ', "relative_attention_num_buckets": 3', "num_buckets must be between 4 and", "too few buckets")
refused('{"model_type": "bart", "d_model": 16}', '"encoder_layers" is missing', "no size of BART's")
refused('{"model_type": "whisper", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_layerdrop": 0.1}',
  "encoder_layerdrop: expected 0", "layers that are dropped")

local CLIP = [[{"model_type": "clip", "projection_dim": 8, "vision_config": {"hidden_size": 16, "num_hidden_layers": 1,
  "num_attention_heads": 2, "intermediate_size": 24, "image_size": 16, "patch_size": 8}%s}]]
refused(CLIP:format "", '"text_config" is missing', "no text")
refused(CLIP:format ', "text_config": 5', "text_config: expected an object, found 5", "a number for a part")
refused(CLIP:format ', "text_config": {"hidden_size": "x"}', "text_config: hidden_size: expected a whole number", "a size of a part")

os.execute("rm -r " .. folder)
tap.done()
