-- Scripts that read an undefined global get an error with the nearest name instead of nil.
local util = require "memtide.util"

local strict = {}

local function names()
  local list = {}
  for key in pairs(_G) do if type(key) == "string" then list[#list + 1] = key end end
  for _, key in ipairs{"if", "else", "elseif", "then", "function", "return", "local"} do list[#list + 1] = key end
  table.sort(list)
  return list
end

function strict.on()
  setmetatable(_G, {
    __index = function(_, name)
      util.fail('undefined variable "%s"%s', tostring(name), util.meant(name, names()))
    end,
  })
end

return strict
