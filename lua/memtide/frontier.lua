-- Where memory ends along an axis on which cells only grow: behind a cell that ran out of memory, the larger ones of
-- the same settings need not be tried.
local frontier = {}
local Frontier = {}
Frontier.__index = Frontier

-- names: the axes on which cells only grow
function frontier.new(names) return setmetatable({names = names, least = {}}, Frontier) end

-- All the cell's settings but that one. Cells share what is neither word nor number.
local function others(values, name)
  local words = {}
  for key, value in pairs(values) do
    local shared = type(value) == "table" or type(value) == "function" or type(value) == "userdata"
    if key ~= name then words[#words + 1] = key .. "=" .. (shared and ("%p"):format(value) or tostring(value)) end
  end
  table.sort(words)
  return name .. ":" .. table.concat(words, "\n")
end

-- The cell ended with this status.
function Frontier:note(values, status, name)
  if status ~= "oom" then return end
  for _, axis in ipairs(self.names) do
    local value = values[axis]
    if type(value) == "number" then
      local key = others(values, axis)
      local old = self.least[key]
      if not old or value < old.value then self.least[key] = {value = value, name = name} end
    end
  end
end

-- Why the cell cannot fit, as far as smaller ones have shown; nil: none has.
function Frontier:implied(values)
  if not next(self.least) then return nil end
  for _, axis in ipairs(self.names) do
    local value = values[axis]
    local found = type(value) == "number" and self.least[others(values, axis)]
    if found and value > found.value then
      return ("implied: a smaller cell ran out of memory: %s"):format(found.name)
    end
  end
end

return frontier
