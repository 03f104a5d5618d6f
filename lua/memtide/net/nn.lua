-- mt.nn: layers and losses with PyTorch's names: plain tables {kind, options, where, child, ...} with a metatable. A
-- container may have names for its children; the children of a graph are its steps (graph.lua).
local core = require "memtide.core"
local graph = require "memtide.net.graph"
local inputs = require "memtide.net.inputs"
local optim = require "memtide.net.optim"
local printed = require "memtide.net.printed"
local specs = require "memtide.net.specs"
local util = require "memtide.base.util"

local nn = {}
local Layer = {__name = "memtide.layer", __call = graph.call} -- the metatable of layers
local Loss = {__name = "memtide.loss"}

local function is_layer(value) return getmetatable(value) == Layer end
local function is_loss(value) return getmetatable(value) == Loss end

-- ---- losses: {kind, options, text, where, factor}, or a sum: a list of these, one for each output of the network

local function terms(loss) return loss.kind == "sum" and loss or {loss} end

-- Does the loss need labels? Other losses need targets like the output. All terms need the same.
local function of_classes(loss)
  local kind = terms(loss)[1].kind
  return kind == "CrossEntropyLoss" or kind == "NLLLoss" or kind == "Loss"
end

-- The label that the loss does not count; nil: it counts all. All terms have the same.
local function ignored(loss)
  local first = terms(loss)[1]
  return first.options.ignore_index or math.tointeger(tonumber((specs.of[first.kind] or ""):match "ignore_index:int=(%S+)"))
end

-- What the loss of a batch counts for in that of several batches: of a mean what it was divided by, up to a factor that all
-- batches have; of a sum 1, and `whole` says that it is one. Of several terms the first counts, as in evaluation. labels: of
-- the batch, a table; nil: the targets are no labels.
local function share_of(loss, labels, samples)
  local first = terms(loss)[1]
  if first.options.reduction == "sum" then return 1, true end
  if not labels then return samples end
  local weights, not_counted, sum = first.options.weight, ignored(loss), 0
  weights = type(weights) == "table" and weights or nil
  for _, label in ipairs(labels) do
    if label ~= not_counted then sum = sum + (weights and weights[label + 1] or 1) end
  end
  return sum
end

function Loss.__tostring(loss) return loss.kind == "sum" and loss.text or specs.show(loss) end

local function sum_of(list)
  local texts = {}
  for i, term in ipairs(list) do
    local factor = term.factor and core.number(term.factor) .. " * " or ""
    texts[i] = factor .. specs.show(term)
  end
  list.kind, list.options, list.text = "sum", {}, table.concat(texts, " + ")
  return setmetatable(list, Loss)
end

-- There is no tensor to call these with, or on: a trainer does what they do.
local LOOP = "mt.trainer{model = model, loss = criterion, optimizer = ...} has it, and trainer:step(x, y) does "
  .. "zero_grad, forward, loss, backward and the optimizer's step; with parts = true it has them one by one"
function Loss.__call(loss) util.fail("%s is called: there is no tensor type; %s", loss.kind, LOOP) end
Loss.__index = {backward = function(loss) util.fail("%s has no backward: %s", loss.kind, LOOP) end}

-- ce + 0.3 * ce: the loss of the first output plus that of the second
function Loss.__add(a, b)
  if not (is_loss(a) and is_loss(b)) then
    util.fail("+ stands between two losses, found a %s and a %s", is_loss(a) and "loss" or type(a),
      is_loss(b) and "loss" or type(b))
  end
  local list = table.move(terms(a), 1, #terms(a), 1, {})
  return sum_of(table.move(terms(b), 1, #terms(b), #list + 1, list))
end

function Loss.__mul(a, b)
  local factor, loss = a, b
  if is_loss(a) then factor, loss = b, a end
  if type(factor) ~= "number" or factor ~= factor or math.abs(factor) == math.huge then
    util.fail("* stands between a number and a loss, found %s", is_loss(factor) and "two losses" or tostring(factor))
  end
  local list = {}
  for i, term in ipairs(terms(loss)) do
    list[i] = setmetatable({}, Loss)
    for key, value in pairs(term) do list[i][key] = value end
    list[i].factor = factor * (term.factor or 1)
  end
  return sum_of(list)
end

-- The tree as PyTorch prints it. Of a graph, the children that have names are shown once, in the order of its
-- parameters.
function Layer.__tostring(layer)
  if #layer == 0 then return printed.layer(layer) end
  local shown, places = {}, layer.places or {}
  for i in ipairs(layer) do shown[i] = i end
  table.sort(shown, function(a, b) return (places[a] or a) < (places[b] or b) end)
  local parts = {}
  for _, i in ipairs(shown) do
    local name = layer.names and layer.names[i] or tostring(i - 1)
    if not name:find "#" then parts[#parts + 1] = {name, tostring(layer[i])} end
  end
  return printed.tree(layer.title or layer.kind, parts)
end

-- Sets a field of the layer and of all layers in it.
local function set_all(layer, field, value)
  layer[field] = value
  for _, child in ipairs(layer) do set_all(child, field, value) end
  return layer
end

-- layer:freeze() is PyTorch's requires_grad_(False), for this layer and all layers in it. layer:float(): their parameters stay
-- fp32 where the precision makes others 16-bit; what reads them computes in 16 bits all the same, as under autocast.
-- layer:parameters() is for an optimizer, as PyTorch's.
local methods = {
  parameters = optim.parameters,
  freeze = function(layer) return set_all(layer, "frozen", true) end,
  unfreeze = function(layer) return set_all(layer, "frozen", nil) end,
  float = function(layer) return set_all(layer, "wide", true) end,
}

-- Methods, and a graph's children by name.
function Layer.__index(layer, key)
  local children = rawget(layer, "children")
  return methods[key] or children and children[key]
end

local function new_container(kind)
  return setmetatable({kind = kind, options = {}, text = "", where = core.where():gsub(": $", "")}, Layer)
end

-- {"name", layer}, as in PyTorch's OrderedDict
local function is_pair(value)
  return type(value) == "table" and getmetatable(value) == nil and type(value[1]) == "string" and is_layer(value[2])
end

local function add_child(layer, i, child)
  if is_pair(child) then
    layer.names = layer.names or {}
    layer.names[i], child = child[1], child[2]
  end
  if not is_layer(child) then
    util.fail("%s: element %d is a %s, not a layer%s", layer.kind, i, is_loss(child) and "loss" or type(child),
      type(child) == "function" and ": a call makes one, as nn.Flatten()" or "")
  end
  layer[i] = child
end

local function check_names(layer)
  local seen = {}
  for i = 1, #layer do
    local name = layer.names[i] or tostring(i - 1)
    if not name:match "^[%w_-]+$" then util.fail('%s: "%s" cannot be the name of a layer', layer.kind, name) end
    if seen[name] then util.fail('%s: there are two layers of the name "%s"', layer.kind, name) end
    seen[name] = true
    layer.names[i] = name
  end
end

-- Sequential{a, b}, Sequential(a, b), Sequential{{"name", a}, b}, Concat{a, b, dim = 1}
local function container(kind, spec)
  local options = specs.names(spec)
  return function(first, ...)
    local plain = type(first) == "table" and not is_layer(first)
    local children, layer = plain and first or {first, ...}, new_container(kind)
    local last = plain and 0 or first == nil and select("#", ...) == 0 and 0 or 1 + select("#", ...)
    for key, value in pairs(children) do
      if options[key] then layer.options[key] = value
      elseif math.type(key) ~= "integer" or key < 1 then
        util.fail('%s takes a list of layers, found the name "%s"', kind, tostring(key))
      else last = math.max(last, key) end
    end
    layer.text = specs.check(kind, spec, layer.options)
    for i = 1, last do add_child(layer, i, children[i]) end
    if layer.names then check_names(layer) end
    return layer
  end
end

-- A layer that is no container may share its first parameter with another layer: {tied = layer}.
local function constructor(kind, spec, metatable)
  local make = specs.constructor(kind, spec, metatable)
  return function(...)
    local n = select("#", ...)
    local named = select(math.max(n, 1), ...)
    if type(named) ~= "table" or getmetatable(named) or named.tied == nil then return make(...) end
    local arguments, rest = {...}, {}
    for key, value in pairs(named) do if key ~= "tied" then rest[key] = value end end
    if not is_layer(named.tied) then util.fail("%s: tied: expected a layer, found a %s", kind, type(named.tied)) end
    arguments[n] = rest
    local layer = make(table.unpack(arguments, 1, n))
    layer.tied = named.tied
    return layer
  end
end

-- MaxPool2d -> max_pool2d, LeakyReLU -> leaky_relu, ReLU -> relu, LogSigmoid -> logsigmoid
local function function_name(kind)
  return (kind:gsub("(%l)(%u%l)", "%1_%2"):gsub("^ReLU", "relu"):gsub("^Log_Sig", "LogSig"):lower())
end

-- Calls the layer make(...) with x and with the values that come first in `...`
local function of_values(make, x, ...)
  local n, given = 0, table.pack(...)
  while graph.is_value(given[n + 1]) do n = n + 1 end
  return graph.call(make(table.unpack(given, n + 1, given.n)), x, table.unpack(given, 1, n))
end

for _, kind in ipairs(core.layer_kinds()) do
  local name, spec = kind.name, kind.spec
  if kind.role:find "[ch]" then nn[name] = container(name, spec)
  elseif kind.role == "s" or kind.role == "f" then nn[name] = specs.constructor(name, spec, Loss)
  else
    nn[name] = constructor(name, spec, Layer)
    graph.functions[function_name(name)] = function(x, ...) return of_values(nn[name], x, ...) end
  end
end

-- A padding that is equal on all sides may be a number.
for kind, sides in pairs{ZeroPad1d = 2, ZeroPad2d = 4} do
  local make = nn[kind]
  nn[kind] = function(padding, ...)
    local all = {}
    for i = 1, sides do all[i] = padding end
    return make(type(padding) == "number" and all or padding, ...)
  end
end

-- Puts the numbers of nested lists into `flat`, and the lists' sizes into `shape`.
local function flatten(kind, list, depth, flat, shape)
  util.check_type(kind, list, "table")
  shape[depth] = shape[depth] or #list
  for i, one in ipairs(list) do
    if type(list[1]) == "table" then flatten(kind, one, depth + 1, flat, shape) else flat[#flat + 1] = list[i] end
  end
  if #list ~= shape[depth] then util.fail("%s: lists of %d and of %d in one place", kind, shape[depth], #list) end
end

-- A constant is given as a list of numbers, or as lists in lists: nn.Buffer({{0, 1}, {1, 0}}, {dtype = "int64"})
for _, kind in ipairs{"Buffer", "Tensor"} do
  local make = nn[kind]
  nn[kind] = function(values, options)
    util.check_type(kind .. ": options", options or {}, "table")
    local flat, shape = {}, {}
    flatten(kind, values, 1, flat, shape)
    return make{shape = (options or {}).shape or shape, values = flat, dtype = (options or {}).dtype}
  end
end

local graph_spec
for _, kind in ipairs(core.layer_kinds()) do graph_spec = kind.name == "Graph" and kind.spec or graph_spec end

function nn.Graph(what)
  local layer = new_container "Graph"
  layer.options.listing = type(what) == "table" and what.listing or nil
  layer.text = specs.check("Graph", graph_spec, layer.options)
  return graph.build(layer, what, is_layer)
end

-- The graph `like`, of other layers, {name = layer, ...} (graph.copy)
local function graph_like(like, children)
  local layer = new_container "Graph"
  layer.options, layer.text = like.options, like.text
  return graph.copy(layer, like, children)
end

-- The labels that a loss is given: all that they are good for is to choose elements. y:unsqueeze(-1) and
-- x:gather(-1, index) are PyTorch's words.
local Labels = {__name = "memtide.labels"}
Labels.__index = function(_, name)
  if name ~= "unsqueeze" then
    util.fail("labels have no method %s: x:gather(-1, y:unsqueeze(-1)) reads them", tostring(name))
  end
  return function(labels, dim)
    if rawget(labels, "column") or dim ~= -1 and dim ~= 1 then util.fail "labels: unsqueeze(-1) is known, and once" end
    return setmetatable({value = labels.value, column = dim}, Labels)
  end
end

function graph.functions.gather(x, dim, index)
  if getmetatable(index) ~= Labels or not rawget(index, "column") then
    util.fail "gather: expected y:unsqueeze(-1) of the labels y as its index"
  end
  util.check_type("gather: dim", dim, "number")
  return graph.call(nn.Gather(math.max(dim, index.column)), x, index.value) -- 1 is the last of (N, C) alone
end

-- A loss that a script writes: forward(x, y) of logits x (N, C) or (N, T, C) and labels y (N) or (N, T) gives values that are
-- then reduced.
-- nn.Loss(forward, {reduction = "sum"})
local loss_of = nn.Loss
function nn.Loss(forward, options)
  util.check_type("Loss: forward", forward, "function")
  local loss = loss_of(options or {})
  return graph.build(loss, {forward = function(_, x, y)
    local result = forward(x, setmetatable({value = y}, Labels)) -- a variable, as PyTorch's function would have
    return result
  end}, is_layer)
end

-- Returns the list itself: a graph's child may be a plain list of layers.
function nn.ModuleList(list)
  util.check_type("ModuleList", list, "table")
  for i, layer in ipairs(list) do
    if not is_layer(layer) then util.fail("ModuleList: element %d is a %s, not a layer", i, type(layer)) end
  end
  return list
end

-- Returns the table itself: children by name, self.transformer.wte(ids) in a graph's forward. A child is a layer, or a list or a table of
-- children.
function nn.ModuleDict(named)
  util.check_type("ModuleDict", named, "table")
  for name, child in pairs(named) do
    local holds = is_layer(child) or type(child) == "table" and not getmetatable(child)
    if type(name) ~= "string" or not holds then util.fail("ModuleDict: %s is no layer with a name", tostring(name)) end
  end
  return named
end

-- Returns the table itself: parameters by name, self.qkv.weight in a graph's forward.
function nn.ParameterDict(named)
  util.check_type("ParameterDict", named, "table")
  for name, layer in pairs(named) do
    if type(name) ~= "string" or not is_layer(layer) or layer.kind ~= "Parameter" then
      util.fail("ParameterDict: %s is no nn.Parameter with a name", tostring(name))
    end
  end
  return named
end

function nn.Frozen(layer)
  if type(layer) == "table" and getmetatable(layer) == nil then layer = layer[1] end
  if not is_layer(layer) then util.fail("Frozen: expected a layer, found a %s", type(layer)) end
  return layer:freeze()
end

require "memtide.net.tensor_ops"(nn, graph)
require "memtide.net.transformer"(nn)

nn.functional, nn.interpolate = nn, nn.upsample -- F.relu(x), F.interpolate(x, {scale_factor = 2})
graph.functions.interpolate = nn.upsample

-- What to use instead of some of PyTorch's layers
local INSTEAD = {
  EmbeddingBag = "nn.Embedding, and x:mean(1) of what it gives",
  Conv3d = "images have two dimensions", MaxPool3d = "images have two dimensions",
  BatchNorm3d = "images have two dimensions", SyncBatchNorm = "nn.BatchNorm2d: there is one device",
  ModuleDict = "a table's keys are names: nn.Graph{name = layer, ...}", Module = "nn.Graph{..., forward = f}",
}

setmetatable(nn, {
  __index = function(_, name)
    util.fail("nn.%s does not exist%s", tostring(name), INSTEAD[name] and ": " .. INSTEAD[name] or
      util.meant(name, util.sorted_keys(nn)))
  end,
})

local function walk_below(layer, prefix, seen, visit)
  for i, child in ipairs(layer) do
    local own = layer.names and layer.names[i] or tostring(i - 1)
    local path = prefix
    if layer.kind == "Residual" then own = i == 1 and "body" or "shortcut" end
    if layer.kind ~= "Checkpoint" and own ~= "." then path = prefix == "" and own or prefix .. "." .. own end
    if not seen[child] then
      seen[child] = true
      walk_below(child, path, seen, visit)
      visit(path, child)
    end
  end
end

-- All layers below `layer`, once each, in their order: visit(path, layer)
local function walk(layer, visit) walk_below(layer, "", {}, visit) end

-- The network of a model for batches of that many samples; input: see inputs.lua. A layer that is used twice has its
-- parameters once.
local function network(model, loss, batch, input)
  local made = util.must(core.network(model, loss, inputs.of(model, batch, input)))
  inputs.check_tokens(input, made:inputs())
  return made
end

return {nn = nn, function_name = function_name, is_layer = is_layer, is_loss = is_loss,
  terms = terms, of_classes = of_classes, ignored = ignored, share_of = share_of, network = network, walk = walk, graph_like = graph_like}
