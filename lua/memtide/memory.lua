-- Memory over all open trainers, named as in torch.cuda.
local memory = {}

local open = setmetatable({}, {__mode = "k"})

-- A trainer stands in the list until it is closed or nobody holds it.
function memory.watch(trainer) open[trainer] = true end
function memory.forget(trainer) open[trainer] = nil end

local function sum(value)
  local total = 0
  for trainer in pairs(open) do total = total + value(trainer.runtime:memory()) end
  return total
end

-- Bytes of tensors now, and of what is held for them.
function memory.allocated() return sum(function(m) return m.used end) end
function memory.reserved() return sum(function(m) return m.held end) end

-- The same at the peak: the instant at which most bytes were held and, of those, most were used.
function memory.max_allocated() return sum(function(m) return m.peak.used end) end
function memory.max_reserved() return sum(function(m) return m.peak.bytes end) end

function memory.reset_peak() for trainer in pairs(open) do trainer.runtime:reset_peak() end end

-- Gives cached blocks back to the device; returns how many bytes that were.
function memory.empty_cache()
  local bytes = 0
  for trainer in pairs(open) do bytes = bytes + trainer.runtime:empty_cache() end
  return bytes
end

return memory
