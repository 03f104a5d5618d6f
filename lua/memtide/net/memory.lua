-- mt.memory: bytes of all open trainers together, with the names of torch.cuda.
local memory = {}

local open = setmetatable({}, {__mode = "k"}) -- {[trainer] = true}
local most = {used = 0, held = 0} -- the most at one instant since the start or the last reset

-- Sums over all open trainers but `except`.
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

-- The larger of two peaks; of equal ones the later, as in the core's ledger.
local function larger(a, b)
  if not a or b.bytes > a.bytes or b.bytes == a.bytes and b.used >= a.used then return b end
  return a
end

-- To be called before each call of a trainer's runtime: the runtime's peak is then the peak of that call.
function memory.before(trainer) trainer.runtime:reset_peak() end

-- To be called after it. Only one trainer works at a time, so during the call the others held what they hold now.
function memory.after(trainer)
  local peak = trainer.runtime:memory().peak
  local used, held = now(trainer)
  trainer.peak = larger(trainer.peak, peak)
  most.used, most.held = math.max(most.used, used + peak.used), math.max(most.held, held + peak.bytes)
end

-- The runtime's memory(), with the peak over all calls.
function memory.of(trainer)
  local found = trainer.runtime:memory()
  found.peak = larger(trainer.peak, found.peak)
  return found
end

-- A trainer is counted until it is closed or collected.
function memory.watch(trainer)
  open[trainer] = true
  memory.after(trainer)
end
function memory.forget(trainer) open[trainer] = nil end

-- Bytes of tensors now, and bytes that the allocators hold for them.
function memory.allocated() return (now()) end
function memory.reserved() return (select(2, now())) end

-- The most of each so far, including closed trainers. For a step, the bytes of tensors are those at the moment when the
-- most was held.
function memory.max_allocated() return most.used end
function memory.max_reserved() return most.held end

function memory.reset_peak()
  for trainer in pairs(open) do
    trainer.runtime:reset_peak()
    trainer.peak = nil
  end
  most.used, most.held = now()
end

-- Gives cached blocks back to the device; returns their bytes.
function memory.empty_cache()
  local bytes = 0
  for trainer in pairs(open) do bytes = bytes + trainer.runtime:empty_cache() end
  return bytes
end

return memory
