-- Forms: expressions of a script as data, so that equal parts of a model can be found and become functions.
--
--   a number, true or false         a constant; a parameter of a function may stand in its place
--   a string                        a word: an option's value ("same"), or in a text a piece of Lua that is fixed
--   {tag = "list", form, ...}       {3, 5}
--   {tag = "constant", name}        numbers of a tensor, by their name in the description
--   {tag = "text", form, ...}       pieces of an expression: {tag = "text", "F.relu(", {tag = "value", n = 3}, ")"}
--   {tag = "value", n}              what forward has computed: see forward.lua
--   {tag = "layer", kind, options}  nn.KIND(...); options[name] = form, all of them, the default ones, too
--   {tag = "frozen", form}          nn.Frozen(...) of a layer
--   {tag = "function", layer, form} the same layer as a function: F.relu(x)
--   {tag = "operand", form}         in parentheses if it is a sum or a product
--   {tag = "sequential", names, bare, form, ...}   names[i]: false where it is the position; bare: nn.ModuleList
--   {tag = "dict", kind, names, form, ...}  nn.ParameterDict or nn.ModuleDict of layers
--   {tag = "shared", name, owner}   a layer whose parameters others have, too: a variable of the function that makes the module `owner`
--   {tag = "lent", name, owner}     that layer in another function: a parameter of that function
--   {tag = "graph", keys, order, inputs, steps, returns, form, ...}  children: see model.lua
--   {tag = "apply", name, names, form, ...}  a call of a function of the script, whose parameters have these names
--   {tag = "parameter", name}       of the function that the form is in
local forms = {}

local LAYERS = {dict = true, shared = true, layer = true, frozen = true, sequential = true, graph = true, apply = true}
-- Fields that are the same in all cases of a form
local FIXED = {tag = true, kind = true, name = true, names = true, n = true, keys = true, order = true, inputs = true,
  binds = true, out = true, bare = true, owner = true}

local KEYWORDS = {}
for word in ("and break do else elseif end false for function goto if in local nil not or repeat return then true until while"):gmatch "%a+" do
  KEYWORDS[word] = true
end

-- Is the key of a table a name in Lua?
function forms.is_name(key) return key:match "^[%a_][%w_]*$" and not KEYWORDS[key] or false end

-- ".conv1", or ["0"] where the key is no name in Lua
function forms.index(key) return forms.is_name(key) and "." .. key or ('["%s"]'):format(key) end

function forms.text(...) return {tag = "text", ...} end
function forms.is_layer(form) return type(form) == "table" and LAYERS[form.tag] or false end

-- Keys of a table: 1, 2, ..., then names
function forms.keys_of(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) ~= type(b) then return type(a) == "number" end
    return a < b
  end)
  return keys
end

-- A text that is equal for equal forms only. blank(form): true for what is left out
local function identity(form, blank)
  if blank and blank(form) then return "?" end
  if type(form) ~= "table" then return type(form):sub(1, 1) .. tostring(form) end
  local parts = {}
  for i, key in ipairs(forms.keys_of(form)) do
    parts[i] = key .. "=" .. identity(form[key], not FIXED[key] and blank or nil)
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

function forms.identity(form) return identity(form) end

-- Is there a form of that tag in it?
function forms.holds(form, tag)
  if type(form) ~= "table" then return false end
  if form.tag == tag then return true end
  for _, one in pairs(form) do if forms.holds(one, tag) then return true end end
  return false
end

local function is_constant(form)
  return type(form) == "number" or type(form) == "boolean" or type(form) == "table" and (form.tag == "list" or form.tag == "constant")
end

-- Equal for layers that may be cases of one function
function forms.skeleton(form)
  return identity(form, function(one)
    return one ~= form and (is_constant(one) or forms.is_layer(one))
  end)
end

local function all(list, holds)
  for _, one in ipairs(list) do if not holds(one) then return false end end
  return true
end

-- The form of which all of the list are cases; nil: there is none. parameter(list, hint) gives the name of the
-- function's parameter that has these values; hint: {key of the child, name of the option}.
function forms.unify(list, parameter, hint)
  local first = list[1]
  local function as_parameter() return {tag = "parameter", name = parameter(list, hint)} end
  local function equal(of) return all(list, function(one) return of(one) == of(first) end) end
  if type(first) == "table" and first.tag == "lent" then return as_parameter() end
  if equal(identity) and not forms.holds(first, "lent") then return first end
  local constants = all(list, is_constant) or hint[2] and all(list, function(one) return not forms.is_layer(one) end)
  if constants then return as_parameter() end
  local function fails() return all(list, forms.is_layer) and as_parameter() or nil end
  if not all(list, function(one) return type(one) == "table" and one.tag == first.tag end) or
    not equal(function(one) return table.concat(forms.keys_of(one), ",") end) then return fails() end
  local joined = {}
  for _, key in ipairs(forms.keys_of(first)) do
    local values, inner = {}, hint
    for i, one in ipairs(list) do values[i] = one[key] end
    if first.tag == "apply" and math.type(key) == "integer" then inner = {hint[1], first.names[key]}
    elseif forms.is_layer(first) and math.type(key) == "integer" then
      inner = {(first.keys or first.names or {})[key] or hint[1]}
    elseif first.tag == nil and type(key) == "string" then inner = {hint[1], key} end
    if not FIXED[key] then joined[key] = forms.unify(values, parameter, inner)
    elseif all(values, function(one) return identity(one) == identity(values[1]) end) then joined[key] = values[1] end
    if joined[key] == nil then return fails() end
  end
  return joined
end

return forms
