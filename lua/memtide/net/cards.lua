-- The cards that PyTorch's step is predicted for. "pytorch:NAME" is a device that is described and never opened: a cell on
-- it has framework = "pytorch", and a cell with framework = "pytorch" is on such a device.
local core = require "memtide.core"
local util = require "memtide.base.util"

local cards = {}

local PREFIX, DEFAULT = "pytorch:", "a100-80gb" -- the card where a script says device = "cpu", or nothing

local by_name, names = {}, {}
for i, card in ipairs(core.cards()) do by_name[card.name], names[i] = card, card.name end
cards.names = names

-- The name of the card behind the device "pytorch:NAME"; nil: it is another device.
function cards.name(device)
  if device:sub(1, #PREFIX) ~= PREFIX then return nil end
  local name = device:sub(#PREFIX + 1)
  if not by_name[name] then
    local nearest = util.nearest(name, names)
    error(util.failure(('there is no card "%s"%s; known: %s'):format(name,
      nearest and ('; did you mean "%s"?'):format(nearest) or "", table.concat(names, ", ")), "device"), 0)
  end
  return name
end

-- What stands for the device: it can say what it is, and no more.
function cards.device(device)
  local name = cards.name(device)
  local card = name and by_name[name]
  return card and {
    info = function() return {name = card.title, memory_total = card.memory, emulated = {}} end,
    trim = function() end,
  }
end

-- Makes `framework` and `device` of a cell's values say the same. given: does the script say `framework`?
function cards.settle(values, given)
  if cards.name(values.device) then
    if given and values.framework ~= "pytorch" then
      util.fail('framework = "%s" does not run on %s, which stands for PyTorch on a card', values.framework, values.device)
    end
    values.framework = "pytorch"
  elseif values.framework == "pytorch" then
    values.device = PREFIX .. (values.device == "cpu" and DEFAULT or values.device:gsub("^cuda:", ""))
    cards.name(values.device)
  end
end

return cards
