-- Attention to another sequence and the layers made of it: names, printing and mistakes as in PyTorch, products that
-- are not computed twice, and weights to and from PyTorch.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local translator = dofile "tests/lua/translator.lua"
local nn = mt.nn

-- ---- printing: the lines are what print(layer) gave in PyTorch 2.6
tap.is(tostring(nn.MultiheadAttention(16, 4, {kdim = 8, bias = false})), [[
MultiheadAttention(
  (out_proj): NonDynamicallyQuantizableLinear(in_features=16, out_features=16, bias=False)
)]], "attention prints")
tap.is(tostring(nn.TransformerDecoderLayer(16, 4, 32, {norm_first = true, batch_first = true})), [[
TransformerDecoderLayer(
  (self_attn): MultiheadAttention(
    (out_proj): NonDynamicallyQuantizableLinear(in_features=16, out_features=16, bias=True)
  )
  (multihead_attn): MultiheadAttention(
    (out_proj): NonDynamicallyQuantizableLinear(in_features=16, out_features=16, bias=True)
  )
  (linear1): Linear(in_features=16, out_features=32, bias=True)
  (dropout): Dropout(p=0.1, inplace=False)
  (linear2): Linear(in_features=32, out_features=16, bias=True)
  (norm1): LayerNorm((16,), eps=1e-05, elementwise_affine=True)
  (norm2): LayerNorm((16,), eps=1e-05, elementwise_affine=True)
  (norm3): LayerNorm((16,), eps=1e-05, elementwise_affine=True)
  (dropout1): Dropout(p=0.1, inplace=False)
  (dropout2): Dropout(p=0.1, inplace=False)
  (dropout3): Dropout(p=0.1, inplace=False)
)]], "a decoder's layer prints")
tap.has(tostring(nn.TransformerEncoderLayer(16, 4)), "(linear1): Linear(in_features=16, out_features=2048, bias=True)",
  "the width of the feed-forward part is PyTorch's")

-- ---- names and order: a state_dict's
local function names(model, input)
  local list = {}
  for i, param in ipairs(assert(core.network(model, nil, input)):params()) do list[i] = param.name end
  return table.concat(list, " ")
end
local function to_itself(layer, what)
  what.layer, what.forward = layer, what.forward or function(self, x) return self.layer(x, x) end
  return nn.Graph(what)
end
tap.is(names(nn.TransformerEncoderLayer(8, 2, 8, {norm_first = true, bias = false}), {2, 3, 8}),
  "self_attn.in_proj_weight self_attn.out_proj.weight linear1.weight linear2.weight norm1.weight norm2.weight",
  "an encoder's parameters without biases")
tap.is(names(to_itself(nn.TransformerDecoderLayer(8, 2, 8, {bias = false}), {}), {2, 3, 8}),
  "layer.self_attn.in_proj_weight layer.self_attn.out_proj.weight layer.multihead_attn.in_proj_weight " ..
  "layer.multihead_attn.out_proj.weight layer.linear1.weight layer.linear2.weight layer.norm1.weight " ..
  "layer.norm2.weight layer.norm3.weight", "a decoder's")
tap.is(names(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, {bias = false}), 2, nn.LayerNorm(8)), {2, 3, 8}),
  "layers.0.self_attn.in_proj_weight layers.0.self_attn.out_proj.weight layers.0.linear1.weight " ..
  "layers.0.linear2.weight layers.0.norm1.weight layers.0.norm2.weight layers.1.self_attn.in_proj_weight " ..
  "layers.1.self_attn.out_proj.weight layers.1.linear1.weight layers.1.linear2.weight layers.1.norm1.weight " ..
  "layers.1.norm2.weight norm.weight norm.bias", "a stack has layers of its own, and the normalisation after them")
tap.has(names(to_itself(nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 8), {num_layers = 2}), {}), {2, 3, 8}),
  "layer.layers.1.multihead_attn.in_proj_weight", "of decoders, which are called with the memory")
tap.raises("TransformerEncoder: expected an nn.TransformerEncoderLayer, found a Linear", "a stack of something else",
  nn.TransformerEncoder, nn.Linear(8, 8), 2)
tap.raises("num_layers: expected a whole number of at least 1, found nil", "without a number", nn.TransformerEncoder,
  nn.TransformerEncoderLayer(8, 2))
tap.raises("ModuleList: element 2 is a string, not a layer", "a list of layers", nn.ModuleList, {nn.ReLU(), "x"})
tap.is(names(to_itself(nn.MultiheadAttention(8, 2, {kdim = 4, batch_first = true}), {k = nn.Linear(8, 4, false),
  forward = function(self, x) return self.layer(x, self.k(x), x) end}), {2, 3, 8}),
  "k.weight layer.q_proj_weight layer.k_proj_weight layer.v_proj_weight layer.in_proj_bias layer.out_proj.weight " ..
  "layer.out_proj.bias", "those of attention to keys of another width")

-- ---- one product for what is made of one input
local function products(forward)
  local model = nn.Graph{attn = nn.MultiheadAttention(8, 2, {batch_first = true}), forward = forward}
  local network = assert(core.network(model, nn.MSELoss(), {2, 3, 8}))
  local program = assert(core.compile(network, {mode = "eval"}, assert(core.device "cpu")))
  local made = {}
  for name in program:dump():gmatch "linear attn: attn%.(%w+) =" do made[#made + 1] = name end
  return table.concat(made, " ")
end
tap.is(products(function(self, x) return self.attn(x, x, x) end), "qkv y", "self-attention: one product, and one back")
tap.is(products(function(self, x) local m = nn.tanh(x) return self.attn(x, m, m) end), "q kv y",
  "keys and values of one sequence: one product for both")
tap.is(products(function(self, x) return self.attn(x, nn.tanh(x), nn.sigmoid(x)) end), "q k v y", "three sequences")

-- ---- mistakes
local function mistake(input, forward, ...)
  local attn = nn.MultiheadAttention(8, 2, ...)
  local model = nn.Graph{attn = attn, forward = forward}
  return select(2, pcall(core.network, model, nil, input)), attn.where
end
local text, where = mistake({2, 5, 8}, function(self, x) return self.attn(x, x:narrow(1, 0, 3), x) end,
  {batch_first = true})
tap.has(text, "expected one batch, and as many keys as values (N, T, C), found (2, 5, 8), (2, 3, 8) and (2, 5, 8)",
  "keys without a value are refused")
tap.ok(#where > 0 and text:find(where, 1, true), "with the layer's file and line")
text = mistake({2, 5, 8}, function(self, x) return self.attn(x, x, x) end, {vdim = 5})
tap.has(text, "layer attn MultiheadAttention", "a value of another width is refused")
tap.has(text, "expected a value of 5 features (T, N, C), found 8", "with both widths")
text = mistake({2, 5, 8}, function(self, x) return self.attn(x, x) end)
tap.has(text, "takes 1 input or 3 (query, key, value), found 2", "a key without a value")
tap.raises('unknown option "causal"', "an unknown option", nn.TransformerEncoderLayer, 8, 2, {causal = true})
tap.raises('option "nhead" is required', "a missing one", nn.TransformerDecoderLayer, 8)
tap.raises("takes 2 inputs, found 1", "a decoder without a memory", function()
  return core.network(nn.TransformerDecoderLayer(8, 2, 8), nil, {2, 3, 8})
end)

-- ---- weights, by PyTorch's state_dict
local torch = dofile "tests/lua/torch.lua"(tap, "an encoder and a decoder")
local path = torch.path
local x = {}
for i = 0, 2 * 12 * 16 - 1 do x[i + 1] = math.sin(0.37 * i) end

local function open(seed)
  return assert(mt.trainer{model = translator(16, 4, 7, 0.1), input = {12, 16}, batch = 2,
    seed = seed, loss = nn.MSELoss(), optimizer = mt.optim.SGD{lr = 0.1}})
end

-- The largest difference of outputs from those in a file.
local function distance(outputs, name)
  local worst, i = 0, 0
  for line in io.lines(path(name)) do
    i = i + 1
    worst = math.max(worst, math.abs(outputs[i] - tonumber(line)))
  end
  return i == #outputs and i == 2 * 5 * 16 and worst or math.huge
end

local ours <close> = open(1)
local theirs <close> = open(2)
local y = {}
for i = 1, 2 * 5 * 16 do y[i] = math.cos(i) end
assert(ours:step(x, y))
assert(ours:save(path "ours"))
local ran, version = torch.run "tests/peers/pytorch_transformer.py"
tap.ok(ran, ("PyTorch %s loads our file and writes one"):format(version))
tap.ok(distance(ours:predict(x), "ours.txt") < 1e-5, "our weights give our outputs there")
local missing = assert(theirs:load(path "theirs"))
tap.ok(#missing.missing == 0 and #missing.unexpected == 0, "PyTorch's file has all that we want, and nothing else")
tap.ok(distance(theirs:predict(x), "theirs.txt") < 1e-5, "its weights give its outputs here")
torch.close()
tap.done()
