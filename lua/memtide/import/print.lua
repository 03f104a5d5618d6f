-- The text of forms (forms.lua).
local constants = require "memtide.import.constants"
local core = require "memtide.core"
local forms = require "memtide.import.forms"
local forward = require "memtide.import.forward"
local spelling = require "memtide.import.spelling"

local printer = {}
local WIDTH = 110

local function number(value)
  if math.type(value) == "integer" then return tostring(value) end
  return core.number(value)
end

local show

local function join(list, indent, open, close)
  local line = open .. table.concat(list, ", ") .. close
  if #line + indent <= WIDTH and not line:find "\n" then return line end
  local pad = (" "):rep(indent + 2)
  local last = close == "}" and "," or ""
  return ("%s\n%s%s%s\n%s%s"):format(open, pad, table.concat(list, ",\n" .. pad), last, (" "):rep(indent), close)
end

-- ---- layers

local function default_text(option, options)
  local word = option.default
  if word and options[word] ~= nil then return show(options[word]) end
  return word
end

local function is_default(option, options)
  local value = options[option.name]
  if value == nil then return true end
  if type(value) == "table" and value.tag == "parameter" then return false end
  local word = type(value) == "string" and value or show(value)
  local number_given = tonumber(word)
  return word == default_text(option, options) or number_given and number_given == tonumber(option.default or "x")
end

local function option_text(value, indent) return type(value) == "string" and ("%q"):format(value) or show(value, indent) end

-- The options as arguments: those that must be there by position, then the others by name; the first one by position
-- where all may be left out.
local function arguments(layer)
  local places, named, spec = {}, {}, spelling.specs[layer.kind]
  for i, option in ipairs(spec) do
    local value = layer.options[option.name]
    if value ~= nil and not is_default(option, layer.options) then
      local first = i == 1 and option.name ~= "inplace"
      if #named == 0 and #places == i - 1 and not option.by_name and (not option.default or first) then
        places[#places + 1] = option_text(value)
      else
        named[#named + 1] = ("%s = %s"):format(option.name, option_text(value))
      end
    end
  end
  if layer.options.tied then named[#named + 1] = "tied = " .. show(layer.options.tied) end
  local all = table.move(places, 1, #places, 1, {})
  if #named > 0 then all[#all + 1] = "{" .. table.concat(named, ", ") .. "}" end
  return all, #places == 0 and #named > 0
end

local function function_name(kind)
  return (kind:gsub("(%l)(%u%l)", "%1_%2"):gsub("^ReLU", "relu"):gsub("^Log_Sig", "LogSig"):lower())
end

local TAGS = {}

function TAGS.layer(form)
  local all, only_named = arguments(form)
  if only_named then return "nn." .. form.kind .. all[1] end
  return ("nn.%s(%s)"):format(form.kind, table.concat(all, ", "))
end

function TAGS.frozen(form, indent) return ("nn.Frozen(%s)"):format(show(form[1], indent)) end

TAGS["function"] = function(form, indent, value)
  local all = arguments(form[1])
  table.insert(all, 1, show(form[2], indent, value))
  return ("F.%s(%s)"):format(function_name(form[1].kind), table.concat(all, ", "))
end

function TAGS.parameter(form) return form.name end
function TAGS.constant(form) return constants.name(form.name) end

function TAGS.list(form, indent, value)
  local items = {}
  for i, one in ipairs(form) do items[i] = show(one, indent, value) end
  return "{" .. table.concat(items, ", ") .. "}"
end

-- Does the form need parentheses beside an operator, or before a colon?
local function is_sum(form)
  if type(form) == "number" then return form < 0 end
  if type(form) ~= "table" or form.tag ~= "text" then return false end
  for i, piece in ipairs(form) do
    local sign = i == 1 and (piece == "-" or piece == "0 * ")
    if sign or type(piece) == "string" and piece:find "^ [%-+*/^] $" then return true end
  end
  return false
end

function TAGS.value(form, _, value) return (value(form.n)) end

function TAGS.operand(form, indent, value)
  if type(form[1]) == "table" and form[1].tag == "value" then
    local word, inner = value(form[1].n)
    return is_sum(inner) and "(" .. word .. ")" or word
  end
  local word = show(form[1], indent, value)
  return is_sum(form[1]) and "(" .. word .. ")" or word
end

function TAGS.text(form, indent, value)
  local parts = {}
  for i, piece in ipairs(form) do
    local next_piece = form[i + 1]
    local method = i == 1 and type(next_piece) == "string" and next_piece:find "^:"
    if type(piece) == "string" then parts[i] = piece
    elseif method then parts[i] = TAGS.operand({piece}, indent, value)
    else parts[i] = show(piece, indent, value) end
  end
  return table.concat(parts)
end

-- ---- containers

-- Equal neighbours, at least three, at the list's end become times(n, function() return ... end).
local function repeated(items)
  local n = #items
  local first = n
  while first > 1 and items[first - 1] == items[n] do first = first - 1 end
  local count = n - first + 1
  if count < 3 then return items end
  local out = table.move(items, 1, first - 1, 1, {})
  local many = ("times(%d, function() return %s end)"):format(count, items[n])
  return out, many
end

function printer.uses_times(text) return text:find("times(", 1, true) ~= nil end

local function list_of_layers(items, indent, name)
  local few, many = repeated(items)
  if many and #few == 0 then return ("%s(%s)"):format(name, many) end
  if many then few[#few + 1] = "table.unpack(" .. many .. ")" end
  return join(few, indent, name .. "{", "}")
end

function TAGS.sequential(form, indent)
  local items = {}
  for i, child in ipairs(form) do
    local text = show(child, indent + 2)
    items[i] = form.names[i] and ('{"%s", %s}'):format(form.names[i], text) or text
  end
  return list_of_layers(items, indent, form.bare and "nn.ModuleList" or "nn.Sequential")
end

local function field(key) return forms.is_name(key) and key or ('["%s"]'):format(key) end

function TAGS.dict(form, indent)
  local items = {}
  for i, one in ipairs(form) do items[i] = ("%s = %s"):format(field(form.names[i]), show(one, indent + 2)) end
  return join(items, indent, ("nn.%s{"):format(form.kind), "}")
end

function TAGS.shared(form) return form.name end

function TAGS.graph(form, indent)
  local pad, items = (" "):rep(indent + 2), {}
  for i, key in ipairs(form.keys) do
    local text = show(form[i], indent + 2)
    local named = key and field(key)
    items[i] = named and ("%s = %s"):format(named, text) or text
  end
  if #form.order > 0 then
    local words = {}
    for i, key in ipairs(form.order) do words[i] = type(key) == "string" and ('"%s"'):format(key) or tostring(key) end
    items[#items + 1] = "order = " .. join(words, indent + 2, "{", "}")
  end
  local inputs, lines = forward.write(form, function(one, value) return show(one, indent + 4, value) end)
  form.takes = inputs
  for i, line in ipairs(lines) do lines[i] = pad .. "  " .. line end
  items[#items + 1] = ("forward = function(self, %s)\n%s\n%send"):format(table.concat(inputs, ", "),
    table.concat(lines, "\n"), pad)
  return ("nn.Graph{\n%s%s,\n%s}"):format(pad, table.concat(items, ",\n" .. pad), (" "):rep(indent))
end

function TAGS.apply(form, indent)
  local items = {}
  for i, one in ipairs(form) do items[i] = option_text(one, indent + 2) end
  return join(items, indent, form.name .. "(", ")")
end

-- value(n): the text of a value, and its form where it is no variable
function show(form, indent, value)
  if type(form) == "number" then return number(form) end
  if type(form) ~= "table" then return tostring(form) end
  return TAGS[form.tag](form, indent or 0, value)
end

printer.show = show

return printer
