-- The cards that PyTorch's step is predicted for. "pytorch:NAME" is a device that is described and never opened: a cell
-- on it has framework = "pytorch", and a cell with framework = "pytorch" is on such a device.
local calibration = require "memtide.net.calibration"
local core = require "memtide.core"
local util = require "memtide.base.util"

local cards = {}

local PREFIX, DEFAULT = "pytorch:", "a100-80gb" -- the card where a script says device = "cpu", or nothing

cards.VERSION = "2.15" -- of PyTorch, which is predicted

local RESERVED_ERROR = 0.014 -- how far max_memory_reserved may be off: docs/pytorch.md

local by_name, by_title, names = {}, {}, {}
local list, least, most = core.cards() -- least, most: bytes of a context that is not known
for i, card in ipairs(list) do by_name[card.name], by_title[card.title], names[i] = card, card, card.name end
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

-- What the card of that title does per second at most, {bytes, fp32, tf32, fp16, bf16}; nil: there is no such card.
function cards.peaks(title)
  local card = by_title[title]
  return card and card.peaks
end

-- Bytes of the context of a process on the device, as this machine was calibrated or as the table has it, whether it was
-- calibrated, and the source; nil: not known.
function cards.context(device)
  local name = cards.name(device)
  if not name then return nil end
  local own = calibration.find(name)
  if own then return own.bytes, true, ("calibrated with PyTorch %s on %s"):format(own.version, own.date) end
  local card = by_name[name]
  if card.context then return card.context, false, card.source end
  return nil
end

-- The least and the most of that context. The table's figure comes from another machine, so only what was measured on
-- this one is exact.
local function context_range(device)
  local bytes, own = cards.context(device)
  if own then return bytes, bytes end
  return math.min(least, bytes or least), math.max(most, bytes or most)
end

-- Between which bytes of the device a process will have of which that is predicted.
function cards.range(device, found)
  local low, high = context_range(device)
  local reserved = found.max_memory_reserved
  return math.floor((found.reserved_least or reserved) * (1 - RESERVED_ERROR)) + low,
    math.ceil((found.reserved_most or reserved) * (1 + RESERVED_ERROR)) + high
end

-- Is a context of so many bytes beyond what is known of others? nil: no; else {word, bytes}.
function cards.unlikely(bytes)
  if bytes < least then return {word = "less", bytes = least} end
  return bytes > most and {word = "more", bytes = most} or nil
end

-- How much may be reserved on the device if it has `memory` bytes: so much fits for sure, and more than the second does
-- not fit. At least 1, since a limit of 0 is none.
function cards.limits(device, memory)
  local low, high = context_range(device)
  return math.max(math.floor((memory - high) / (1 + RESERVED_ERROR)), 1),
    math.max(math.floor((memory - low) / (1 - RESERVED_ERROR)), 1)
end

-- "pytorch:a100-40gb,h100" -> {"pytorch:a100-40gb", "pytorch:h100"}, whose second may be "pytorch:h100" there, too; "pytorch:all":
-- of all cards. nil: it is another device. Raises if there is no such card.
function cards.devices(text)
  if text:sub(1, #PREFIX) ~= PREFIX then return nil end
  local found = {}
  if text == PREFIX .. "all" then
    for i, name in ipairs(names) do found[i] = PREFIX .. name end
    return found
  end
  for word in (text .. ","):gmatch "([^,]*)," do
    found[#found + 1] = word:sub(1, #PREFIX) == PREFIX and word or PREFIX .. word
    cards.name(found[#found])
  end
  return found
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
