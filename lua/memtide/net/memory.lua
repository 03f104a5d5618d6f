-- Memory over all open trainers, named as in torch.cuda.
local memory = {}

local open = setmetatable({}, {__mode = "k"})
local most = {used = 0, held = 0} -- at one instant, since the start or the last reset

-- Sums over all open trainers, `except` left out.
local function now(except)
  local used, held = 0, 0
  for trainer in pairs(open) do
    if trainer ~= except then
      local m = trainer.runtime:memory()
      used, held = used + m.used, held + m.held
    end
  end
  return used, held
end

-- The later of two equal peaks stands, as in the core's ledger.
local function larger(a, b)
  if not a or b.bytes > a.bytes or b.bytes == a.bytes and b.used >= a.used then return b end
  return a
end

-- A trainer's call begins: its runtime's peak will be that of this call alone.
function memory.before(trainer) trainer.runtime:reset_peak() end

-- It has ended: only one trainer works at a time, so the others held then what they hold now.
function memory.after(trainer)
  local peak = trainer.runtime:memory().peak
  local used, held = now(trainer)
  trainer.peak = larger(trainer.peak, peak)
  most.used, most.held = math.max(most.used, used + peak.used), math.max(most.held, held + peak.bytes)
end

-- What the runtime tells, with the peak over all calls.
function memory.of(trainer)
  local found = trainer.runtime:memory()
  found.peak = larger(trainer.peak, found.peak)
  return found
end

-- A trainer stands in the list until it is closed or nobody holds it.
function memory.watch(trainer)
  open[trainer] = true
  memory.after(trainer)
end
function memory.forget(trainer) open[trainer] = nil end

-- Bytes of tensors now, and of what is held for them.
function memory.allocated() return (now()) end
function memory.reserved() return (select(2, now())) end

-- The most of each so far, closed trainers included; of a step, the tensors at the instant at which most was held.
function memory.max_allocated() return most.used end
function memory.max_reserved() return most.held end

function memory.reset_peak()
  for trainer in pairs(open) do
    trainer.runtime:reset_peak()
    trainer.peak = nil
  end
  most.used, most.held = now()
end

-- Gives cached blocks back to the device; returns how many bytes that were.
function memory.empty_cache()
  local bytes = 0
  for trainer in pairs(open) do bytes = bytes + trainer.runtime:empty_cache() end
  return bytes
end

return memory
