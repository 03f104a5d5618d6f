-- Where memory ends along an axis on which cells only grow: after a cell that ran out of memory, the larger ones of
-- the same settings need not be tried on that device.
local core = require "memtide.core"

local frontier = {}
local Frontier = {}
Frontier.__index = Frontier

-- names: the axes on which cells only grow
function frontier.new(names) return setmetatable({names = names, least = {}}, Frontier) end

-- All the cell's settings but that one, and where it runs, as a hash. Cells share what is neither word nor number.
function frontier.others(values, name, device)
  local words = {"on " .. tostring(device or values.device)}
  for key, value in pairs(values) do
    local shared = type(value) == "table" or type(value) == "function" or type(value) == "userdata"
    if key ~= name then words[#words + 1] = key .. "=" .. (shared and ("%p"):format(value) or tostring(value)) end
  end
  table.sort(words)
  return core.hash(name .. ":" .. table.concat(words, "\n"))
end

-- The cell ended with this status, on that device (nil: the one that its settings say).
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

-- Why the cell cannot fit, as far as smaller ones have shown; nil: none has.
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
