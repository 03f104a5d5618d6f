-- Sequences that share a row: logits, losses and gradients are those of the sequences one by one, for every model with
-- packed = true; every technique that saves memory, predicted as measured; mt.data.packed; and what is wrong is said.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local values = dofile "tests/lua/values.lua"
local nn, optim, data = mt.nn, mt.optim, mt.data

local WORDS = 24
local LENGTHS = {7, 4, 1, 66, 9} -- one of them longer than a tile of attention's kernels
local STEPS = 0
for _, n in ipairs(LENGTHS) do STEPS = STEPS + n end
local INPUT = {input_ids = {STEPS}, position_ids = {STEPS}}

-- The row: tokens, positions and labels; a sequence's last token has none.
local function row(shift)
  local ids, positions, labels = {}, {}, {}
  for _, n in ipairs(LENGTHS) do
    for i = 1, n do
      local at = #ids + 1
      ids[at], positions[at] = values.mixed(at + shift, 1) % WORDS, i - 1
      labels[at] = i < n and values.mixed(at + shift, 2) % WORDS or -100
    end
  end
  return {input_ids = ids, position_ids = positions}, labels
end

local function options_of(options, packed)
  local all = {packed = packed or nil}
  for key, value in pairs(options) do all[key] = value end
  return all
end

local function trainer_of(name, options, packed, input, batch, more)
  local all = {model = mt.models[name](options_of(options, packed)), input = input, batch = batch, loss = nn.CrossEntropyLoss(),
    optimizer = optim.SGD{lr = 0}, seed = 3}
  for key, value in pairs(more or {}) do all[key] = value end
  return assert(mt.trainer(all))
end

-- One step without an update -> loss, outputs, {name = gradient}
local function step(trainer, x, y)
  local loss = assert(trainer:forward(x, y))
  assert(trainer:backward())
  assert(trainer:update())
  local gradients = {}
  for _, param in ipairs((trainer:parameters())) do gradients[param.name] = trainer:gradient(param.name) end
  return loss, trainer:output(), gradients
end

-- The same of the sequences one by one: losses are weighted by how many labels they are the mean of.
local function one_by_one(name, options, x, labels)
  local outputs, gradients, loss, counted, at = {}, {}, 0, 0, 0
  for _, n in ipairs(LENGTHS) do
    local trainer <close> = trainer_of(name, options, false, {n}, 1, {parts = true})
    local ids, own = table.move(x.input_ids, at + 1, at + n, 1, {}), table.move(labels, at + 1, at + n, 1, {})
    if n == 1 then own[1] = 0 end -- a mean of no labels is no number
    local one, output, of = step(trainer, ids, own)
    table.move(output, 1, #output, #outputs + 1, outputs)
    at = at + n
    if n > 1 then
      loss, counted = loss + one * (n - 1), counted + n - 1
      for key, gradient in pairs(of) do
        gradients[key] = gradients[key] or {}
        for i, g in ipairs(gradient) do gradients[key][i] = (gradients[key][i] or 0) + g * (n - 1) end
      end
    end
  end
  for _, gradient in pairs(gradients) do for i, g in ipairs(gradient) do gradient[i] = g / counted end end
  return loss / counted, outputs, gradients
end

-- The largest difference, as a share of the largest number
local function apart(a, b)
  local most, largest = 0, 1e-30
  for i, x in ipairs(a) do most, largest = math.max(most, math.abs(x - b[i])), math.max(largest, math.abs(x)) end
  return #a == #b and most / largest or math.huge
end

local SMALL = {hidden_size = 32, intermediate_size = 40, num_attention_heads = 4, vocab_size = WORDS, num_hidden_layers = 2,
  max_position_embeddings = 128}
local function small(more)
  local all = options_of(SMALL)
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end

local MODELS = {
  {"Llama", small{num_key_value_heads = 2}}, {"Mistral", small{num_key_value_heads = 2, sliding_window = 5}},
  {"Qwen2", small{num_key_value_heads = 4}}, {"Qwen3", small{num_key_value_heads = 2, head_dim = 16}}, {"Granite", small()},
  {"Olmo", small()}, {"Olmo2", small()}, {"Starcoder2", small{num_key_value_heads = 1}}, {"Phi", small()}, {"Phi3", small()},
  {"StableLm", small{num_key_value_heads = 4, partial_rotary_factor = 0.5}},
  {"StableLm", small{num_key_value_heads = 4, use_parallel_residual = true, partial_rotary_factor = 0.5}},
  {"Cohere", small()}, {"Gemma", small{head_dim = 8, num_key_value_heads = 2}},
  {"Gemma2", small{head_dim = 8, num_key_value_heads = 2, sliding_window = 6}},
  {"GPTNeoX", small{partial_rotary_factor = 0.5}},
  {"GPT2", {n_positions = 80, n_embd = 32, n_layer = 2, n_head = 4, vocab_size = WORDS, resid_pdrop = 0, embd_pdrop = 0,
    attn_pdrop = 0}},
  {"GPT", {block_size = 80, n_embd = 32, n_layer = 2, n_head = 4, vocab_size = WORDS}}, -- fewer positions than the row has steps
}
local x, labels = row(0)
for _, case in ipairs(MODELS) do
  local name, options = table.unpack(case)
  local trainer <close> = trainer_of(name, options, true, INPUT, 1, {parts = true})
  local loss, output, gradients = step(trainer, x, labels)
  local mean, outputs, sums = one_by_one(name, options, x, labels)
  tap.near(loss, mean, 2e-6 * math.abs(mean), name .. ": the loss is that of the sequences one by one")
  tap.ok(apart(output, outputs) < 1e-5, ("%s: so are the logits (%.1e)"):format(name, apart(output, outputs)))
  local worst, worst_name = 0, ""
  for key, gradient in pairs(gradients) do
    if apart(gradient, sums[key]) > worst then worst, worst_name = apart(gradient, sums[key]), key end
  end
  tap.ok(next(gradients) and worst < 5e-5, ("%s: and the gradients (%.1e, %s)"):format(name, worst, worst_name))
end

-- ---- beside transformers, which makes a mask of the same position_ids

local cases = dofile "tests/oracle/packed.lua" -- by tests/peers/packed_cases.py
do
  local positions, answers, steps = {}, {}, 0
  for _, lengths in ipairs(cases.lengths) do
    steps = 0
    for _, n in ipairs(lengths) do
      steps = steps + n
      for i = 1, n do
        local at = #positions
        positions[at + 1], answers[at + 1] = i - 1, i < n and values.mixed(at, 2) % 50 or -100
      end
    end
  end
  local ids = values.tokens(#positions)
  for _, case in ipairs(cases) do
    local trainer <close> = trainer_of(case.name, case.options, true, {input_ids = {steps}, position_ids = {steps}}, #cases.lengths,
      {parts = true})
    for _, param in ipairs((trainer:parameters())) do
      assert(trainer:write(param.name, values.value_of(param.name, param.elements, param.shape)))
    end
    local loss, output, gradients = step(trainer, {input_ids = ids, position_ids = positions}, answers)
    local logits, square = {}, 0
    for i = 1, #output, case.step do logits[#logits + 1] = output[i] end
    for _, gradient in pairs(gradients) do for _, g in ipairs(gradient) do square = square + g * g end end
    tap.near(loss, case.loss, 1e-6 * case.loss, case.name .. ": transformers' loss")
    tap.ok(apart(logits, case.logits) < 1e-5, ("%s: its logits (%.1e)"):format(case.name, apart(logits, case.logits)))
    tap.near(square ^ 0.5, case.norm, 1e-5 * case.norm, case.name .. ": and the norm of its gradients")
  end
end

-- One sequence that fills the row is the same to the last bit as without positions.
do
  local whole = {input_ids = x.input_ids, position_ids = {}}
  for i = 1, STEPS do whole.position_ids[i] = i - 1 end
  local packed <close> = trainer_of("Llama", small(), true, INPUT, 1, {optimizer = optim.SGD{lr = 0.1}})
  local plain <close> = trainer_of("Llama", small(), false, {STEPS}, 1, {optimizer = optim.SGD{lr = 0.1}})
  for i = 1, 3 do tap.is(packed:step(whole, labels), plain:step(whole.input_ids, labels), "one sequence in a row, step " .. i) end
  tap.is(packed:memory().peak.bytes - plain:memory().peak.bytes, (STEPS * 4 + 63) // 64 * 64,
    "positions take 4 bytes for each step, and nothing else")
end

-- ---- every technique: predicted as measured, and the same losses where only memory is saved

local x2, labels2 = row(0)
do
  local more, more_labels = row(1000)
  for key, list in pairs(more) do table.move(list, 1, #list, #x2[key] + 1, x2[key]) end
  table.move(more_labels, 1, #more_labels, #labels2 + 1, labels2)
end
local TECHNIQUES = {{}, {checkpoint = "all"}, {checkpoint = "selective"}, {checkpoint = "marked"}, {checkpoint = "sqrt"}, {offload = "all"},
  {accumulate = 2}, {loss_chunks = 3}, {workspace_limit = 0}, {checkpoint = "all", offload = "all", loss_chunks = 3}}
for _, precision in ipairs{"fp32", "amp_bf16", "amp_fp16", "bf16", "master_bf16"} do
  local usual
  for _, lora in ipairs{false, true} do
    for _, more in ipairs(TECHNIQUES) do
      local model = mt.models.Llama(small{num_key_value_heads = 2, attention_dropout = 0.1, packed = true})
      if lora then mt.peft.lora(model, {r = 4, target_modules = "all-linear"}) end
      local options = {model = model, input = INPUT, batch = more.accumulate and 1 or 2, loss = nn.CrossEntropyLoss(),
        optimizer = optim.AdamW{lr = 0.01}, precision = precision, seed = 3}
      local name = precision .. (lora and " LoRA" or "")
      for key, value in pairs(more) do options[key], name = value, ("%s %s=%s"):format(name, key, value) end
      local trainer <close> = assert(mt.trainer(options))
      local losses = {}
      for i = 1, 3 do losses[i] = assert(trainer:step(x2, labels2)) end
      tap.ok(losses[3] < losses[1], name .. ": it learns")
      tap.is(trainer:memory().peak.bytes, trainer:predicted(3).peak.bytes, name .. ": peak as predicted")
      if not next(more) then usual = losses end
      if not more.accumulate and not more.loss_chunks then
        tap.is(table.concat(losses, " "), table.concat(usual, " "), name .. ": losses")
      end
    end
  end
end

-- ---- data

local function is_list(found, expected, text) tap.is(table.concat(found, " "):gsub("%.0", ""), expected, text) end

local SEQUENCES = {{1, 2, 3, 4, 5, 6, 7}, {11, 12}, {13}, {21, 22, 23, 24, 25}, {31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41}}
local function packed(more)
  local options = {sequences = SEQUENCES, window = 8, tokens = 50}
  for key, value in pairs(more or {}) do options[key] = value end
  return data.packed(options)
end

-- All rows, each as its tokens, positions and labels
local function rows_of(set)
  local loader, rows = data.loader{set, batch = 1}, {}
  for inputs, y in loader:epoch() do
    rows[#rows + 1] = {inputs.input_ids:values(), inputs.position_ids:values(), y:values()}
  end
  loader:close()
  return rows
end

local EXPECTED = {
  wrapped = {
    "1 2 3 4 5 6 7 11", "0 1 2 3 4 5 6 0", "2 3 4 5 6 7 -100 12",
    "12 13 21 22 23 24 25 31", "0 0 0 1 2 3 4 0", "-100 -100 22 23 24 25 -100 32",
    "32 33 34 35 36 37 38 39", "0 1 2 3 4 5 6 7", "33 34 35 36 37 38 39 40",
    "40 41 0 0 0 0 0 0", "0 1 0 1 2 3 4 5", "41 -100 -100 -100 -100 -100 -100 -100",
  },
  bfd = { -- the longest first: 8 and 3 of the fifth sequence, which is longer than a row
    "31 32 33 34 35 36 37 38", "0 1 2 3 4 5 6 7", "32 33 34 35 36 37 38 39",
    "1 2 3 4 5 6 7 13", "0 1 2 3 4 5 6 0", "2 3 4 5 6 7 -100 -100",
    "21 22 23 24 25 39 40 41", "0 1 2 3 4 0 1 2", "22 23 24 25 -100 40 41 -100",
    "11 12 0 0 0 0 0 0", "0 1 0 1 2 3 4 5", "12 -100 -100 -100 -100 -100 -100 -100",
  },
}
for strategy, expected in pairs(EXPECTED) do
  local set = packed{strategy = strategy}
  for i, found in ipairs(rows_of(set)) do
    for k, what in ipairs{"tokens", "positions", "labels"} do
      is_list(found[k], expected[3 * i - 3 + k], ("%s: %s of row %d"):format(strategy, what, i))
    end
  end
  local info = set:info()
  tap.is(info.count, #expected // 3, strategy .. ": rows")
  tap.is(("%d %d %d %d"):format(info.packing.sequences, info.packing.tokens, info.packing.padding, info.packing.padded), "5 26 6 29",
    strategy .. ": what it says of padding")
end

-- Many sequences: every token is there once, and its label follows it, however they are packed and shuffled.
do
  local many, all = {}, {}
  for s = 1, 300 do
    many[s] = {}
    for i = 1, 1 + values.mixed(s, 5) % 40 do many[s][i] = #all + 1 ; all[#all + 1] = s end
  end
  local texts = {}
  for _, strategy in ipairs{"bfd", "wrapped"} do
    for _, seed in ipairs{false, 1, 2} do
      local set = data.packed{sequences = many, window = 32, tokens = #all + 1, strategy = strategy, seed = seed or nil}
      local seen, wrong, count, padding = {}, 0, 0, 0
      for _, found in ipairs(rows_of(set)) do
        for i, id in ipairs(found[1]) do
          local position, label, before = found[2][i], found[3][i], i > 1 and found[2][i - 1] or -1
          if position ~= 0 and position ~= before + 1 then wrong = wrong + 1 end
          if id == 0 then
            padding = padding + 1
            wrong = wrong + (label == -100 and 0 or 1)
          else
            if seen[id] or position > 0 and found[1][i - 1] ~= id - 1 then wrong = wrong + 1 end
            if label ~= (all[id + 1] == all[id] and id + 1 or -100) then wrong = wrong + 1 end
            seen[id], count = true, count + 1
          end
        end
      end
      local name, packing = ("%s, seed %s"):format(strategy, seed), set:info().packing
      tap.is(wrong, 0, name .. ": tokens, positions and labels")
      tap.is(("%d %d"):format(count, padding), ("%d %d"):format(#all, packing.padding), name .. ": each token is there")
      tap.ok(strategy == "bfd" and packing.padding < #all // 50 or packing.padding < 32, ("%s: %d places of padding for %d tokens")
        :format(name, packing.padding, #all))
      tap.ok(not texts[set:info().text], name .. ": other rows")
      texts[set:info().text] = true
      tap.is(data.packed{sequences = many, window = 32, tokens = #all + 1, strategy = strategy, seed = seed or nil}:info().text,
        set:info().text, name .. ": the same again")
    end
  end
end

is_list(rows_of(data.packed{sequences = {"ab\n", "c\n"}, window = 5, tokens = 256})[1][1], "97 98 10 99 10", "bytes of strings")

-- ---- an experiment on such data, and on random ones

local cell = require "memtide.net.cell"
local function built_of(options)
  local all = {name = "packed", model = mt.models.Llama(small{packed = true, vocab_size = 50}), batch = 2,
    loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1}}
  for key, value in pairs(options) do all[key] = value end
  return cell.compile(cell.build(mt.experiment(all):cells()[1]))
end
for name, options in pairs{["packed data"] = {data = packed()}, ["random data"] = {input = {input_ids = {100}, position_ids = {100}}}} do
  local built = built_of(options)
  local runtime <close> = assert(core.runtime{programs = {built.program}, seed = 1})
  local loader = assert(cell.loader(built))
  local inputs = assert(loader:next())
  local first, begins = inputs.position_ids:values(), 0
  for _, position in ipairs(first) do begins = begins + (position == 0 and 1 or 0) end
  tap.ok(begins > 2 and begins < #first // 2, ("%s: %d sequences in two rows"):format(name, begins))
  local loss
  for _ = 1, 2 do loss = assert(runtime:step(1, loader, false)) end
  tap.ok(loss > 0, name .. ": it trains")
  tap.is(runtime:memory().peak.bytes, cell.predict(built).peak.bytes, name .. ": peak as predicted")
  loader:close()
end

-- ---- what is wrong is said

do
  local trainer <close> = trainer_of("Llama", small(), true, {input_ids = {4}, position_ids = {4}}, 2)
  local tokens = {1, 2, 3, 4, 5, 6, 7, 8}
  local function try(positions)
    return function() return trainer:step({input_ids = tokens, position_ids = positions}, tokens) end
  end
  tap.raises("input.position_ids 2 is 3: expected 2, one more than before it, or 0, where a sequence begins", "a step is left out",
    try{0, 1, 3, 0, 0, 0, 0, 0})
  tap.raises("input.position_ids 4 is 3: expected 0 where a row begins", "a sequence that goes on in the next row",
    try{0, 0, 1, 2, 3, 0, 0, 0})
  tap.raises("input.position_ids 0 is 1: expected 0 where a row begins", "a row begins in a sequence", try{1, 2, 3, 0, 0, 0, 0, 0})
  tap.raises("input.position_ids 3 is -1: expected a whole number that is not negative", "below 0", try{0, 1, 2, -1, 0, 0, 0, 0})
  tap.raises("input.position_ids 3 is 4: expected 3, one more than before it", "too large", try{0, 1, 2, 4, 0, 0, 0, 0})
  tap.ok(try{0, 1, 2, 3, 0, 1, 0, 1}(), "and what is right trains")
end
tap.raises("the model's forward function takes input_ids: there is no such input", "a single input", trainer_of, "Llama", small(), true,
  {input = {4}, position_ids = {4}}, 1)
tap.raises("expected position_ids (1, 4), found (1, 5)", "positions of other steps", trainer_of, "Llama", small(), true,
  {input_ids = {4}, position_ids = {5}}, 1)
tap.raises("input.position_ids 1 is 1: expected an index below 1, the rows of nn.Embedding", "fewer learned positions than a sequence has",
  function()
    local trainer <close> = trainer_of("GPT", {block_size = 1, n_embd = 8, n_head = 2, n_layer = 1, vocab_size = 9}, true,
      {input_ids = {4}, position_ids = {4}}, 1)
    trainer:step({input_ids = {1, 2, 3, 4}, position_ids = {0, 1, 2, 3}}, {1, 2, 3, 4})
  end)
tap.raises("sequences that share a row (input position_ids) are not predicted", "PyTorch's step", function()
  built_of{framework = "pytorch", device = "pytorch:a100-80gb", input = {input_ids = {100}, position_ids = {100}}}
end)

local function attention(how, more)
  return function()
    local model = nn.Graph{embed = nn.Embedding(9, 8), forward = function(self, ids, positions)
      local q = self.embed(ids)
      return nn.scaled_dot_product_attention(q, q, q, table.unpack{more and q or positions, how})
    end}
    mt.trainer{model = model, input = {ids = {4}, positions = {4}}, batch = 1, loss = nn.MSELoss(), optimizer = optim.SGD{lr = 0.1}}
  end
end
tap.raises("packed: expected is_causal, and as many keys as queries", "packed, not causal", attention{num_heads = 2, packed = true})
tap.raises("reads position_ids: expected an input of the network, found a layer's output", "positions that a layer gives",
  attention({num_heads = 2, packed = true, is_causal = true}, true))
tap.raises("takes 4 inputs or 5 (query, key, value, bias, position_ids), found 3", "no positions", function()
  mt.trainer{model = nn.Graph{forward = function(_, q) return nn.scaled_dot_product_attention(q, q, q, {num_heads = 2, packed = true}) end},
    input = {4, 8}, batch = 1, loss = nn.MSELoss(), optimizer = optim.SGD{lr = 0.1}}
end)

local function packing(more) return function() packed(more) end end
tap.raises('data.packed: strategy: expected "bfd" or "wrapped", found ffd', "another strategy", packing{strategy = "ffd"})
tap.raises("sequence 5, place 11: expected a token below 41, found 41", "a token that is too large", packing{tokens = 41})
tap.raises("sequence 2 is empty", "an empty sequence", packing{sequences = {{1}, {}}})
tap.raises("sequence 2: expected a list of tokens, or a string, found 7", "no sequence", packing{sequences = {{1}, 7}})
tap.raises("sequence 1, place 2: expected a token, found 1.5", "no token", packing{sequences = {{1, 1.5}}})
tap.raises("expected at least 1 sequence, found none", "no sequences", packing{sequences = {}})
tap.raises("expected a window of at least 1 token, found 0", "no window", packing{window = 0})
tap.raises("pad: expected a token below 50, found 50", "padding that is no token", packing{pad = 50})
tap.raises("ignore_index: expected a number that is no token, found 3", "a token as ignore_index", packing{ignore_index = 3})
tap.raises('data.packed: "window" is missing', "without a window", function() data.packed{sequences = {{1}}, tokens = 2} end)

tap.done()
