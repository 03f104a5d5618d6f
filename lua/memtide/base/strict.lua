-- A script that reads an undefined global gets an error with the nearest name, not nil.
local util = require "memtide.base.util"

local strict = {}

local function names(globals)
  local list = {}
  for key in pairs(globals) do if type(key) == "string" then list[#list + 1] = key end end
  for _, key in ipairs{"if", "else", "elseif", "then", "function", "return", "local"} do list[#list + 1] = key end
  table.sort(list)
  return list
end

-- absent: {name = text for the message, why this global does not exist}, or nil
function strict.on(globals, absent)
  setmetatable(globals, {
    __index = function(_, name)
      util.fail('undefined variable "%s"%s', tostring(name),
        absent and absent[name] or util.meant(name, names(globals)))
    end,
  })
end

return strict
