-- Where memory ends along an axis on which cells only grow: if a cell ran out of memory, larger cells with otherwise
-- the same settings need not be tried on that device.
local core = require "memtide.core"

local frontier = {}
local Frontier = {}
Frontier.__index = Frontier

-- names: the axes on which cells only grow
function frontier.new(names) return setmetatable({names = names, least = {}}, Frontier) end

-- A hash of the device and of all the cell's settings but `name`. Values that are neither words nor numbers (models)
-- are the same objects in all cells, so their addresses identify them.
function frontier.others(values, name, device)
  local words = {"on " .. tostring(device or values.device)}
  for key, value in pairs(values) do
    local shared = type(value) == "table" or type(value) == "function" or type(value) == "userdata"
    if key ~= name then words[#words + 1] = key .. "=" .. (shared and ("%p"):format(value) or tostring(value)) end
  end
  table.sort(words)
  return core.hash(name .. ":" .. table.concat(words, "\n"))
end

-- Notes that a cell with these values ended with this status on that device (nil: the device of its settings).
function Frontier:note(values, status, name, device)
  if status ~= "oom" then return end
  for _, axis in ipairs(self.names) do
    local value = values[axis]
    if type(value) == "number" then
      local key = frontier.others(values, axis, device)
      local old = self.least[key]
      if not old or value < old.value then self.least[key] = {value = value, name = name} end
    end
  end
end

-- Why the cell cannot fit, judged by smaller cells; nil: no smaller cell has shown it.
function Frontier:implied(values, device)
  if not next(self.least) then return nil end
  for _, axis in ipairs(self.names) do
    local value = values[axis]
    local found = type(value) == "number" and self.least[frontier.others(values, axis, device)]
    if found and value > found.value then
      return ("implied: a smaller cell ran out of memory: %s"):format(found.name)
    end
  end
end

return frontier
