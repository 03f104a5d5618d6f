-- nn.TransformerEncoderLayer and nn.TransformerDecoderLayer, and stacks of them, made of other layers, with the same
-- arguments and the same names and order of parameters as in torch.nn. Masks, which PyTorch's forward takes as
-- arguments, are options here: is_causal and similar.
local specs = require "memtide.net.specs"
local util = require "memtide.base.util"

local COMMON = "d_model:int nhead:int dim_feedforward:int=2048 dropout:float=0.1 activation:relu|gelu=relu " ..
  "layer_norm_eps:float=1e-5 batch_first:bool=false norm_first:bool=false bias:bool=true "
local DEFAULTS = {dim_feedforward = 2048, dropout = 0.1, activation = "relu", layer_norm_eps = 1e-5, bias = true}
local ENCODER = {"self_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "dropout1", "dropout2"}
local DECODER = {"self_attn", "multihead_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "norm3", "dropout1",
  "dropout2", "dropout3"}

-- [layer] = a function that makes another layer with the same options
local another = setmetatable({}, {__mode = "k"})

-- Defines nn.NAME(...): build(options) with a title
local function define(nn, name, causal, build)
  local make = specs.constructor(name, COMMON .. causal)
  local function made(options)
    local layer = build(setmetatable(options, {__index = DEFAULTS}))
    layer.title = name
    another[layer] = function() return made(options) end
    return layer
  end
  nn[name] = function(...) return made(make(...).options) end
end

-- Defines nn.NAME(layer, num_layers, norm): num_layers new layers like the given one, which is not used itself, and a
-- normalisation after them. inputs: number of values that a layer is called with
local function define_stack(nn, name, kind, inputs)
  nn[name] = function(layer, num_layers, norm)
    if type(num_layers) == "table" and getmetatable(num_layers) == nil then
      util.check_keys(name, num_layers, {"num_layers", "norm"})
      num_layers, norm = num_layers.num_layers, num_layers.norm
    elseif type(norm) == "table" and getmetatable(norm) == nil then
      util.check_keys(name, norm, {"norm"})
      norm = norm.norm
    end
    if not another[layer] or layer.title ~= kind then
      util.fail("%s: expected an nn.%s, found a %s", name, kind, type(layer) == "table" and layer.kind or type(layer))
    end
    if math.type(num_layers) ~= "integer" or num_layers < 1 then
      util.fail("%s: num_layers: expected a whole number of at least 1, found %s", name, tostring(num_layers))
    end
    local layers = {}
    for i = 1, num_layers do layers[i] = another[layer]() end
    local function run(self, x, ...)
      for _, one in ipairs(self.layers) do x = one(x, ...) end
      return norm and self.norm(x) or x
    end
    local stack = nn.Graph{layers = layers, norm = norm, forward = inputs == 1 and function(self, x)
      return run(self, x)
    end or function(self, x, memory) return run(self, x, memory) end}
    stack.title = name
    return stack
  end
end

return function(nn)
  local function attention(o, is_causal)
    return nn.MultiheadAttention(o.d_model, o.nhead, {dropout = o.dropout, bias = o.bias,
      batch_first = o.batch_first, is_causal = is_causal})
  end

  -- The children that both have, with n normalisations
  local function common(o, n, order)
    local what = {order = order, linear1 = nn.Linear(o.d_model, o.dim_feedforward, o.bias),
      dropout = nn.Dropout(o.dropout), linear2 = nn.Linear(o.dim_feedforward, o.d_model, o.bias)}
    for i = 1, n do
      what["norm" .. i] = nn.LayerNorm(o.d_model, o.layer_norm_eps, {bias = o.bias})
      what["dropout" .. i] = nn.Dropout(o.dropout)
    end
    return what
  end

  -- x + block(x), normalised before or after
  local function residual(o, norm, x, block)
    if o.norm_first then return x + block(norm(x)) end
    return norm(x + block(x))
  end

  -- torch.nn's _sa_block: what attention reads goes when its variable gets the output
  local function self_attention(self)
    return function(y)
      y = self.self_attn(y)
      return self.dropout1(y)
    end
  end

  local function feed_forward(o, self)
    return function(x) return self.linear2(self.dropout(nn[o.activation](self.linear1(x)))) end
  end

  define(nn, "TransformerEncoderLayer", "is_causal:bool=false", function(o)
    local what = common(o, 2, ENCODER)
    what.self_attn = attention(o, o.is_causal)
    function what.forward(self, x)
      local feed = feed_forward(o, self)
      x = residual(o, self.norm1, x, self_attention(self))
      return residual(o, self.norm2, x, function(y) return self.dropout2(feed(y)) end)
    end
    return nn.Graph(what)
  end)

  define(nn, "TransformerDecoderLayer", "tgt_is_causal:bool=false memory_is_causal:bool=false", function(o)
    local what = common(o, 3, DECODER)
    what.self_attn = attention(o, o.tgt_is_causal)
    what.multihead_attn = attention(o, o.memory_is_causal)
    function what.forward(self, x, memory)
      local feed = feed_forward(o, self)
      x = residual(o, self.norm1, x, self_attention(self))
      x = residual(o, self.norm2, x, function(y)
        y = self.multihead_attn(y, memory, memory)
        return self.dropout2(y)
      end)
      return residual(o, self.norm3, x, function(y) return self.dropout3(feed(y)) end)
    end
    return nn.Graph(what)
  end)

  define_stack(nn, "TransformerEncoder", "TransformerEncoderLayer", 1)
  define_stack(nn, "TransformerDecoder", "TransformerDecoderLayer", 2)
end
