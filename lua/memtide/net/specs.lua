-- Constructors from option lines (core/network/options.h): "in_features:int out_features:int bias:bool=true".
local core = require "memtide.core"
local util = require "memtide.base.util"

local specs = {}
specs.of = {} -- {[kind] = spec} of every constructor

local function option_names(spec)
  local names = {}
  for name in spec:gmatch("(%S+):%S+") do names[#names + 1] = name:match("^[^:]+") end
  return names
end

-- {name = true} of a spec's options
function specs.names(spec)
  local set = {}
  for _, name in ipairs(option_names(spec)) do set[name] = true end
  return set
end

-- The options as text; raises if one is wrong.
function specs.check(kind, spec, options)
  local text, message = core.check_options(spec, options)
  return text or util.fail("%s: %s", kind, message)
end

-- Is it a table of named options, {name = value, ...}, which may be empty? {3, 5} is a pair.
local function is_named(value)
  return type(value) == "table" and getmetatable(value) == nil and #value == 0
end

-- Positional arguments in PyTorch's order, then at most one table of named ones -> {name = value}. The first `places`
-- names can be positional.
local function collect(kind, names, places, count, ...)
  local options, arguments = {}, {...}
  local named = count > 0 and is_named(arguments[count]) and arguments[count]
  if named then count = count - 1 end
  if count > places then
    util.fail("%s takes at most %d arguments (%s)%s, found %d", kind, places, table.concat(names, ", ", 1, places),
      places < #names and ", and by name " .. table.concat(names, ", ", places + 1) or "", count)
  end
  for i = 1, count do options[names[i]] = arguments[i] end
  for name, value in pairs(named or {}) do
    if options[name] ~= nil then util.fail('%s: option "%s" is given twice', kind, tostring(name)) end
    options[name] = value
  end
  return options
end

-- Returns a function that makes {kind, options, text, where} with that metatable, and checks the options.
-- check(object), if given, raises if options do not go together.
function specs.constructor(kind, spec, metatable, check)
  local names, places = option_names(spec), #option_names(spec:match "^[^*]*")
  specs.of[kind] = spec
  return function(...)
    local options = collect(kind, names, places, select("#", ...), ...)
    local text = specs.check(kind, spec, options)
    local object = {kind = kind, options = options, text = text, where = core.where():gsub(": $", "")}
    if check then check(object) end
    return setmetatable(object, metatable)
  end
end

-- Conv2d(in_channels=3, out_channels=64)
function specs.show(object)
  return ("%s(%s)"):format(object.kind, (object.text:gsub(" ", ", ")))
end

return specs
