-- From a description (exporter.py) to forms (forms.lua): each module by itself, with its children as references.
--
-- A graph has keys = {name of a child, ...} and the children in the same order; order: names for nn.Graph's option of
-- that name, or none; steps = {{out = n, form, binds = {{variable, n}, ...}}, ...}; returns = {n, ...}.
local constants = require "memtide.import.constants"
local forms = require "memtide.import.forms"
local graph = require "memtide.net.graph"
local heads = require "memtide.import.heads"
local spelling = require "memtide.import.spelling"
local wide = require "memtide.import.wide"
local text = forms.text

local model = {}
local MOST_INPUTS = 8 -- of a graph
local DICT = "torch.nn.ModuleDict"
local CUT = "of what has a gradient, under torch.no_grad()"

local Model = {}
Model.__index = Model

-- ---- what cannot be said

-- where: file:line of the Python code; shape: of what it gives, or nil
function Model:problem(what, where, shape)
  local key = what .. "\n" .. (where or "")
  local one = self.problems[key]
  if not one then
    one = {what = what, where = where or "", count = 0, elements = 0}
    self.problems[key], self.problems[#self.problems + 1] = one, one
  end
  local elements = shape and 1 or 0
  for _, size in ipairs(shape or {}) do elements = elements * (type(size) == "table" and size.batch or size) end
  one.count, one.elements = one.count + 1, one.elements + elements
end

local Unsaid = {}

local function unsaid(what) error(setmetatable({what = what}, Unsaid), 0) end

-- ---- names

-- The module that a child or a parameter of that name is in
local function owner_of(name) return name:match "^(.*)%.[^.]+$" or "" end

-- The name of a child or a parameter of the module
local function full_name(module, key) return module.name == "" and key or module.name .. "." .. key end

-- The name within the module; nil: it belongs to another one
local function relative(module, name)
  if module.name == "" then return name end
  return name:sub(1, #module.name + 1) == module.name .. "." and name:sub(#module.name + 2) or nil
end

-- "self.layers[1]" of "encoder.layers.0" in "encoder"
function Model:path_of(module, name)
  local rest = relative(module, name)
  if not rest then unsaid(("%s, which belongs to another module,"):format(name)) end
  local at, path = module, "self"
  for key in rest:gmatch "[^.]+" do
    local child = self.by_name[full_name(at, key)]
    if key:find "^%d" and at.bare then path = ("%s[%d]"):format(path, key + 1)
    elseif at == module or at.class == DICT then path = path .. forms.index(key)
    else unsaid(("the child %s of %s, by its name"):format(key, at.name)) end
    at = child
  end
  return path
end

-- A function that gives the text of the layer with these parameters: see spelling.call. The layer that stands for the
-- module's own ones is kept as module.own.
function Model:layer_of(module)
  return function(weight, bias, layer)
    local owner, key = weight:match "^(.-)%.?([^.]+)$"
    if key ~= "weight" or bias and bias ~= weight:gsub("weight$", "bias") then return nil end
    local child = self.by_name[owner]
    if child == module and (not module.own or forms.identity(module.own) == forms.identity(layer)) then
      module.own = layer
      return "self[1]"
    end
    if child == module or not child.options or child.parts then return nil end
    if forms.identity(layer) ~= forms.identity(spelling.layer(child.kind, child.options)) then return nil end
    child.unused = false
    return self:path_of(module, owner)
  end
end

-- ---- what is frozen

-- Sets module.whole: all of its parameters are frozen, and those of no module that it is in, so that the script says it
-- of this one. A list is none of the script's layers.
function Model:find_whole()
  local free = {} -- modules with a parameter that is trained
  for _, module in ipairs(self.modules) do
    for _, one in ipairs(module.parameters) do
      local name = module.name
      while not self.is_frozen[full_name(module, one[1])] do
        free[name] = true
        if name == "" then break end
        name = owner_of(name)
      end
    end
  end
  local inside = {} -- of one that is whole
  for _, module in ipairs(self.modules) do
    local parent = module.name ~= "" and owner_of(module.name) or nil
    inside[module.name] = inside[parent] or false
    module.inside = inside[module.name]
    module.whole = not module.inside and not module.list and module.weights > 0 and not free[module.name]
    inside[module.name] = module.inside or module.whole
  end
  if self.by_name[""].whole then self:problem("a model of which no parameter is trained", "") end
end

-- The form of a module in its parent. One that is read as parameters is no layer.
function Model.frozen_form(module, form)
  return module.whole and not module.parts and {tag = "frozen", form} or form
end

function Model:frozen_in_part(module)
  self:problem(("%s, of which some parameters are frozen and others are not"):format(module.class), self.called_at[module.name])
end

-- Raises a problem if something is frozen in a module that is one layer here, and not all of it.
function Model:check_layer(module)
  if module.whole or module.inside then return end
  for name in pairs(self.is_frozen) do
    if relative(module, name) then return self:frozen_in_part(module) end
  end
end

-- The form of a layer that is made of a module's own parameters, by their keys
function Model:own_form(module, form, ...)
  local count = 0
  for _, key in ipairs{...} do count = count + (self.is_frozen[full_name(module, key)] and 1 or 0) end
  if count > 0 and count < select("#", ...) then self:frozen_in_part(module) end
  local said = module.inside or module.whole and not module.parts
  return count > 0 and not said and {tag = "frozen", form} or form
end

-- ---- calls

local function is_reference(value)
  return type(value) == "table" and (value.value or value.parameter or value.buffer or value.outside)
end

-- The description's constant that a buffer is, or that a value of the module holds
local function constant_of(self, module, value)
  if value.buffer then return self.constants[self.constant_of_buffer[value.buffer]] end
  return module.constants[value.value]
end

-- The child of that name, of whose parameters each is read as a value; nil: there is none, or it is called, too
function Model:parts_of(module, name)
  local child = name and self.by_name[full_name(module, name)]
  if not child or not child.options or child.kind ~= "Linear" or not child.unused and not child.parts then return nil end
  child.parts, child.unused = true, false
  return child
end

-- Constants that are not described
local OUTSIDE = {
  booleans = 'a mask of booleans that is no triangle (expected one that hides later steps)',
  infinities = 'a constant with infinities (expected scores.masked_fill(mask, float("-inf")) for scores + mask)',
  size = "a constant of more than a million numbers", type = "a constant of another type than float32 and int64",
}

-- The form of an argument. index: it may be whole numbers.
local function value_in(self, module, index)
  return function(value)
    if not is_reference(value) then
      if type(value) == "table" then unsaid "an argument that is no value" end
      return value
    end
    local constant = constant_of(self, module, value)
    if constant and constant.type == "mask" then unsaid "a mask of booleans, which masked_fill alone reads," end
    if constant and constant.type == "int64" and not index then unsaid "a constant of whole numbers" end
    local apart = module.heads[value.value]
    if apart and apart.copied then apart = nil end
    if apart and apart.times then unsaid(heads.REPEATED) end
    if apart and apart.flat then return heads.text(apart, module.shapes[value.value + 1]) end
    if module.wide[value.value] then unsaid(("a value of %d dimensions"):format(#module.wide[value.value].order)) end
    if math.type(value.value) == "integer" then return {tag = "value", n = value.value} end
    if value.value then unsaid "a value that was written to through another one, or by a child," end
    if value.parameter then
      local key = relative(module, value.parameter)
      local child = key and self:parts_of(module, key:match "^([%a_][%w_]*)%.[%w_]+$")
      if child or key and not key:find "%." then return {tag = "text", "self." .. key} end
      unsaid(("the parameter %s"):format(value.parameter))
    end
    if value.buffer then
      local key = relative(module, value.buffer)
      if constant and key and not key:find "%." then return {tag = "text", "self." .. key} end
      unsaid(("the buffer %s"):format(value.buffer))
    end
    unsaid(OUTSIDE[value.of] or "a tensor that is no value of forward")
  end
end

-- All references in arguments, in their order, each once
local function references(value, found, seen)
  if type(value) ~= "table" then return found end
  if is_reference(value) then
    local key = forms.identity(value)
    if not seen[key] then
      seen[key] = true
      found[#found + 1] = value
    end
    return found
  end
  for _, one in ipairs(value) do references(one, found, seen) end
  return found
end

local function given_to(call)
  local found, seen = {}, {}
  references(call.args, found, seen)
  local names = {}
  for name in pairs(call.named) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do references(call.named[name], found, seen) end
  return found
end

-- Does the module begin with torch.cat of all that it is given, and read that nowhere else? Then the caller joins it.
local function joins_inputs(module)
  local first = module.calls and module.calls[1]
  if not first or not first.op or not first.op:find "%.cat$" or type(first.args[1]) ~= "table" then return nil end
  for i = 1, module.inputs do
    local one = first.args[1][i]
    if not one or one.value ~= i - 1 then return nil end
  end
  if #first.args[1] ~= module.inputs then return nil end
  for k = 2, #module.calls do
    for _, one in ipairs(given_to(module.calls[k])) do
      if math.type(one.value) == "integer" and one.value < module.inputs then return nil end
    end
  end
  return first.args[2] or first.named.dim or 0
end

-- What forward of these layers takes; of all others it is one value.
local FORWARD = {MultiheadAttention = {"query", "key", "value", "key_padding_mask", "need_weights", "attn_mask",
  "average_attn_weights", "is_causal"}}
local INPUTS = {MultiheadAttention = 3}
local NO_MATTER = {need_weights = true, average_attn_weights = true} -- of what is given back beside the output

-- The option of attention that is an argument of its forward in PyTorch: need_weights is true there if nothing is said.
local function note_weights(module, child, call)
  if child.kind ~= "MultiheadAttention" then return end
  local function given(i, name) if call.named[name] ~= nil then return call.named[name] else return call.args[i] end end
  local asks = given(5, "need_weights") ~= false
  local options = {need_weights = asks, average_attn_weights = not asks or given(7, "average_attn_weights") ~= false, weights_held = false}
  for _, other in ipairs(asks and module.calls or {}) do
    for _, one in ipairs(other.bound) do if one[2] == call.out[2] then options.weights_held = true end end
  end
  for name, value in pairs(options) do
    if child.asked and child.asked[name] ~= value then unsaid(("%s, which is asked for its weights in one call and not in another,"):format(child.class)) end
  end
  child.asked = options
end

-- The form of the numbers that an nn.Embedding is called with, if they are the same for each batch: of 0, 1, 2, ..., or others
local function constant_index(self, module, one)
  local constant = constant_of(self, module, one)
  if not constant or constant.type ~= "int64" then return nil end
  local counts = #constants.shape(constant) <= 1 or #constant.values == 1
  for i, x in ipairs(constant.values) do counts = counts and x == i - 1 end
  return counts and not one.buffer and text("nn.arange(", #constant.values, ")") or value_in(self, module, true)(one)
end

-- The values that a layer is called with; raises where it is called with something that the layer here does not take.
local function inputs_of_layer(child, call)
  local names, wanted, given, all = FORWARD[child.kind] or {"input"}, INPUTS[child.kind] or 1, {}, {}
  for i, value in ipairs(call.args) do all[names[i] or "argument " .. i] = value end
  for name, value in pairs(call.named) do all[name] = value end
  for i = 1, wanted do given[i], all[names[i]] = all[names[i]], nil end
  local refused = {}
  for name, value in pairs(all) do
    local none = value == false or type(value) == "table" and value.word == "None"
    if not none and not NO_MATTER[name] then refused[#refused + 1] = name end
  end
  table.sort(refused)
  if #given < wanted or #refused > 0 then
    unsaid(("%s called with %s"):format(child.class, #refused > 0 and table.concat(refused, ", ") or "fewer values"))
  end
  return references(given, {}, {})[2] and given or {given[1]}
end

function Model:call_of_child(module, call)
  local child, value = self.by_name[call.call], value_in(self, module)
  if call.cut then unsaid(("%s %s"):format(child.class, CUT)) end
  local given = given_to(call)
  local out = text(self:path_of(module, call.call), "(")
  if child.options then
    given = inputs_of_layer(child, call)
    note_weights(module, child, call)
  end
  if child.inputs and #given ~= child.inputs then
    unsaid(("%s with %d values in place of %d (in a dict?)"):format(child.class, #given, child.inputs))
  end
  local dim = joins_inputs(child)
  if dim then out[#out] = out[#out] .. "nn.cat({" end
  for i, one in ipairs(given) do
    if i > 1 then out[#out + 1] = ", " end
    out[#out + 1] = child.kind == "Embedding" and constant_index(self, module, one) or value(one)
  end
  out[#out + 1] = dim and ("}, %d))"):format(dim) or ")"
  return {out}
end

-- A part of a buffer of the module's own; nil: it is another one's, or it is not described
function Model:part_of_buffer(module, call, shape)
  local key, whole = relative(module, call.buffer), self.constants[self.constant_of_buffer[call.buffer]]
  if not whole or not key or key:find "%." or #whole.shape > 4 or #shape > 4 then return nil end
  local form, sizes = text("self." .. key), table.move(whole.shape, 1, #whole.shape, 1, {})
  for _, one in ipairs(call.part) do
    form[#form + 1] = (":narrow(%d, %d, %d)"):format(table.unpack(one))
    sizes[one[1] + 1] = one[3]
  end
  if forms.identity(sizes) ~= forms.identity(shape) then form[#form + 1] = (":view({%s})"):format(table.concat(shape, ", ")) end
  return form
end

-- ---- masks: PyTorch's step asks how they are made

-- Notes once what PyTorch does and the script does not say.
function Model:differ(what)
  if self.told[what] then return end
  self.told[what], self.differs[#self.differs + 1] = true, what
end

-- A function that gives the form of an argument that is a mask, or nil
function Model:mask_of(module)
  return function(one)
    local constant = type(one) == "table" and is_reference(one) and constant_of(self, module, one)
    if not constant or constant.type ~= "mask" then return nil end
    if one.value then return {tag = "value", n = one.value} end
    local rows, columns = table.unpack(constant.shape, #constant.shape - 1)
    return self:mask(module, constant, {made = {}, buffer = one.buffer, of = {"bool", rows, columns}, where = ""})
  end
end

-- How a script says the functions that make a mask in forward
local MADE = {["ones,tril"] = "ones", ["ones,triu"] = "ones", ["ones,tril,eq"] = "numbers", ["ones,triu,eq"] = "numbers"}

-- The form of a mask: in a buffer that the module has, or made in its forward
function Model:mask(module, constant, call)
  local n = #constant.shape
  local rows, columns = constant.shape[n - 1], constant.shape[n]
  local functions, key = table.concat(call.made, ","), call.buffer and relative(module, call.buffer)
  local buffered = key and not key:find "%." and ({["bool:"] = "booleans", ["float32:eq"] = "buffer"})[call.of[1] .. ":" .. functions]
  if buffered then
    module.own_masks[key] = {tag = "layer", kind = "Mask", options = {rows = rows, columns = columns, diagonal = constant.diagonal,
      upper = constant.upper, made = buffered, of = {tag = "list", call.of[2], call.of[3]}}}
    return text("self." .. key)
  end
  local made = not call.buffer and MADE[functions]
  if not made then
    self:differ(('%s: PyTorch makes a mask in a way that framework = "pytorch" does not know: it predicts torch.ones(%d, %d, dtype=torch.bool).tril()')
      :format(call.where, rows, columns))
  end
  return text(("nn.mask(%d, %d, %d, %s"):format(rows, columns, constant.diagonal, constant.upper), made == "numbers" and ', {made = "numbers"})' or ")")
end

local AFTER_CONSTANT = {float32 = ")", int64 = ', {dtype = "int64"})'} -- by its type: what follows in nn.tensor(

-- A constant that forward makes. Sizes of 1 say nothing; where all others are too many it is a wide value.
function Model:call_of_constant(module, call)
  local out, constant = call.out[1], self.constants[call.constant]
  if not constant then unsaid "a constant of the batch, or one that forward changes" end
  local shape = module.shapes[out + 1]
  module.constants[out] = constant
  if constant.type == "mask" then return {self:mask(module, constant, call)} end
  if call.buffer then
    local form = self:part_of_buffer(module, call, shape)
    if form then return {form} end
  end
  local form = text("nn.tensor(", {tag = "constant", name = call.constant}, AFTER_CONSTANT[constant.type])
  if #constants.shape(constant) > 4 then unsaid "a constant of more than 4 dimensions" end
  return {wide.constant(form, shape, out, module.wide)}
end

function Model:call_of_function(module, call)
  if call.op == "constant" then return self:call_of_constant(module, call) end
  if call.cut then unsaid(("%s %s"):format(call.op, CUT)) end
  local value = value_in(self, module)
  local op = {name = call.op, args = call.args, named = call.named, shapes = module.shapes, out = call.out,
    value = value, index = value_in(self, module, true), layer_of = self:layer_of(module), mask = self:mask_of(module),
    operand = function(one) return {tag = "operand", value(one)} end,
    shape_of = function(name) return self.shape_of_parameter[name] end,
    of_embedding = function(name) return (self.by_name[owner_of(name)] or {}).kind == "Embedding" end,
    note = function(n, part) heads.note(module.heads, n, part) end,
    tell = function(what) self:differ(("%s: %s"):format(call.where, what)) end}
  for _, way in ipairs{heads, wide} do
    local form, what = way.call(op, spelling.short(op.name), way == wide and module.wide or module.heads)
    if form then return form.tag and {form} or form elseif form == false then unsaid(("%s %s"):format(op.name, what)) end
  end
  for _, one in ipairs(given_to(call)) do
    local constant = constant_of(self, module, one)
    local masks = constant and constant.type == "mask" and spelling.reads_mask(op.name)
    if one.parameter then one.shape = self.shape_of_parameter[one.parameter] elseif not masks then op.index(one) end
    if constant then one.shape = constant.shape end
  end
  local list, why = spelling.call(op)
  if not list then unsaid(why) end
  return list
end

-- What stands for a call that cannot be said: the values that it reads
local function read_by(call)
  local out = text()
  for _, one in ipairs(given_to(call)) do
    if math.type(one.value) == "integer" then out[#out + 1] = {tag = "value", n = one.value} end
  end
  return out
end

-- The steps of forward, without those whose results nobody reads
function Model:steps_of(module)
  local steps, bound = {}, {}
  for _, call in ipairs(module.calls) do
    for _, name in ipairs(call.gone or {}) do bound[#bound + 1] = {name} end
    table.move(call.bound, 1, #call.bound, #bound + 1, bound)
    local good, list = pcall(call.op and self.call_of_function or self.call_of_child, self, module, call)
    if not good and getmetatable(list) ~= Unsaid then error(list, 0) end
    for i, n in ipairs(call.out) do
      local why = not good and list.what
        or not list[i] and ("a second result of %s"):format(call.op or call.call) or nil
      steps[#steps + 1] = {out = n, good and list[i] or read_by(call), binds = bound, where = call.where, unsaid = why}
      bound = {}
    end
  end
  return steps
end

local function reads(form, visit)
  if type(form) ~= "table" then return end
  if form.tag == "value" then return visit(form) end
  for _, one in ipairs(form) do reads(one, visit) end
end

-- The form with other numbers of values; forms of several steps may share parts.
local function renumbered(form, final)
  if type(form) ~= "table" then return form end
  if form.tag == "value" then return {tag = "value", n = final(form.n) or form.n} end
  local out = {}
  for key, one in pairs(form) do out[key] = renumbered(one, final) end
  return out
end

-- Leaves out what nobody reads, joins steps that only name another value, and numbers values anew.
function Model:tidy(module, steps, returns)
  local used, kept, same = {}, {}, {}
  for _, n in ipairs(returns) do used[n] = true end
  for i = #steps, 1, -1 do
    local step = steps[i]
    if used[step.out] then reads(step[1], function(value) used[value.n] = true end) end
    if used[step.out] and step.unsaid then self:problem(step.unsaid, step.where, module.shapes[step.out + 1]) end
  end
  local bound, number = {}, {}
  for i = 0, module.inputs - 1 do number[i] = i end
  local function final(n)
    while same[n] do n = same[n] end
    return number[n]
  end
  local count = module.inputs
  for _, step in ipairs(steps) do
    table.move(step.binds, 1, #step.binds, #bound + 1, bound)
    if used[step.out] then
      if step[1].tag == "value" then same[step.out] = step[1].n
      else
        local form, known = renumbered(step[1], final), {}
        for _, one in ipairs(bound) do
          if not one[2] or final(one[2]) then known[#known + 1] = {one[1], one[2] and final(one[2])} end
        end
        number[step.out], count = count, count + 1
        kept[#kept + 1] = {out = number[step.out], form, binds = known}
        bound = {}
      end
    end
  end
  local results = {}
  for i, n in ipairs(returns) do results[i] = final(n) end
  return kept, results
end

-- ---- modules

local function is_digits(children)
  for i, one in ipairs(children) do if one[1] ~= tostring(i - 1) then return false end end
  return true
end

-- Is forward one child after the other, each of them once?
local function is_chain(module)
  if not module.sequence or not module.calls then return false end
  if module.inputs ~= 1 or #module.calls ~= #module.children then return false end
  for i, call in ipairs(module.calls) do
    if call.call ~= module.children[i][2] or #given_to(call) ~= 1 then return false end
  end
  return true
end

local function sequential(module)
  local form = {tag = "sequential", names = {}, bare = module.bare or false}
  for i, one in ipairs(module.children) do
    form[i] = {tag = "module", name = one[2]}
    form.names[i] = one[1] ~= tostring(i - 1) and one[1] or false
  end
  return form
end

-- nn.ModuleDict, without what is never called
function Model:dict(module)
  local form = {tag = "dict", kind = "ModuleDict", names = {}}
  for _, one in ipairs(module.children) do
    local child = self.by_name[one[2]]
    if not child.unused or child.list and #child.children > 0 then
      form.names[#form + 1], form[#form + 1] = one[1], {tag = "module", name = one[2]}
    else self:left_out(child) end
  end
  return form
end

function Model:left_out(child)
  if child.weights == 0 then return end
  self.notes[#self.notes + 1] = ("%s (%d parameters) is never called, and is left out"):format(child.name, child.weights)
end

-- Where a text reads self.key; 0: nowhere
local function position_of(key, all)
  local access = "self" .. forms.index(key)
  local at, last = all:find(access, 1, true)
  while at and access:match "%w$" and all:match("^[%w_]", last + 1) do at, last = all:find(access, last, true) end
  return at or 0
end

function Model:graph(module)
  local form = {tag = "graph", keys = {}, order = {}, inputs = module.inputs}
  local steps = self:steps_of(module)
  local returns = {}
  for i, one in ipairs(module.returns) do
    if module.results[i] or module.name == "" then
      if math.type(one.value) == "integer" then returns[#returns + 1] = one.value
      else self:problem("forward gives what is no value of its own", module.class) end
    end
  end
  local where = module.calls[1] and module.calls[1].where
  if #returns > 1 and module.name ~= "" then
    self:problem(("%s gives several values to another module"):format(module.class), where)
  end
  if joins_inputs(module) then
    form.inputs = 1
    local first = table.remove(steps, 1).out
    for _, step in ipairs(steps) do
      reads(step[1], function(value) if value.n == first then value.n = 0 end end)
      for _, one in ipairs(step.binds) do if one[2] == first then one[2] = 0 end end
    end
    for i, n in ipairs(returns) do if n == first then returns[i] = 0 end end
    module = setmetatable({inputs = 1}, {__index = module})
  end
  if form.inputs > MOST_INPUTS then
    self:problem(("%s reads %d values"):format(module.class, form.inputs), module.calls[1] and module.calls[1].where)
  end
  form.steps, form.returns = self:tidy(module, steps, returns)
  local read = forms.identity(form.steps)
  if module.own and read:find("self[1]", 1, true) then
    form.keys[1], form[1] = false, self:own_form(module, module.own, "weight", module.own.options.bias and "bias" or nil)
  end
  for _, one in ipairs(module.parameters) do
    local of_layer = form.keys[1] == false and (one[1] == "weight" or one[1] == "bias" and module.own.options.bias)
    if #one[2] == 0 then
      self:problem(("%s has a parameter %s without dimensions (expected torch.ones(1)), which"):format(module.class, one[1]), where)
    elseif not of_layer and position_of(one[1], read) > 0 then
      form.keys[#form.keys + 1] = one[1]
      local shape, number = {tag = "list", table.unpack(one[2])}, one[4]
      form[#form + 1] = self:own_form(module, {tag = "layer", kind = "Parameter",
        options = {shape = shape, init = number or "normal", std = number and 1 or 0.02, bound = 1}}, one[1])
    elseif not of_layer then
      self:problem(("%s has a parameter %s, which"):format(module.class, one[1]), where)
    end
  end
  for _, one in ipairs(module.buffers) do
    if read:find("self." .. one[1] .. "[^%w_]") then
      form.keys[#form.keys + 1] = one[1]
      form[#form + 1] = module.own_masks[one[1]] or {tag = "layer", kind = "Buffer", options = {values = {tag = "constant", name = one[4]},
        dtype = self.constants[one[4]].type}}
    end
  end
  for _, one in ipairs(module.children) do
    local child = self.by_name[one[2]]
    if not child.unused then
      if not one[1]:match "^[%w_]+$" or graph.reserved[one[1]] then
        self:problem(('a child of the name "%s"'):format(one[1]), module.calls[1] and module.calls[1].where)
      end
      form.keys[#form.keys + 1] = one[1]
      form[#form + 1] = {tag = "module", name = one[2]}
    else self:left_out(child) end
  end
  form.order = self:order(form, read)
  return form
end

-- The names of the children in their order, if what has parameters is first used in another one
function Model:order(form, read)
  local places, sorted = {}, true
  for i, key in ipairs(form.keys) do
    local child = form[i].tag == "module" and self.by_name[form[i].name]
    if not key then places[#places + 1] = 0
    elseif not child or child.weights > 0 then places[#places + 1] = position_of(key, read) end
  end
  for i = 2, #places do sorted = sorted and places[i - 1] < places[i] end
  local order = {}
  for i, key in ipairs(form.keys) do order[i] = key or 1 end
  return sorted and {} or order
end

-- nn.Linear's parameters, as they start there
function Model:parameters_of(module)
  local form = {tag = "dict", kind = "ParameterDict", names = {}}
  for i, one in ipairs(module.parameters) do
    form.names[i], form[i] = one[1], self:own_form(module, {tag = "layer", kind = "Parameter", options = {shape = {tag = "list",
      table.unpack(one[2])}, init = "uniform", std = 1, bound = module.options.in_features ^ -0.5}}, one[1])
  end
  return form
end

-- The form of a module, in which {tag = "module", name} stands for its children
function Model:form_of(module)
  if module.parts then return self:parameters_of(module) end
  if module.options then
    local form, why = spelling.layer(module.kind, module.options)
    self:check_layer(module)
    if form and module.tied then form.options.tied = module.tied end
    for name, value in pairs(form and module.asked or {}) do form.options[name] = value end
    if form then return form end
    self:problem(why, self.called_at[module.name])
    return {tag = "layer", kind = "Identity", options = {}}
  end
  if module.list then
    if module.class == DICT then return self:dict(module) end
    if not is_digits(module.children) then self:problem(("the names of %s"):format(module.name), module.class) end
    return sequential(module)
  end
  return is_chain(module) and sequential(module) or self:graph(module)
end

-- The form without the names of variables, which are the caller's
local function unnamed(form)
  if type(form) ~= "table" then return form end
  local out = {}
  for key, one in pairs(form) do out[key] = key == "binds" and {} or unnamed(one) end
  return out
end

-- The script has one forward function for all calls of a module. Raises a problem if another call is none of it: of a flag, of a counter,
-- or of sizes.
function Model:check_again(module)
  local first = {inputs = module.inputs, calls = module.calls, returns = module.returns, shapes = module.shapes}
  local notes = #self.notes
  for _, other in ipairs(module.again or {}) do
    for name in pairs(first) do module[name] = other[name] end
    module.wide, module.heads, module.constants, module.own_masks = {}, {}, {}, {}
    local form, place = self:form_of(module), other.calls[1] or first.calls[1]
    if forms.identity(unnamed(form)) ~= forms.identity(unnamed(self.raw[module.name])) then
      self:problem(("%s, which computes something else when it is called again"):format(module.class), place and place.where)
    end
  end
  for name, value in pairs(first) do module[name] = value end
  for i = #self.notes, notes + 1, -1 do self.notes[i] = nil end
end

-- ---- parameters of two modules

-- A weight has two names: notes the modules that have it, self.sharing[first name] = {module, ...}
function Model:note_sharing(module, full, first)
  local group = self.sharing[first] or {full_of = {}}
  if not self.sharing[first] then
    self.sharing[first], self.sharing[#self.sharing + 1] = group, group
    group.name, group[1] = first, self.by_name[owner_of(first)]
  end
  group[#group + 1] = module
  group.full_of[module] = full
end

-- Numbers of modules in the order in which they are called first, each after those that call it
local function order_of_calls(self)
  local rank, count = {}, 0
  local function visit(module)
    if not module or rank[module] then return end
    rank[module], count = count, count + 1
    for _, call in ipairs(module.calls or {}) do
      if call.call then visit(self.by_name[call.call]) end
    end
  end
  visit(self.by_name[""])
  return rank
end

-- The innermost module that has all of them in it, is no list, and is no layer
local function holder_of(self, list)
  local name = list[1].name
  repeat
    name = owner_of(name)
    local all = not self.by_name[name].list
    for _, one in ipairs(list) do all = all and (name == "" or one.name:sub(1, #name + 1) == name .. ".") end
  until all
  return self.by_name[name]
end

-- Linear layers take their weight from the layer that is called first, which is a variable of the function that makes both.
function Model:tie()
  local rank = order_of_calls(self)
  for _, group in ipairs(self.sharing) do
    local good, first = true, nil
    for _, one in ipairs(group) do
      good = good and one.options ~= nil and rank[one] ~= nil and one.parameters[1][1] == "weight" and one.parameters[1][3] == group.name
      if good and (not first or rank[one] < rank[first]) then first = one end
    end
    for _, one in ipairs(group) do good = good and (one == first and (one.kind == "Embedding" or one.kind == "Linear") or one.kind == "Linear") end
    for i = 2, good and 0 or #group do
      local one = group[i]
      self:problem(("%s is %s, a parameter of two modules (expected an nn.Linear with the weight of the nn.Embedding or nn.Linear that is called before it)")
        :format(group.full_of[one], group.name), self.called_at[one.name])
    end
    if good then
      local word, count = first.name:match "[^.]+$", 1
      local base = word:match "^[%a_]" and word or "layer"
      word = base
      while self.variables[word] do word, count = base .. count + 1, count + 1 end
      self.variables[word] = true
      first.shared = {tag = "shared", name = word, owner = holder_of(self, group).name}
      for _, one in ipairs(group) do if one ~= first then one.tied = first.shared end end
    end
  end
end

-- Sets module.results[i] of children: is their i-th result read by the module that calls them?
function Model:note_results(module)
  local read = {}
  for _, call in ipairs(module.calls or {}) do
    for _, one in ipairs(given_to(call)) do if one.value then read[one.value] = true end end
  end
  for _, one in ipairs(module.returns or {}) do if one.value then read[one.value] = true end end
  for _, call in ipairs(module.calls or {}) do
    for i, n in ipairs(call.call and call.out or {}) do
      if read[n] then self.by_name[call.call].results[i] = true end
    end
  end
end

-- Notes shapes of the module's own parameters, their numbers in module.weights of all modules that it is in, and which are another one's.
function Model:note_parameters(module)
  for _, one in ipairs(module.parameters) do
    local full, count, name = full_name(module, one[1]), 1, module.name
    self.shape_of_parameter[full] = one[2]
    for _, size in ipairs(one[2]) do count = count * size end
    while true do
      self.by_name[name].weights = self.by_name[name].weights + count
      if name == "" then break end
      name = owner_of(name)
    end
    if one[3] ~= full then self:note_sharing(module, full, one[3]) end
  end
end

-- Raises a problem of each child that has another name, too.
function Model:check_children(module)
  for _, one in ipairs(module.children or {}) do
    local full = full_name(module, one[1])
    if full ~= one[2] then
      self:problem(("%s is %s, a module that stands in two places,"):format(full, one[2]), module.class)
    end
  end
end

-- description: see exporter.py. Returns {modules, by_name, raw = {[name] = form}, problems, notes, differs}; differs: texts of what
-- PyTorch does and the script does not say.
function model.read(description)
  local self = setmetatable({modules = description.modules, by_name = {}, problems = {}, notes = {}, differs = {}, told = {}, raw = {},
    called_at = {}, shape_of_parameter = {}, is_frozen = {}, constants = description.constants or {},
    constant_of_buffer = {}, sharing = {}, variables = {}}, Model)
  local classes = spelling.classes()
  for _, module in ipairs(self.modules) do
    self.by_name[module.name] = module
    module.kind, module.bare = classes[module.class], module.list
    module.results, module.weights, module.wide, module.heads, module.constants, module.own_masks = {}, 0, {}, {}, {}, {}
    for _, one in ipairs(module.buffers) do self.constant_of_buffer[one[3]] = one[4] end
    for _, call in ipairs(module.calls or {}) do
      if call.call then self.called_at[call.call] = self.called_at[call.call] or call.where end
    end
  end
  for _, module in ipairs(self.modules) do
    self:note_results(module)
    self:note_parameters(module)
    self:check_children(module)
  end
  for _, name in ipairs(description.frozen or {}) do self.is_frozen[name] = true end
  self:tie()
  self:find_whole()
  for _, module in ipairs(self.modules) do
    if module.list or not module.unused then
      self.raw[module.name] = self:form_of(module)
      self:check_again(module)
    end
  end
  for _, name in ipairs(description.kept or {}) do
    self.differs[#self.differs + 1] = ("PyTorch keeps a value of forward in %s until the next step, this script does not"):format(name)
  end
  for _, one in ipairs(description.evaluation or {}) do
    self.differs[#self.differs + 1] = ("in evaluation PyTorch computes something else than this script: %s%s"):format(
      one[2] ~= "" and one[2] .. ": " or "", one[1])
  end
  return self
end

return model
