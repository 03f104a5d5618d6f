-- Options that a script declares: {{"width", 64, "channels of the first layer"}, ...}. Each is a setting of every cell
-- that the command line can change; its values have the type of the default.
local axes = require "memtide.sweep.axes"
local literal = require "memtide.base.literal"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"

local script_options = {}

-- By the default's type: {name of a value in the help, expected, function that returns the value for the script or nil}
local TYPES = {
  integer = {"N", "a whole number", function(v) return math.type(v) == "integer" and v or nil end},
  float = {"X", "a number", function(v) return type(v) == "number" and v + 0.0 or nil end},
  boolean = {"", "true or false", function(v) if type(v) == "boolean" then return v end end},
  string = {"TEXT", "a word", function(v) return type(v) == "string" and v ~= "" and v or nil end},
}

local function check_one(where, place, given, is_taken)
  local expected = '{"name", default, "what it is"}'
  axes.check_list(where, place, given, expected)
  local name, default, text = given[1], given[2], given[3]
  local kind = TYPES[math.type(default) or type(default)]
  if type(name) ~= "string" or not kind or type(text) ~= "string" or #given ~= 3 then
    util.fail_at(where, "%s: expected %s, found %s", place, expected, literal.of(given))
  end
  if not name:find("^%a[%w_]*$") then
    util.fail_at(where, '%s: expected a name of letters, digits and _, found "%s"', place, name)
  end
  if is_taken(name) then util.fail_at(where, '%s: "%s" has a meaning of its own already', place, name) end
  return {name = name, default = default, text = text, argument = kind[1],
    check = function(value)
      local checked = kind[3](value)
      if checked == nil then return nil, kind[2] end
      return checked
    end}
end

-- Checks the list; returns it with each option also by its name. is_taken(name): is it a key of experiments?
function script_options.check(where, list, is_taken)
  local out = {}
  for i, given in ipairs(axes.check_list(where, "options", list or {}, 'a list {{"name", default, "text"}, ...}')) do
    local option = check_one(where, ("options[%d]"):format(i), given, is_taken)
    if out[option.name] then util.fail_at(where, 'options[%d]: "%s" is there already', i, option.name) end
    out[i], out[option.name] = option, option
  end
  return out
end

-- "learning-rate" or "learning_rate" -> the option
function script_options.find(list, name) return list[(name:gsub("-", "_"))] end

local function refuse(format, ...) error(util.failure(format:format(...), "option"), 0) end

-- {name, values} of an option on the command line; several values become an axis. given: {word, name, value}; without a
-- value a flag becomes true. Raises if the script has no such option, or the value is wrong.
function script_options.take(list, option, given)
  if not option then
    local names = {}
    for i, known in ipairs(list) do names[i] = known.name end
    refuse("unknown option %s%s; the script's are --%s", given.word, util.meant(given.name, names),
      table.concat(names, ", --"))
  end
  local text = given.value or type(option.default) == "boolean" and "true"
  if not text then refuse("--%s: %s is missing", option.name, option.argument) end
  return {name = option.name, values = script_options.values(option, text)}
end

function script_options.values(option, text)
  local values = type(option.default) == "string" and {text} or axes.from_text(option.name, text)
  for i, value in ipairs(values) do
    local checked, expected = option.check(value)
    if checked == nil then
      refuse('--%s: expected %s, found "%s"', option.name, expected, settings.text(value))
    end
    values[i] = checked
  end
  return values
end

-- The lines of help about the options
function script_options.help(list)
  local lines = {}
  for i, option in ipairs(list) do
    local name = ("--%s %s"):format(option.name, option.argument)
    lines[i] = ("  %-20s %s (default: %s)"):format(name, option.text, settings.text(option.default))
  end
  return lines
end

return script_options
