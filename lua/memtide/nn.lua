-- Layers and losses under PyTorch's names: plain tables {kind, options, where, child, ...} with a metatable.
local core = require "memtide.core"
local specs = require "memtide.specs"
local util = require "memtide.util"

local nn = {}
local Layer = {}  -- the metatable of layers
local Loss = {__tostring = specs.show, __name = "memtide.loss"}

-- The tree as PyTorch prints it.
function Layer.__tostring(layer)
  if #layer == 0 then return specs.show(layer) end
  local lines = {layer.kind .. "("}
  for i, child in ipairs(layer) do
    lines[#lines + 1] = ("  (%d): %s"):format(i - 1, (tostring(child):gsub("\n", "\n  ")))
  end
  return table.concat(lines, "\n") .. "\n)"
end
Layer.__name = "memtide.layer"

local function is_layer(value) return getmetatable(value) == Layer end
local function is_loss(value) return getmetatable(value) == Loss end

-- Sequential{a, b} or Sequential(a, b)
local function container(kind)
  return function(first, ...)
    local plain = type(first) == "table" and not is_layer(first)
    local children = plain and first or {first, ...}
    local layer = setmetatable({kind = kind, options = {}, text = "", where = core.where():gsub(": $", "")}, Layer)
    local last = plain and 0 or 1 + select("#", ...)
    for key in pairs(children) do
      if math.type(key) ~= "integer" or key < 1 then
        util.fail('%s takes a list of layers, found the name "%s"', kind, tostring(key))
      end
      last = math.max(last, key)
    end
    for i = 1, last do
      if not is_layer(children[i]) then
        util.fail("%s: element %d is a %s, not a layer", kind, i, is_loss(children[i]) and "loss" or type(children[i]))
      end
      layer[i] = children[i]
    end
    return layer
  end
end

local is_container = {}
for _, kind in ipairs(core.layer_kinds()) do
  is_container[kind.name] = kind.role == "c"
  if kind.role == "c" then nn[kind.name] = container(kind.name)
  else nn[kind.name] = specs.constructor(kind.name, kind.spec, kind.role == "s" and Loss or Layer) end
end

setmetatable(nn, {
  __index = function(_, name)
    util.fail("nn.%s does not exist%s", tostring(name), util.meant(name, util.sorted_keys(nn)))
  end,
})

local function leaves(layer, list)
  if not is_container[layer.kind] then list[#list + 1] = layer end
  for _, child in ipairs(layer) do leaves(child, list) end
  return list
end

-- The network of a model for inputs of this shape, batch first. A layer that stands in two places would have to share
-- its parameters between them, as in PyTorch: that is refused rather than done otherwise.
local function network(model, loss, input)
  local made = util.must(core.network(model, loss, input))
  local seen, list = {}, leaves(model, {})
  for i, row in ipairs(made:layers()) do
    local layer = list[i]
    if seen[layer] and #row.params > 0 then
      util.fail_at(layer.where .. ": ", "this %s stands twice in the network, at %s and %s: make one for each place",
        layer.kind, seen[layer], row.path)
    end
    seen[layer] = row.path
  end
  return made
end

return {nn = nn, is_layer = is_layer, is_loss = is_loss, network = network}
