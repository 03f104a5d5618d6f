-- Values of scripts as text, the same in every run, for columns, cell ids and messages.
local core = require "memtide.core"

local literal = {}

local DEEPEST = 8 -- of nested tables; a table that contains itself ends here too

-- Is it one of memtide's own tables that have a text: a layer, a loss, an optimizer?
local function is_object(value)
  local meta = type(value) == "table" and getmetatable(value)
  return type(meta) == "table" and meta.__tostring ~= nil and tostring(meta.__name):find("^memtide%.") ~= nil
end

function literal.is_table(value) return type(value) == "table" and getmetatable(value) == nil end

local SCALAR = {boolean = true, number = true, string = true}

-- Does the value consist of strings, numbers, booleans and tables of these only? Then different values have different
-- texts.
function literal.has_text(value, depth)
  depth = depth or 1
  if SCALAR[type(value)] or is_object(value) then return true end
  if not literal.is_table(value) or depth > DEEPEST then return false end
  for key, item in pairs(value) do
    if not SCALAR[type(key)] or not literal.has_text(item, depth + 1) then return false end
  end
  return true
end

local function quoted(text)
  return '"' .. text:gsub('[%c"\\]', function(c) return ("\\%03d"):format(c:byte()) end) .. '"'
end

-- A float without a fraction keeps its ".0", because as a setting 1.0 is not 1.
local function float(value)
  local text = core.number(value)
  return text:find("^-?%d+$") and text .. ".0" or text
end

local shown

-- {8, 2, stride = 3}: the list, then the names in order
local function table_literal(t, depth)
  if depth > DEEPEST then return "{...}" end
  local items, named = {}, {}
  while t[#items + 1] ~= nil do items[#items + 1] = shown(t[#items + 1], depth + 1) end
  for key, item in pairs(t) do
    if not (math.type(key) == "integer" and key >= 1 and key <= #items) then
      local name = type(key) == "string" and key:match("^[%a_][%w_]*$") or ("[%s]"):format(shown(key, depth + 1))
      named[#named + 1] = ("%s = %s"):format(name, shown(item, depth + 1))
    end
  end
  table.sort(named)
  return "{" .. table.concat(table.move(named, 1, #named, #items + 1, items), ", ") .. "}"
end

function shown(value, depth)
  if type(value) == "string" then return quoted(value) end
  if math.type(value) == "float" then return float(value) end
  if literal.is_table(value) then return table_literal(value, depth) end
  if is_object(value) then return (tostring(value):gsub("\n%s*", " ")) end
  return (type(value) == "function" or type(value) == "table") and "a " .. type(value) or tostring(value)
end

-- The value as a script would write it; a value without a text is named by its type: "half", {3, 8, 8, 8}, a function.
function literal.of(value) return shown(value, 1) end

-- The same without the quotes around a word.
function literal.text(value) return type(value) == "string" and value or shown(value, 1) end

-- A deep copy: plain tables are copied, anything else is shared.
function literal.copy(value)
  if not literal.is_table(value) then return value end
  local out = {}
  for key, item in pairs(value) do out[key] = literal.copy(item) end
  return out
end

return literal
