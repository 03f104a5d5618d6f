-- The settings that memtide knows: what their values may be, and what they are when nobody says.
local core = require "memtide.core"
local optim = require "memtide.net.optim"
local plain = require "memtide.base.literal"
local util = require "memtide.base.util"

local settings = {MOST = (1 << 31) - 1} -- the largest count
local words = core.setting_words()

-- A check returns the value as memtide uses it, or nil and what was expected.
function settings.whole(least, most)
  local expected = ("a whole number from %d to %d"):format(least, most)
  return function(value)
    if math.type(value) == "integer" and value >= least and value <= most then return value end
    return nil, expected
  end
end
local count = settings.whole(1, settings.MOST)

local function one_of(list)
  local expected = 'one of "' .. table.concat(list, '", "') .. '"'
  return function(value)
    for _, word in ipairs(list) do if value == word then return value end end
    return nil, expected
  end
end

local function size(value)
  local bytes = util.bytes(value)
  if bytes then return bytes end
  return nil, 'bytes, or a size such as "512MiB"'
end

local function text(value)
  if type(value) == "string" and value ~= "" then return value end
  return nil, "a name"
end

-- One of the words, or a number of bytes, which the core calls a budget.
local function word_or_bytes(list)
  local ways = {}
  for _, word in ipairs(list) do if word ~= "budget" then ways[#ways + 1] = word end end
  local way = one_of(ways)
  return function(value)
    local known, expected = way(value)
    if known then return known end
    local bytes = util.bytes(value)
    if bytes and bytes > 0 then return bytes end
    return nil, expected .. " or a number of bytes"
  end
end

local function inplace(value)
  if type(value) == "boolean" then return value end
  if value == "marked" then return value end
  return nil, 'true, false or "marked"'
end

local function boolean(value)
  if type(value) == "boolean" then return value end
  return nil, "true or false"
end

local function optimizer(value)
  if optim.is_optimizer(value) then return value end
  return nil, "an optimizer such as optim.Adam{lr = 1e-3}"
end

-- In the order of the columns; `core`: compile takes it under this name; `own`: only the files of scripts that use it
-- have its column, among those of the script's own axes.
settings.list = {
  {name = "device", check = text, default = "cpu"},
  {name = "batch", check = count, default = 1},
  {name = "accumulate", check = count, default = 1, core = true},
  {name = "precision", check = one_of(words.precision), default = "fp32", core = true},
  {name = "checkpoint", check = word_or_bytes(words.checkpoint), default = "none", core = true},
  {name = "inplace", check = inplace, default = "marked", core = true},
  {name = "mode", check = one_of(words.mode), default = "train", core = true},
  {name = "optimizer", check = optimizer, default = optim.optim.Adam(), core = true},
  {name = "allocator", check = one_of(words.allocator), default = "planned", core = true},
  {name = "workspace_limit", check = size, default = 4 << 20, core = true},
  {name = "graph", check = boolean, default = true, core = true},
  {name = "offload", check = word_or_bytes(words.offload), default = "none", core = true, own = true},
}

settings.type_of = words.type -- what a precision computes in: {amp_bf16 = "bf16", ...}
settings.names, settings.columns, settings.known = {}, {}, {}
for i, setting in ipairs(settings.list) do
  settings.names[i] = setting.name
  if not setting.own then settings.columns[#settings.columns + 1] = setting.name end
  settings.known[setting.name] = setting
end

-- The value of a setting, or an error that says where it was given.
function settings.check(where, place, name, value)
  local checked, expected = settings.known[name].check(value)
  if checked == nil then
    util.fail_at(where, "%s: %s: expected %s, found %s", place, name, expected, plain.literal(value))
  end
  return checked
end

-- For core.compile.
function settings.for_core(values)
  local out = {}
  for _, setting in ipairs(settings.list) do
    if setting.core and values[setting.name] ~= "marked" or setting.name == "checkpoint" then
      out[setting.name] = values[setting.name]
    end
  end
  if values.schedule then out.scheduled = true end
  return out
end

-- The same for an evaluation beside the training: it keeps nothing, so there is nothing to drop or to offload.
function settings.for_evaluation(values)
  local out = settings.for_core(values)
  out.mode, out.accumulate, out.keep_output, out.checkpoint, out.offload = "eval", 1, true, "none", "none"
  return out
end

-- The value, also one of the script's own, as text for columns and cell ids.
function settings.text(value)
  if optim.is_optimizer(value) then return value.text == "" and value.kind or value.kind .. " " .. value.text end
  return plain.text(value)
end

-- A word of the command line as the value that a script would have written.
function settings.from_text(name, word)
  if word == "true" or word == "false" then return word == "true" end
  if name == "optimizer" then
    local make = rawget(optim.optim, word)
    return make and make() or word
  end
  return math.tointeger(tonumber(word)) or tonumber(word) or word
end

return settings
