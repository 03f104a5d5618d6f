-- TransformerEncoderLayer and TransformerDecoderLayer as torch.nn has them, made of nn's layers: the same arguments,
-- names of parameters, and order. What PyTorch's forward is told of masks is an option here: is_causal and the like.
local specs = require "memtide.specs"

local COMMON = "d_model:int nhead:int dim_feedforward:int=2048 dropout:float=0.1 activation:relu|gelu=relu " ..
  "layer_norm_eps:float=1e-5 batch_first:bool=false norm_first:bool=false bias:bool=true "
local DEFAULTS = {dim_feedforward = 2048, dropout = 0.1, activation = "relu", layer_norm_eps = 1e-5, bias = true}
local ENCODER = {"self_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "dropout1", "dropout2"}
local DECODER = {"self_attn", "multihead_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "norm3", "dropout1",
  "dropout2", "dropout3"}

-- Defines nn.NAME(...): build(options) with a title
local function define(nn, name, causal, build)
  local make = specs.constructor(name, COMMON .. causal)
  nn[name] = function(...)
    local layer = build(setmetatable(make(...).options, {__index = DEFAULTS}))
    layer.title = name
    return layer
  end
end

return function(nn)
  local function attention(o, is_causal)
    return nn.MultiheadAttention(o.d_model, o.nhead, {dropout = o.dropout, bias = o.bias,
      batch_first = o.batch_first, is_causal = is_causal})
  end

  -- What both have, with n normalisations
  local function common(o, n, order)
    local what = {order = order, linear1 = nn.Linear(o.d_model, o.dim_feedforward, o.bias),
      dropout = nn.Dropout(o.dropout), linear2 = nn.Linear(o.dim_feedforward, o.d_model, o.bias)}
    for i = 1, n do
      what["norm" .. i] = nn.LayerNorm(o.d_model, o.layer_norm_eps, {bias = o.bias})
      what["dropout" .. i] = nn.Dropout(o.dropout)
    end
    return what
  end

  -- x + block(x), normalised before or behind
  local function residual(o, norm, x, block)
    if o.norm_first then return x + block(norm(x)) end
    return norm(x + block(x))
  end

  local function feed_forward(o, self)
    return function(x) return self.linear2(self.dropout(nn[o.activation](self.linear1(x)))) end
  end

  define(nn, "TransformerEncoderLayer", "is_causal:bool=false", function(o)
    local what = common(o, 2, ENCODER)
    what.self_attn = attention(o, o.is_causal)
    function what.forward(self, x)
      local feed = feed_forward(o, self)
      x = residual(o, self.norm1, x, function(y) return self.dropout1(self.self_attn(y)) end)
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
      x = residual(o, self.norm1, x, function(y) return self.dropout1(self.self_attn(y)) end)
      x = residual(o, self.norm2, x, function(y) return self.dropout2(self.multihead_attn(y, memory, memory)) end)
      return residual(o, self.norm3, x, function(y) return self.dropout3(feed(y)) end)
    end
    return nn.Graph(what)
  end)
end
