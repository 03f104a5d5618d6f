-- nn.Graph: a network written as in PyTorch's forward(). The function runs once, on symbolic values. Each call of a
-- layer is a step, and the steps are the graph's children; {names, from, result} say who reads whose output, `held` how
-- long variables hold it (see Layer in core/network/network.h).
local core = require "memtide.core"
local util = require "memtide.base.util"

local Value = {__name = "memtide.value"} -- {trace, index}: the output of a step, or an input of the graph
local functions = {}                     -- functions of values by name: nn.relu(x) and x:relu()
local missing = {}                       -- {name of a method of PyTorch's tensors = what to use instead}

local graph = {functions = functions, missing = missing, operators = Value}

local function is_value(value) return getmetatable(value) == Value end
graph.is_value = is_value

-- Notes for all values that variables of the running functions hold that they are alive during the next step.
local function hold(trace)
  local step = #trace.graph
  local function note(value)
    if is_value(value) and value.trace == trace and value.index >= 0 then trace.graph.held[value.index + 1] = step end
  end
  local function each(frame)
    for name, held in pairs(frame) do
      if name == 1 then each(held)
      elseif is_value(held) then note(held)
      else
        for _, value in pairs(held) do note(value) end
      end
    end
  end
  for depth, frame in pairs(trace.locals:frames()) do
    if depth > 0 then each(frame) end
  end
end

-- Adds a step: `layer` is called with these values. Returns its output. The step is named after the layer's key in the
-- graph, "conv1", or "conv1#2" if it is called again; "relu#1" if the layer is no child.
function graph.call(layer, ...)
  local trace, from = nil, {}
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if not is_value(value) then
      util.fail("%s is called with a %s, expected a value of an nn.Graph's forward, of which methods are called with a "
        .. "colon, x:flatten(1); a model is run by a trainer: trainer:step(x, y), trainer:outputs(x)", layer.kind, type(value))
    end
    if not value.trace.open then util.fail("%s is called with a value of a forward that has ended", layer.kind) end
    if trace and trace ~= value.trace then util.fail("%s is called with values of two graphs", layer.kind) end
    trace, from[i] = value.trace, value.index
  end
  if not trace then util.fail("%s is called without a value", layer.kind) end
  hold(trace)
  local key, own = trace.keys[layer], layer
  if not key and layer.kind == "Checkpoint" and #layer == 1 then -- nn.Checkpoint(self.c)(x): parameters are c's
    own = layer[1]
    key = trace.keys[own]
  end
  local name = key or layer.kind:lower()
  local count = (trace.uses[name] or 0) + 1
  local steps = trace.graph
  trace.uses[name] = count
  steps[#steps + 1] = layer
  steps.names[#steps] = key and not trace.called[own] and key or ("%s#%d"):format(name, count)
  steps.from[#steps] = from
  trace.lines[#steps] = core.where()
  trace.called[own] = true
  return setmetatable({trace = trace, index = #steps - 1}, Value)
end

-- The layer that gives a value; nil: it is an input of the graph
function graph.maker(value) return value.trace.graph[value.index + 1] end

-- ---- values

local running = {} -- the traces of the forward functions that run now, the innermost last

-- The first input of the forward function that runs: what a step reads that reads nothing.
function graph.input()
  local trace = running[#running]
  return trace and trace.inputs[1] or util.fail "stands in the forward function of an nn.Graph, found outside of one"
end

-- x:method, and x[index]: rows by a constant
function Value.__index(value, name)
  if is_value(name) then return functions.index(value, name) end
  return functions[name] or util.fail("a value has no method %s%s", tostring(name), missing[name] and
    ": " .. missing[name] or util.meant(name, util.sorted_keys(functions)))
end

-- ---- the trace

-- Fields of layers and graphs, which cannot be names of children
local RESERVED = {}
graph.reserved = RESERVED
for name in ("kind title where options text frozen tied names places held from result children order forward " ..
  "listing freeze unfreeze float wide parameters files takes adapters"):gmatch "%a+" do RESERVED[name] = true end

-- A name with dots is that of a layer which PyTorch has inside of another child, "block.0.attention.bias": here each child
-- gives one value, so that what several read is called beside them.
local function check_name(name)
  if type(name) ~= "string" or not name:match "^[%w_][%w_.]*$" or name:find "%.$" or name:find("..", 1, true) or RESERVED[name] then
    util.fail('Graph: "%s" cannot be the name of a layer', tostring(name))
  end
end

local OWN = "." -- the name of a layer that adds no name: its parameters have the graph's own

local VALUES = {Parameter = true, Buffer = true, Mask = true} -- kinds of layers that are values wherever they are named

-- What is no layer itself and holds some: is it a list of children, or a table of children by name (nn.ModuleDict, nn.ParameterDict)? A child
-- is a layer, or such a list or table in turn.
local function is_children(value, is_layer)
  if type(value) ~= "table" or getmetatable(value) or next(value) == nil then return false end
  local n = #value
  for key, one in pairs(value) do
    if (n > 0) ~= (math.type(key) == "integer") or not is_layer(one) and not is_children(one, is_layer) then return false end
  end
  return true
end

-- Notes the paths of all layers in a child, "blocks.0" of an element of a list: keys[layer] = path
local function note_paths(value, path, is_layer, keys)
  check_name(path)
  if is_layer(value) then
    keys[value] = keys[value] or path
    return
  end
  if value[1] ~= nil then
    for i, one in ipairs(value) do note_paths(one, ("%s.%d"):format(path, i - 1), is_layer, keys) end
    return
  end
  for _, name in ipairs(util.sorted_keys(value)) do note_paths(value[name], path .. "." .. name, is_layer, keys) end
end

-- children[name] = a layer, or a list or a table of children; plain[name] = other values; keys[layer] = "conv1", "blocks.0" of an
-- element of a list, "qkv.weight" of one in a table
local function register(what, is_layer)
  local children, keys, plain, named = {}, {}, {}, {}
  for name, value in pairs(what) do if math.type(name) ~= "integer" then named[name] = value end end
  if #what > 1 then util.fail("Graph: at most one layer has no name, found %d", #what) end
  if what[1] ~= nil then
    if not is_layer(what[1]) then util.fail("Graph: expected a layer without a name, found a %s", type(what[1])) end
    children[1], keys[what[1]] = what[1], OWN
  end
  for _, name in ipairs(util.sorted_keys(named)) do -- order and forward are no layers
    local value = what[name]
    if is_layer(value) or is_children(value, is_layer) then
      note_paths(value, name, is_layer, keys)
      children[name] = value
    else
      plain[name] = value
    end
  end
  return children, keys, plain
end

local function self_of(trace, children, plain)
  local values = {}
  local function value_of(layer)
    values[layer] = values[layer] or graph.call(layer, trace.inputs[1])
    return values[layer]
  end
  -- What stands at the name of a child: a parameter's value, a layer, a list, or a table of children by their names
  local function held_by(child, path)
    if VALUES[child.kind] then return value_of(child) end
    if getmetatable(child) or child[1] ~= nil then return child end
    return setmetatable({}, {__index = function(_, key)
      return held_by(child[key] or util.fail("%s.%s does not exist%s", path, tostring(key),
        util.meant(tostring(key), util.sorted_keys(child))), path .. "." .. key)
    end})
  end
  return setmetatable({}, {
    __index = function(_, name)
      local child = children[name]
      if child ~= nil then return held_by(child, "self." .. name) end
      if plain[name] ~= nil then return plain[name] end
      local known = {}
      for key in pairs(children) do known[#known + 1] = tostring(key) end
      table.sort(known)
      util.fail("self.%s does not exist%s; for `if self.%s then`: %s = false in the graph's table", tostring(name),
        util.meant(name, known), tostring(name), tostring(name))
    end,
    __newindex = function(_, name) util.fail("self.%s is set in forward: a graph keeps nothing", tostring(name)) end,
  })
end

-- The order of parameters in a state_dict is that of first use; `order`, a list of the children's names, changes it.
local function places_of(trace, order)
  local rank, places = {}, {}
  util.check_type("Graph: order", order, "table")
  for i, name in ipairs(order) do rank[name == 1 and OWN or name] = i end
  local function rank_of(name) -- of a path the longest part that is named
    while name and not rank[name] do name = name:match "^(.*)%.[^.]+$" end
    return rank[name]
  end
  for i, name in ipairs(trace.graph.names) do
    local place = name:find "#" and 0 or rank_of(name)
    if not place then util.fail('Graph: order does not name "%s"', tostring(name == OWN and 1 or name:match "^[%w_]+")) end
    places[i] = place * #trace.graph.names + i
  end
  return places
end

-- Raises unless every step leads to a result and every child is called.
local function check_used(trace, results)
  local used, steps = {}, trace.graph
  for _, index in ipairs(results) do used[index] = true end
  for i = #steps, 1, -1 do
    if not used[i - 1] then
      util.fail_at(trace.lines[i], "Graph: what %s gives is not used", steps.names[i])
    end
    for _, from in ipairs(steps.from[i]) do used[from] = true end
  end
  for layer, key in pairs(trace.keys) do
    if not trace.called[layer] then util.fail("Graph: forward does not call self.%s", key) end
  end
end

local function run(trace, self, forward)
  local info = debug.getinfo(forward, "u")
  local locals <close> = core.locals(Value)
  trace.locals = locals
  local inputs = trace.inputs
  for k = 1, math.max(1, info.nparams - 1) do inputs[k] = setmetatable({trace = trace, index = -k}, Value) end
  local depth = #running
  local _ <close> = setmetatable({}, {__close = function() running[depth + 1] = nil end})
  running[depth + 1] = trace
  local results = table.pack(forward(self, table.unpack(inputs)))
  trace.open = false
  if results.n == 0 then util.fail "Graph: forward must return a value, found nothing" end
  for i = 1, results.n do
    local result = results[i]
    if not is_value(result) then util.fail("Graph: forward must return values, found a %s", type(result)) end
    if result.trace ~= trace then util.fail "Graph: forward returns a value of another graph" end
    results[i] = result.index
  end
  return results
end

-- Fills `layer`, an empty Graph, from {name = layer, ..., forward = function(self, x) ... end}, and returns it.
function graph.build(layer, what, is_layer)
  util.check_type("Graph", what, "table")
  util.check_type("Graph: forward", what.forward, "function")
  local children, keys, plain = register(what, is_layer)
  local trace = {graph = layer, keys = keys, uses = {}, called = {}, lines = {}, inputs = {}, open = true}
  layer.names, layer.from, layer.held, layer.children, layer.takes = {}, {}, {}, children, {}
  for k = 2, debug.getinfo(what.forward, "u").nparams do layer.takes[k - 1] = debug.getlocal(what.forward, k) end
  layer.result = run(trace, self_of(trace, children, plain), what.forward)
  check_used(trace, layer.result)
  if what.order then layer.places = places_of(trace, what.order) end
  return layer
end

-- Fills `layer`, an empty Graph, as `like` is, with other layers by the names of its children: for a forward that does the same with
-- them, which then runs once for many.
function graph.copy(layer, like, children)
  local key = {}
  for name, child in pairs(like.children) do key[child] = name end
  for _, field in ipairs{"names", "from", "held", "takes", "result"} do layer[field] = like[field] end
  layer.children = children
  for i, step in ipairs(like) do
    layer[i] = children[key[step]]
    if not layer[i] then -- made in forward: a sum, a product
      layer[i] = setmetatable({}, getmetatable(step))
      for field, value in pairs(step) do layer[i][field] = value end
    end
  end
  return layer
end

return graph
