-- What the files of mt.models share: options with their defaults, and transformers' activations.
local nn = require "memtide.net.nn".nn
local util = require "memtide.base.util"

local model = {}

-- {[model] = {option = default}}
model.defaults = {}

-- The options with their defaults; raises for an unknown option or a wrong type.
local function with_defaults(name, given, defaults)
  local options = {}
  util.check_type("models." .. name, given or {}, "table")
  util.check_keys("models." .. name, given or {}, util.sorted_keys(defaults))
  for key, default in pairs(defaults) do
    local value = (given or {})[key]
    if value == nil then value = default end
    if type(value) ~= type(default) then
      util.fail("models.%s: %s: expected a %s, found %s", name, key, type(default), tostring(value))
    end
    options[key] = value
  end
  return options
end

-- The options of all tables; of a name that several have, the last one's
function model.merged(...)
  local all = {}
  for _, options in ipairs{...} do
    for key, value in pairs(options) do all[key] = value end
  end
  return all
end

-- Defines models.NAME{options}, which returns a layer whose title is NAME, in print and in the CSV. files: how tensors
-- of files of weights are called that have other names than the network's:
--   base     the prefix that files of the model without its head lack
--   names    {{pattern, replacement}, ...}, one after the other
--   ignored  {pattern, ...}: tensors that are no parameters
function model.define(models, name, defaults, build, files)
  model.defaults[name] = defaults
  models[name] = function(given)
    local layer = build(with_defaults(name, given, defaults))
    layer.title, layer.files = name, files
    return layer
  end
end

-- nn.Graph, for models with the option `packed`: then its forward takes position_ids (N, T) beside (N, T) tokens or what is
-- made of them, and hands them on as `...`.
function model.graph(options, what)
  local forward = what.forward
  if options.packed then
    what.forward = function(self, input_ids, position_ids) return forward(self, input_ids, position_ids) end
  end
  return nn.Graph(what)
end

-- Attention of q, k and v, with packed = true of position_ids, too. how: the options of scaled_dot_product_attention
function model.attend(how, ...)
  local given = {...}
  given[#given + 1] = how
  return nn.scaled_dot_product_attention(table.unpack(given))
end

-- The layer of learned positions of such a model, and what it makes of x (N, T, D): x + the rows of its table for the steps, or
-- for position_ids
function model.positions(options, rows, width)
  return (options.packed and nn.Embedding or nn.PositionEmbedding)(rows, width)
end
function model.placed(positions, x, position_ids)
  if position_ids then return x + positions(position_ids) end
  return positions(x)
end

-- The row of embeddings that gets no gradients; pad_token_id below 0: none
function model.padding(options) return options.pad_token_id >= 0 and options.pad_token_id or nil end

local function gelu_tanh(x) return nn.gelu(x, {approximate = "tanh"}) end

-- transformers' ACT2FN
model.activations = {
  gelu = function(x) return nn.gelu(x) end, gelu_new = gelu_tanh, gelu_fast = gelu_tanh,
  gelu_pytorch_tanh = gelu_tanh, quick_gelu = function(x) return x * nn.sigmoid(1.702 * x) end,
  relu = function(x) return nn.relu(x) end, silu = function(x) return nn.silu(x) end,
  swish = function(x) return nn.silu(x) end, tanh = function(x) return nn.tanh(x) end,
  sigmoid = function(x) return nn.sigmoid(x) end, mish = function(x) return nn.mish(x) end,
}

-- The function of that name; name, option: of the model, for the message.
function model.activation(options, name, option)
  local word = options[option]
  local found = model.activations[word]
  if found then return found end
  util.fail('models.%s: %s: "%s" is none of the activations %s', name, option, word,
    table.concat(util.sorted_keys(model.activations), ", "))
end

return model
