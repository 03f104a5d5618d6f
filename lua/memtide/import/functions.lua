-- Which modules become functions of the script: those of one class whose forms differ in constants or in whole layers
-- alone are cases of one function. Its parameters have the names of the constructor's arguments that have their values.
local forms = require "memtide.import.forms"
local forward = require "memtide.import.forward"

local Functions = {}
Functions.__index = Functions

local PLAIN = {["torch.nn.Sequential"] = true, ["torch.nn.ModuleList"] = true, ["torch.nn.ModuleDict"] = true}

local function replace(form, change)
  local new = change(form)
  if new ~= nil then return new end
  if type(form) ~= "table" then return form end
  local out = {}
  for _, key in ipairs(forms.keys_of(form)) do out[key] = replace(form[key], change) end -- in order: functions are defined meanwhile
  return out
end

-- ---- a child that some modules of a class have and others lack, as downsample: theirs is nn.Identity()

local function index_of(list, wanted)
  for i, one in ipairs(list) do if one == wanted then return i end end
end

-- b's references as they are in a, where those two are equal but for `from`, which may be `into` in a
local function matched(a, b, from, into)
  if type(b) ~= "table" or type(a) ~= "table" then return b end
  if b.tag == "value" and b.n == from and a.n == into then return a end
  local out = {}
  for key, one in pairs(b) do out[key] = matched(a[key], one, from, into) end
  return out
end

-- `b` with nn.Identity() for the one child that `a` has besides; nil: it lacks none, or cannot have it
local function with_identity(a, b)
  if a.tag ~= "graph" or b.tag ~= "graph" or #a.keys ~= #b.keys + 1 or #a.steps ~= #b.steps + 1 then return nil end
  local missing
  for i, key in ipairs(a.keys) do missing = missing or not index_of(b.keys, key) and i or nil end
  local name = missing and "self" .. forms.index(a.keys[missing])
  local at
  for i, step in ipairs(a.steps) do
    local form = step[1]
    if form.tag == "text" and form[1] == name and type(form[3]) == "table" and form[3].tag == "value" then at = i end
  end
  if not at then return nil end
  local into, from = a.steps[at].out, a.steps[at][1][3].n
  local function later(n) return n >= into and n + 1 or n end
  local out = {}
  for key, value in pairs(b) do out[key] = value end
  for i = #b.keys, missing, -1 do out[i + 1] = b[i] end
  out[missing] = {tag = "layer", kind = "Identity", options = {}}
  out.keys, out.order, out.steps, out.returns = a.keys, a.order, {}, {}
  for i, step in ipairs(b.steps) do
    local place = i < at and i or i + 1
    local moved = replace(step[1], function(one)
      return type(one) == "table" and one.tag == "value" and {tag = "value", n = later(one.n)} or nil
    end)
    local like = a.steps[place]
    out.steps[place] = {out = later(step.out), matched(like[1], moved, from, into), binds = like.binds}
  end
  out.steps[at] = a.steps[at]
  for i, n in ipairs(b.returns) do out.returns[i] = later(n) end
  return forms.skeleton(out) == forms.skeleton(a) and out or nil
end

-- ---- parameters

-- Names that parameters cannot have
local function taken_by(form, taken)
  replace(form, function(one)
    if type(one) == "table" and one.binds then for _, pair in ipairs(one.binds) do taken[pair[1]] = true end end
  end)
  return taken
end

local function vector(list)
  local parts = {}
  for i, one in ipairs(list) do parts[i] = forms.identity(one) end
  return table.concat(parts, ";")
end

-- Integers k and values such that b = k a for all; nil: none
local function factor(a, b)
  local k
  for i, one in ipairs(a) do
    if math.type(one) ~= "integer" or math.type(b[i]) ~= "integer" or one == 0 or b[i] % one ~= 0 then return nil end
    if k and b[i] // one ~= k then return nil end
    k = b[i] // one
  end
  return k
end

-- {[vector of values] = name of the constructor's argument}
local function arguments_of(modules)
  local names = {}
  for i, one in ipairs(modules[1].args or {}) do
    local values = {}
    for k, module in ipairs(modules) do
      local arg = (module.args or {})[i]
      values[k] = arg and arg[1] == one[1] and arg[2]
      if values[k] == nil then values[k] = false end
    end
    names[vector(values)] = names[vector(values)] or {one[1], i}
  end
  return names
end

-- Unifies the forms -> the form, the parameters {{name, values, rank}, ...}; nil: they do not fit
local function unify(list, modules)
  local known, found = arguments_of(modules), {}
  local taken = taken_by(list[1], {nn = true, mt = true, F = true, optim = true})
  local function parameter(values, hint)
    local key = vector(values)
    local shared = not forms.is_layer(values[1]) -- a layer in two places would have its parameters once
    if found[key] and shared then return found[key].name end
    local given = known[key]
    local lent = type(values[1]) == "table" and values[1].tag == "lent" and values[1].name
    local constant = type(values[1]) == "table" and values[1].tag == "constant"
    local name = lent or given and given[1] or hint[2] or hint[1] or constant and "numbers" or "layer"
    if not name:match "^[%a_][%w_]*$" then name = "layer" end
    if taken[name] and hint[1] and hint[2] then name = ("%s_%s"):format(hint[1]:gsub("^%d", "n%0"), hint[2]) end
    local base, count = forward.name(name), 2
    name = base
    while taken[name] do name, count = base .. count, count + 1 end
    taken[name] = true
    for i, one in ipairs(lent and values or {}) do values[i] = {tag = "shared", name = one.name, owner = one.owner} end
    found[key] = {name = name, values = values, rank = given and given[2] or 1000 + #found}
    found[#found + 1] = found[key]
    return name
  end
  local form = forms.unify(list, parameter, {})
  if not form then return nil end
  table.sort(found, function(a, b) return a.rank < b.rank end)
  -- what is a multiple of another one needs no parameter
  local instead, kept = {}, {}
  for _, one in ipairs(found) do
    for _, base in ipairs(one.rank >= 1000 and kept or {}) do
      local more, less = factor(base.values, one.values), factor(one.values, base.values)
      local simple = {tag = "parameter", name = base.name}
      if more then instead[one.name] = {tag = "text", more, " * ", simple}
      elseif less then instead[one.name] = {tag = "text", simple, " // ", less} end
      if instead[one.name] then break end
    end
    if not instead[one.name] then kept[#kept + 1] = one end
  end
  form = replace(form, function(one)
    return type(one) == "table" and one.tag == "parameter" and instead[one.name] or nil
  end)
  return form, kept
end

-- ---- classes

function Functions:children(form)
  return replace(form, function(one)
    if type(one) == "table" and one.tag == "module" then return self:final(one.name) end
  end)
end

function Functions:name_for(class)
  local base = class:match "([^.]+)$":gsub("^_+", "")
  if not base:match "^[%a_][%w_]*$" then base = "Block" end
  local name, count = base, 2
  while self.names[name] do name, count = base .. count, count + 1 end
  self.names[name] = true
  return name
end

-- Shared layers, which are variables of the function that makes the module, but parameters of another one: sets `locals` to their names.
local function with_lent(form, module, locals)
  return replace(form, function(one)
    if type(one) ~= "table" or one.tag ~= "shared" then return nil end
    if one.owner ~= module.name then return {tag = "lent", name = one.name, owner = one.owner} end
    if not locals[one.name] then locals[one.name], locals[#locals + 1] = true, one.name end
    return nil
  end)
end

-- Makes one function of modules with these forms.
function Functions:define(modules, list)
  local locals = {}
  for i, one in ipairs(list) do list[i] = with_lent(one, modules[i], locals) end
  local form, parameters = unify(list, modules)
  if not form then
    for i, module in ipairs(modules) do self:define({module}, {list[i]}) end
    return
  end
  if #modules == 1 and form.tag == "sequential" and modules[1].name ~= "" then
    self.done[modules[1].name] = form
    return
  end
  local one = {name = self:name_for(modules[1].class), form = form, parameters = {}, locals = {}}
  for i, name in ipairs(locals) do one.locals[i] = {name = name, form = self.shared[name]} end
  for i, parameter in ipairs(parameters) do one.parameters[i] = parameter.name end
  self.list[#self.list + 1] = one
  for k, module in ipairs(modules) do
    local call = {tag = "apply", name = one.name, names = one.parameters}
    for i, parameter in ipairs(parameters) do call[i] = parameter.values[k] end
    self.done[module.name] = call
  end
end

function Functions:resolve(class)
  self.started[class] = true
  local groups = {} -- {skeleton, modules, forms}
  for _, module in ipairs(self.model.modules) do
    local raw = self.model.raw[module.name]
    if raw and module.class == class and not module.options then
      local form = self:children(raw)
      local skeleton, group = forms.skeleton(form), nil
      for _, one in ipairs(groups) do
        if one.skeleton == skeleton then group = one end
      end
      if not group then
        group = {skeleton = skeleton, modules = {}, forms = {}}
        groups[#groups + 1] = group
      end
      table.insert(group.modules, module)
      table.insert(group.forms, form)
    end
  end
  for _, rich in ipairs(groups) do -- those that lack a child join those that have it
    for _, poor in ipairs(groups) do
      local some = rich ~= poor and #poor.modules > 0 and #rich.modules > 0
      local joined = some and with_identity(rich.forms[1], poor.forms[1])
      if joined then
        for i, module in ipairs(poor.modules) do
          table.insert(rich.modules, module)
          table.insert(rich.forms, with_identity(rich.forms[1], poor.forms[i]))
        end
        poor.modules, poor.forms = {}, {}
      end
    end
  end
  for _, group in ipairs(groups) do
    if #group.modules > 0 then self:define(group.modules, group.forms) end
  end
end

-- The form of a module, but for whether it is frozen
function Functions:plain(name)
  local module, raw = self.model.by_name[name], self.model.raw[name]
  if not raw then return {tag = "layer", kind = "Identity", options = {}} end
  if module.options then return raw end
  if self.done[name] then return self.done[name] end
  local own = PLAIN[module.class] and name ~= ""
  if not own and not self.started[module.class] then self:resolve(module.class) end
  if not self.done[name] then self.done[name] = self:children(raw) end
  return self.done[name]
end

-- The form of a module as it is written in its parent
function Functions:final(name)
  local module = self.model.by_name[name]
  local form = self.model.frozen_form(module, self:plain(name))
  if not module.shared then return form end
  self.shared[module.shared.name] = form
  return module.shared
end

-- model: of model.lua. Returns the functions {{name, form, parameters = {name, ...}}, ...}, each after those that it
-- calls, and the form of the whole network.
return function(model)
  local self = setmetatable({model = model, done = {}, started = {}, list = {}, shared = {},
    names = {nn = true, mt = true, F = true, optim = true, times = true}}, Functions)
  local root = self:final ""
  return self.list, root
end
