-- Weights of 4 and 8 bits: codes and scales are bitsandbytes' to the bit, files are exchanged with it, layers train beside
-- them, and a model's linear layers become such ones.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local core = require "memtide.core"
local values = dofile "tests/lua/values.lua"
local nn, optim = mt.nn, mt.optim

-- Numbers that tests/peers/quantized_cases.py makes, too
local function numbers(count, scale)
  local state, out = 12345, {}
  for i = 0, count - 1 do
    local total = 0
    for _ = 1, 4 do
      state = (state * 1103515245 + 12345) % 2147483648
      total = total + state
    end
    out[i + 1] = (total / 2147483648 - 2) * scale * (1 + i // 64 % 7)
  end
  return out
end

local function layer_of(kind, nested, columns, rows, bias)
  if kind == "int8" then return nn.Linear8bitLt(columns, rows, {bias = bias or false}) end
  return nn.Linear4bit(columns, rows, {bias = bias or false, quant_type = kind, compress_statistics = nested})
end

-- The checksums of all persistent buffers, by name
local function checksums(trainer)
  local sums = {}
  for i, buffer in ipairs(core.persistent(trainer.runtime)) do sums[buffer.name] = core.checksum(trainer.runtime, i) end
  return sums
end

local function packed(list)
  for i, x in ipairs(list) do list[i] = ("<f"):pack(x) end
  return table.concat(list)
end

local oracle = dofile "tests/oracle/quantized.lua"

-- ---- the bits of bitsandbytes
for _, case in ipairs(oracle.cases) do
  local what = ("%s%s of (%d, %d)"):format(case.kind, case.nested and ", nested" or "", case.rows, case.columns)
  local trainer = mt.trainer{model = layer_of(case.kind, case.nested, case.columns, case.rows), input = {case.columns},
    batch = 1, loss = nn.MSELoss(), optimizer = optim.SGD{lr = 1}}
  trainer:write("weight", numbers(case.rows * case.columns, 0.02))
  local sums = checksums(trainer)
  for name, sum in pairs(case.parts) do tap.is(sums[name], sum, what .. ": " .. name) end
  local found, shape = trainer:read("weight")
  tap.is(table.concat(shape, " "), ("%d %d"):format(case.rows, case.columns), what .. ": is read as the weight")
  tap.is(core.checksum(packed(found)), case.values, what .. ": its values")
end

-- ---- in bf16 a weight is rounded before it is multiplied: sums of three, where rounding their sum alone would often give another number
local function bf16(x)
  local bits = ("<I4"):unpack((("<f"):pack(x)))
  return (("<f"):unpack(("<I4"):pack((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000)))
end
for _, kind in ipairs{"nf4", "int8"} do
  local INPUTS <const>, OUTPUTS <const> = 96, 20
  local trainer <close> = assert(mt.trainer{model = layer_of(kind, false, INPUTS, OUTPUTS), input = {INPUTS}, batch = INPUTS,
    loss = nn.MSELoss(), optimizer = optim.SGD{lr = 1}, precision = "bf16"})
  trainer:write("weight", numbers(INPUTS * OUTPUTS, 0.02))
  local weight, ones, wrong, late = trainer:read("weight"), {}, 0, 0
  local function place(sample, k) return (sample + 7 * k * k) % INPUTS end
  for i = 1, INPUTS * INPUTS do ones[i] = 0 end
  for sample = 0, INPUTS - 1 do
    for k = 1, 3 do ones[sample * INPUTS + place(sample, k) + 1] = 1 end
  end
  local found = trainer:predict(ones)
  for sample = 0, INPUTS - 1 do
    for o = 0, OUTPUTS - 1 do
      local rounded, sum = 0, 0
      for k = 1, 3 do
        local w = weight[o * INPUTS + place(sample, k) + 1]
        rounded, sum = rounded + bf16(w), sum + w
      end
      if found[sample * OUTPUTS + o + 1] ~= bf16(rounded) then wrong = wrong + 1 end
      if bf16(sum) ~= bf16(rounded) then late = late + 1 end
    end
  end
  tap.ok(wrong == 0 and late > 200, ("%s in bf16: %d sums of rounded weights are wrong, %d would be if only sums were rounded"):format(kind, wrong, late))
end

-- ---- the numbers that nn.Linear would start with, and all other layers theirs
local function two(quantized)
  local model = nn.Sequential{nn.Linear(12, 40), nn.Linear(40, 36, {std = 0.3}), nn.Linear(36, 5)}
  if quantized then mt.peft.quantize(model, {load_in_8bit = true, llm_int8_skip_modules = {"0", "2"}}) end
  return mt.trainer{model = model, input = {12}, batch = 2, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 1}, seed = 9}
end
local plain, codes = two(false), two(true)
for _, name in ipairs{"0.weight", "2.weight", "1.bias", "2.bias"} do
  tap.is(packed(plain:read(name)) == packed(codes:read(name)), true, name .. " starts as it does beside nn.Linear")
end
local a, b, largest = plain:read "1.weight", codes:read "1.weight", 0
for i in ipairs(a) do largest = math.max(largest, math.abs(a[i] - b[i])) end
tap.ok(largest > 0 and largest < 0.01, ("a weight of 8 bits is near that of nn.Linear: %g"):format(largest))

-- ---- files: of bitsandbytes, and there and back
local FILE, COPY = "tests/oracle/quantized.safetensors", os.tmpname()
local function open(more)
  local options = {model = nn.Sequential{nn.Linear(24, 64), nn.ReLU(), nn.Linear4bit(64, 40, {quant_type = "nf4"}), nn.ReLU(),
    nn.Linear4bit(40, 16, {bias = false, compress_statistics = false}), nn.Linear(16, 5)}, input = {24}, batch = 8,
    loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1}}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.trainer(options)
end
local x, y = numbers(8 * 24, 0.3), {0, 1, 2, 3, 4, 0, 1, 2}
local trainer = open()
trainer:load(FILE)
tap.ok(trainer:save(COPY), "what bitsandbytes has written is loaded and saved")
local function tensors(path)
  local list, file = {}, core.safetensors(path)
  for _, tensor in ipairs(file:list()) do
    local sum = tensor.name:find "quant_state" and #file:bytes(tensor.name) > 50 or file:checksum(tensor.name)
    list[#list + 1] = ("%s %s %s %s"):format(tensor.name, tensor.dtype, table.concat(tensor.shape, ","):gsub("^1%d%d$", "text"), sum)
  end
  return table.concat(list, "\n")
end
tap.is(tensors(COPY):gsub("nf4 U8 %d+", "nf4 U8 text"), tensors(FILE):gsub("nf4 U8 %d+", "nf4 U8 text"), "the same tensors, with the same bytes")
local other = open{seed = 5}
other:load(COPY)
local same, wanted = checksums(other), checksums(trainer)
for name in pairs(wanted) do if name ~= "lr" then tap.is(same[name], wanted[name], name .. " comes back") end end
for i, loss in ipairs(oracle.losses) do tap.near(trainer:step(x, y), loss, 2e-6, ("the loss of step %d is PyTorch's with bitsandbytes"):format(i)) end
tap.is(table.concat(trainer:read "2.weight", " "), table.concat(other:read "2.weight", " "), "quantised weights are not trained")

-- plain weights in a file are quantised on the way in
local float = mt.trainer{model = nn.Sequential{nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 16, {bias = false}),
  nn.Linear(16, 5)}, input = {24}, batch = 8, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1}, seed = 3}
float:save(COPY)
other:load(COPY)
local expected = open()
expected:write("2.weight", (float:read "2.weight"))
tap.is(packed(other:read "2.weight"), packed(expected:read "2.weight"), "a plain weight in a file becomes codes")

-- a saved run goes on with the same bits
local run = open{seed = 4}
run:step(x, y)
run:save_state(COPY)
local resumed = open{seed = 4}
resumed:step(x, y)
resumed:step(x, y)
resumed:load_state(COPY)
tap.is(run:step(x, y), resumed:step(x, y), "a run is resumed")

-- ---- files that are torn: one message that names file and tensor, and nothing is changed
local function torn(change, message, what, options)
  local list, file = {}, core.safetensors(FILE)
  for _, tensor in ipairs(file:list()) do list[tensor.name] = {tensor.dtype, tensor.shape, file:bytes(tensor.name)} end
  change(list)
  local header, data = {}, {}
  local at = 0
  for name, tensor in pairs(list) do
    header[#header + 1] = ('"%s": {"dtype": "%s", "shape": [%s], "data_offsets": [%d, %d]}'):format(name, tensor[1],
      table.concat(tensor[2], ", "), at, at + #tensor[3])
    data[#data + 1], at = tensor[3], at + #tensor[3]
  end
  local text = "{" .. table.concat(header, ", ") .. "}"
  text = text .. (" "):rep(-#text % 8)
  local out <close> = assert(io.open(COPY, "wb"))
  out:write(("<I8"):pack(#text), text, table.concat(data))
  out:close()
  local before = checksums(trainer)
  tap.raises("trainer:load: " .. COPY .. message, what, function() assert(trainer:load(COPY, options)) end)
  local after, changed = checksums(trainer), 0
  for name, sum in pairs(before) do if after[name] ~= sum then changed = changed + 1 end end
  tap.is(changed, 0, what .. ": nothing is changed")
end
local STATE = "2.weight.quant_state.bitsandbytes__nf4"
local function state(pattern, text)
  return function(list) list[STATE][3] = list[STATE][3]:gsub(pattern, text); list[STATE][2] = {#list[STATE][3]} end
end
torn(function(list) list["2.weight.absmax"] = nil end, ": 2.weight.absmax: is missing, but its codes are there", "absmax is missing")
torn(function(list) list["2.weight.nested_quant_map"] = nil end, ": 2.weight.nested_quant_map: is missing, but its codes are there",
  "part of it is missing where names may be", {strict = false})
torn(function(list) list["2.weight.absmax"][2], list["2.weight.absmax"][3] = {39}, list["2.weight.absmax"][3]:sub(2) end,
  " does not fit this trainer: 2.weight.absmax: expected the shape (40), found (39)", "too few blocks")
torn(function(list) list["2.weight"][2], list["2.weight"][3] = {1279, 1}, list["2.weight"][3]:sub(2) end,
  " does not fit this trainer: 2.weight: expected the shape (1280, 1), found (1279, 1)", "too few codes")
torn(function(list) list[STATE] = nil end, ": 2.weight: has codes, but the file has no " .. STATE, "codes without a state")
torn(state('"nf4"', '"fp4"'), ": " .. STATE .. ": quant_type: expected nf4, found fp4", "another type in the state")
torn(function(list) list["2.weight.quant_state.bitsandbytes__fp4"], list[STATE] = list[STATE], nil end,
  ": 2.weight.quant_state.bitsandbytes__fp4: quant_type: expected nf4, found fp4", "another type")
torn(state('"blocksize": 64', '"blocksize": 128'), ": " .. STATE .. ": blocksize: expected 64, found 128", "another block")
torn(state('"shape": %[40, 64%]', '"shape": [64, 40]'), ": " .. STATE .. ": shape: expected 40, 64, found 64, 40", "another shape")
torn(state('"nested_offset": [%d.e-]+', '"nested_offset": null'), ": " .. STATE .. ": nested_offset: expected a number (compress_statistics = true), found none",
  "no offset")
torn(state("^{", ""), ": " .. STATE .. ": expected a JSON object", "a state that is cut off")
torn(function(list) list["4.weight.absmax"][3] = ("<f"):pack(0 / 0) .. list["4.weight.absmax"][3]:sub(5) end,
  ": 4.weight.absmax: has a number that is not finite", "absmax is no number")
torn(function(list) list["4.weight.absmax"][1], list["4.weight.absmax"][3] = "I32", list["4.weight.absmax"][3] end,
  " does not fit this trainer: 4.weight.absmax: expected F32, found I32", "absmax of another type")

-- ---- peft.quantize
local function model()
  return mt.models.Llama{hidden_size = 32, intermediate_size = 48, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 96,
    num_hidden_layers = 2}
end
local function count(tree, kind)
  local n = tree.kind == kind and 1 or 0
  for _, child in ipairs(tree) do n = n + count(child, kind) end
  return n
end
local FOUR = {load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_use_double_quant = true}
local llama = mt.peft.quantize(model(), FOUR)
tap.is(("%d %d"):format(count(llama, "Linear4bit"), count(llama, "Linear")), "14 1", "all but lm_head become codes")
tap.is(count(mt.peft.quantize(model(), {load_in_8bit = true, llm_int8_skip_modules = {"down_proj"}}), "Linear8bitLt"), 13,
  "a list of names takes the place of lm_head")
local tied = nn.Linear(8, 8)
local pair = nn.Sequential{tied, nn.Linear(8, 8), nn.Linear(8, 8, {tied = tied})}
mt.peft.quantize(pair, {load_in_4bit = true, llm_int8_skip_modules = {}})
tap.is(("%s %s %s"):format(pair[1].kind, pair[2].kind, pair[3].kind), "Linear Linear4bit Linear", "tied layers stay")
local function refused(config, message, what, of)
  tap.raises("peft.quantize: " .. message, what, function() mt.peft.quantize(of or model(), config) end)
end
refused({}, "expected one of load_in_4bit and load_in_8bit, found neither", "neither")
refused({load_in_4bit = true, load_in_8bit = true}, "expected one of load_in_4bit and load_in_8bit, found both", "both")
refused({load_in_4bit = true, bnb_4bit_compute_dtype = "bfloat16"}, "bnb_4bit_compute_dtype is no field here: the setting precision says it",
  "the type of computation")
refused({load_in_4bit = true, bnb_4bit_quant_type = "int4"}, 'bnb_4bit_quant_type: expected "fp4" or "nf4", found int4', "another type")
refused({load_in_4bit = true, use_double_quant = true}, 'unknown key "use_double_quant"', "an unknown field")
refused(FOUR, "the model has no nn.Linear but what gives the logits, and tied ones", "no layer is left", nn.Sequential{nn.Linear(3, 2)})

-- ---- a small Llama whose base is quantised learns through its adapters; prediction and measurement agree
local ids = values.tokens(4 * 16)
local BASE = "model.layers.1.mlp.up_proj.base_layer.weight"
for _, config in ipairs{FOUR, {load_in_4bit = true}, {load_in_8bit = true}} do
  for _, precision in ipairs{"fp32", "amp_bf16", "amp_fp16", "bf16", "master_bf16"} do
    local usual
    for _, more in ipairs{{}, {checkpoint = "all"}, {checkpoint = "selective"}, {offload = "all"}, {checkpoint = "sqrt", accumulate = 2}} do
      local base = mt.peft.lora(mt.peft.quantize(model(), config), {r = 4, lora_alpha = 8, target_modules = "all-linear"})
      local options = {model = base, input = {16}, batch = more.accumulate and 2 or 4, loss = nn.CrossEntropyLoss(),
        optimizer = optim.AdamW{lr = 0.01}, seed = 2, precision = precision}
      local name = (config.load_in_8bit and "int8 " or config.bnb_4bit_quant_type or "fp4 ") .. precision
      for key, value in pairs(more) do options[key], name = value, name .. (" %s=%s"):format(key, value) end
      local learner <close> = assert(mt.trainer(options))
      local before, losses = packed(learner:read(BASE)), {}
      for i = 1, 6 do losses[i] = assert(learner:step(ids, ids)) end
      tap.ok(losses[6] < losses[1], ("%s: the loss falls from %.3f to %.3f"):format(name, losses[1], losses[6]))
      tap.is(learner:memory().peak.bytes, learner:predicted(6).peak.bytes, name .. ": peak as predicted")
      tap.is(packed(learner:read(BASE)) == before, true, name .. ": the base stays")
      if not more.accumulate then usual = usual or losses end
      tap.is(more.accumulate or table.concat(losses, " "), more.accumulate or table.concat(usual, " "), name .. ": losses")
    end
  end
end

-- plain weights of the model are loaded into the quantised base; what is merged is numbers again
local whole = assert(mt.trainer{model = model(), input = {16}, batch = 1, loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{}, seed = 6})
assert(whole:save(COPY))
local lean = assert(mt.trainer{model = mt.peft.lora(mt.peft.quantize(model(), FOUR), {r = 2, target_modules = {"up_proj"}}), input = {16},
  batch = 4, loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{lr = 0.01}})
assert(lean:load(COPY))
lean:step(ids, ids)
assert(lean:save(COPY, {merged = true}))
local file = core.safetensors(COPY)
local kinds = {}
for _, tensor in ipairs(file:list()) do kinds[tensor.name] = tensor.dtype end
file:close()
tap.is(("%s %s"):format(kinds["model.layers.0.mlp.up_proj.weight"], kinds["model.layers.0.mlp.up_proj.weight.absmax"]), "F32 nil",
  "a merged weight is saved as numbers")
tap.is(kinds["model.layers.0.mlp.down_proj.weight"], "U8", "one without an adapter as codes")
local back = assert(mt.trainer{model = mt.peft.quantize(model(), FOUR), input = {16}, batch = 1, loss = nn.CrossEntropyLoss(),
  optimizer = optim.AdamW{}})
assert(back:load(COPY))
tap.is(packed(back:read "model.layers.0.mlp.down_proj.weight"), packed(lean:read "model.layers.0.mlp.down_proj.weight"), "and both are loaded")
os.remove(COPY)
tap.done()
