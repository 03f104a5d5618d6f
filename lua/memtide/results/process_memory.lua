-- The most memory that this process had since a moment, as Linux counts it (VmHWM: the code of libraries is in it, too).
local process_memory = {}

-- Begins to count anew: the most so far becomes what is there now. true, or nil where the kernel does not allow that.
function process_memory.begin()
  local file = io.open("/proc/self/clear_refs", "w")
  if not file then return nil end
  local written = file:write "5"
  return file:close() and written and true or nil
end

-- Bytes; nil: not known
function process_memory.most()
  local file <close> = io.open("/proc/self/status", "r")
  local kib = file and (file:read "a" or ""):match "\nVmHWM:%s*(%d+) kB\n"
  return kib and math.tointeger(kib) * 1024
end

return process_memory
