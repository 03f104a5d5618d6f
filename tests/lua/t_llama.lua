-- Rotary positions and attention of queries in groups, as PyTorch's scaled_dot_product_attention has it; and the model
-- that is made of them, by Hugging Face's names.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local nn, F = mt.nn, mt.nn.functional
local device = assert(core.device "cpu")

local function compiled(model, input, settings)
  local network = assert(core.network(model, nn.MSELoss(), input))
  return assert(core.compile(network, settings, device)), network
end

-- The output of one evaluation of a model without parameters
local function output(model, input, values, precision)
  local program, network = compiled(model, input, {mode = "eval", precision = precision, keep_output = true})
  local runtime <close> = assert(core.runtime{programs = {program}})
  local _, shape = network:shapes()
  assert(runtime:step(1, values, table.move(values, 1, shape[1] * shape[2] * shape[3], 1, {}))) -- whatever the targets
  return runtime:read(program:names().output, 1)
end

local function wave(count)
  local x = {}
  for i = 1, count do x[i] = math.sin(0.731 * i) end
  return x
end

local function same(a, b)
  for i, x in ipairs(a) do if x ~= b[i] then return false end end
  return #a == #b
end

-- ---- rotary positions

-- Features turned by hand, in double: of (N, T, heads dim) as one list
local function turned(x, steps, features, dim, base, interleaved)
  local y = {}
  for i = 0, #x - 1 do
    local t, f = i // features % steps, i % dim
    local pair = interleaved and f // 2 or f % (dim // 2)
    local first = interleaved and f % 2 == 0 or not interleaved and f < dim // 2
    local other = i + (first and 1 or -1) * (interleaved and 1 or dim // 2)
    local angle = t * base ^ (-2 * pair / dim)
    y[i + 1] = x[i + 1] * math.cos(angle) + (first and -1 or 1) * x[other + 1] * math.sin(angle)
  end
  return y
end

local function furthest(a, b)
  local worst = 0
  for i, x in ipairs(a) do worst = math.max(worst, math.abs(x - b[i])) end
  return #a == #b and worst or math.huge
end

local x = wave(2 * 5 * 24)
for _, interleaved in ipairs{true, false} do
  local layer = nn.RotaryPositionalEmbeddings(8, 5, 100, {interleaved = interleaved})
  tap.ok(furthest(output(layer, {2, 5, 24}, x), turned(x, 5, 24, 8, 100, interleaved)) < 1e-6,
    interleaved and "neighbours are turned" or "halves are turned")
end
tap.ok(furthest(output(nn.RotaryPositionalEmbeddings(8), {2, 5, 24}, x), turned(x, 5, 24, 8, 10000, true)) < 1e-6,
  "by default neighbours, and 10000, as torchtune's")

-- Under bf16 one rounding: what comes out is the nearest number to what fp32 makes of the same input.
local low = nn.Sequential{nn.Scale(1), nn.RotaryPositionalEmbeddings(8)} -- the input, rounded
local rounded = output(nn.Scale(1), {2, 5, 24}, x, "bf16")
local exact, found, off = turned(rounded, 5, 24, 8, 10000, true), output(low, {2, 5, 24}, x, "bf16"), 0
for i, y in ipairs(found) do
  if math.abs(y - exact[i]) > 2 ^ -8 * 1.001 * math.abs(exact[i]) + 1e-7 then off = off + 1 end
end
tap.is(off, 0, "16-bit numbers are turned in fp32 and rounded once")

local function refused(layer, input, text, what)
  local message = select(2, pcall(core.network, layer, nil, input))
  tap.has(tostring(message), text, what)
end
refused(nn.RotaryPositionalEmbeddings(7), {2, 5, 14}, "dim must be even, found 7", "an odd width is refused")
refused(nn.RotaryPositionalEmbeddings(514), {2, 5, 514}, "dim must be between 2 and 512, found 514", "a large one")
refused(nn.RotaryPositionalEmbeddings(8, 4), {2, 5, 16},
  "expected at most 4 steps of heads of 8 features, found (2, 5, 16)", "more steps than max_seq_len")
refused(nn.RotaryPositionalEmbeddings(8), {2, 5, 12}, "heads of 8 features, found (2, 5, 12)", "a part of a head")
refused(nn.RotaryPositionalEmbeddings(8), {2, 16}, "(N, T, heads dim)", "no sequence")
refused(nn.RotaryPositionalEmbeddings(8, {base = 0}), {2, 5, 16}, "base must be above 0, found 0", "a base of 0")
tap.raises("takes at most 3 arguments (dim, max_seq_len, base), and by name interleaved", "the pairing stands by name",
  nn.RotaryPositionalEmbeddings, 8, 4, 100, true)
local dump = compiled(nn.Sequential{nn.Linear(8, 8), nn.RotaryPositionalEmbeddings(4)}, {2, 5, 8}, {}):dump()
tap.has(dump, "rotary 1: 0.y.grad = x:1.y.grad dim=4 base=10000 interleaved back",
  "the gradient needs nothing but the output's")

-- ---- scaled_dot_product_attention

-- Parts of a sequence's features as query, key and value
local function attention(q, k, v, options)
  return nn.Graph{forward = function(_, y)
    local function part(p)
      local list = {}
      for i, range in ipairs(p) do list[i] = y:narrow(2, range[1], range[2]) end
      return #list > 1 and F.cat(list, 2) or list[1]
    end
    return F.scaled_dot_product_attention(part(q), part(k), part(v), options)
  end}
end

x = wave(2 * 7 * 32)
local one = output(attention({{0, 16}}, {{16, 8}}, {{24, 8}}, {num_heads = 4, enable_gqa = true}), {2, 7, 32}, x)
local repeated = output(attention({{0, 16}}, {{16, 4}, {16, 4}, {20, 4}, {20, 4}}, {{24, 4}, {24, 4}, {28, 4}, {28, 4}},
  {num_heads = 4}), {2, 7, 32}, x)
tap.ok(same(one, repeated), "a head of keys serves neighbouring heads of queries, as repeat_interleave would have it")
local scaled = output(attention({{0, 16}}, {{16, 8}}, {{24, 8}}, {num_heads = 4, enable_gqa = true, scale = 0.5}),
  {2, 7, 32}, x)
tap.ok(same(one, scaled), "the scale is 1 / sqrt(4), unless it is given")
tap.ok(not same(one, output(attention({{0, 16}}, {{16, 8}}, {{24, 8}},
  {num_heads = 4, enable_gqa = true, is_causal = true}), {2, 7, 32}, x)), "a causal one is another one")

local function mistake(q, k, v, options, text, what) refused(attention(q, k, v, options), {2, 7, 32}, text, what) end
mistake({{0, 16}}, {{16, 8}}, {{24, 8}}, {num_heads = 4}, "expected a key of 16 features (N, T, C), found 8",
  "fewer heads of keys want enable_gqa, as in PyTorch")
mistake({{0, 16}}, {{16, 8}}, {{24, 4}}, {num_heads = 4, enable_gqa = true}, "expected a value of 8 features",
  "as many values as keys")
mistake({{0, 12}}, {{16, 8}}, {{24, 8}}, {num_heads = 3, enable_gqa = true}, "expected a key of 12 features",
  "a number of heads that does not divide that of queries")
mistake({{0, 16}}, {{16, 8}}, {{24, 8}}, {num_heads = 3},
  "num_heads: expected a divisor of the query's 16 features, found 3", "heads that do not divide the features")
mistake({{0, 16}}, {{0, 16}}, {{0, 16}}, {num_heads = 4, dropout_p = 2}, "dropout_p must be between 0 and 1, found 2",
  "a probability that is none")
refused(nn.ScaledDotProductAttention{num_heads = 2}, {2, 7, 32}, "takes 3 inputs or 4 (query, key, value, bias), found 1",
  "one input")
tap.raises('option "num_heads" is required', "without the number of heads", nn.ScaledDotProductAttention)
tap.raises('unknown option "attn_mask"', "a mask", nn.ScaledDotProductAttention, {num_heads = 2, attn_mask = 1})
tap.raises("takes at most 0 arguments", "arguments by position, in front of which PyTorch has a mask",
  nn.ScaledDotProductAttention, 0.5)

-- ---- a bias that is a parameter is trained as what a layer makes of it

local function losses(with_layer, shape)
  local model = nn.Graph{q = nn.Linear(8, 8), bias = nn.Parameter(shape), order = {"bias", "q"},
    forward = function(self, y)
      local q = self.q(y)
      return F.scaled_dot_product_attention(q, q, q, with_layer and self.bias * 1 or self.bias, {num_heads = 2})
    end}
  local program, network = compiled(model, {3, 5, 8}, {optimizer = mt.optim.SGD{lr = 1}})
  local runtime <close> = assert(core.runtime{programs = {program}})
  for _, param in ipairs(network:params()) do
    local count = 1
    for _, d in ipairs(param.shape) do count = count * d end
    assert(runtime:write(param.name, wave(count)))
  end
  local list = {}
  for step = 1, 3 do list[step] = assert(runtime:step(1, wave(120), table.move(wave(121), 2, 121, 1, {}))) end
  return list
end

for _, shape in ipairs{{5, 5}, {2, 5, 5}, {3, 1, 5, 5}} do
  local bare = losses(false, shape)
  tap.ok(same(bare, losses(true, shape)) and bare[1] ~= bare[3], "a bias of " .. #shape .. " dimensions")
end
refused(nn.Graph{q = nn.Parameter{2, 7, 8}, forward = function(self, y)
  return F.scaled_dot_product_attention(self.q, y, y, {num_heads = 2})
end}, {2, 7, 8}, "expected a query that a layer gives, found a parameter", "a query that is a parameter")

-- ---- what grouped keys save: a layer's memory, by hand
local function kept(kv_heads)
  local layer = nn.Graph{q = nn.Linear(64, 64, false), k = nn.Linear(64, 8 * kv_heads, false),
    v = nn.Linear(64, 8 * kv_heads, false), forward = function(self, y)
      return F.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y), {num_heads = 8, enable_gqa = true})
    end}
  local sum = 0
  for bytes in compiled(layer, {4, 128, 64}, {}):dump():gmatch "activations (%d+)" do sum = sum + bytes end
  return sum
end
tap.is(kept(8) - kept(2), 2 * 4 * 128 * (64 - 16) * 4, "keys and values of 2 heads in place of 8: that many bytes less")

-- ---- the model
local small = {vocab_size = 11, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2}
local names = {}
local network = assert(core.network(mt.models.Llama(small), nil, {2, 6}))
for i, param in ipairs(network:params()) do names[i] = param.name end
local expected = {"model.embed_tokens.weight"}
for layer = 0, 1 do
  for name in ("self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj " ..
    "mlp.down_proj input_layernorm post_attention_layernorm"):gmatch "%S+" do
    expected[#expected + 1] = ("model.layers.%d.%s.weight"):format(layer, name)
  end
end
table.move({"model.norm.weight", "lm_head.weight"}, 1, 2, #expected + 1, expected)
tap.is(table.concat(names, "\n"), table.concat(expected, "\n"), "names and order are LlamaForCausalLM's")
small.tie_word_embeddings = true
network = assert(core.network(mt.models.Llama(small), nil, {2, 6}))
tap.is(network:params()[1].aliases[1], "lm_head.weight", "the output layer may have the embedding's weight")
small.num_key_value_heads = 0
tap.is(assert(core.network(mt.models.Llama(small), nil, {2, 6})):params()[3].shape[1], 16,
  "as many heads of keys as of queries, where it is not said")

-- Published: numbers of parameters
local experiment = assert(loadfile "experiments/llama.lua")()
local cell = require "memtide.net.cell"
for size, parameters in pairs{["TinyLlama-1.1B"] = 1100048384, ["Llama-2-7B"] = 6738415616,
  ["Llama-3-8B"] = 8030261248} do
  experiment:set("size", {size})
  experiment:set("seq", {2048})
  tap.is(cell.build(experiment:cells()[1]).network:parameters(), parameters, "parameters of " .. size)
end

tap.done()
