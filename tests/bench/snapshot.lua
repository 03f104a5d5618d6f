-- Snapshots as large as they get: 100 MB with a million events are read, replayed and explained in less than 3 s and
-- 500 MB. EVENTS=n for another size.
local tap = dofile "tests/tap.lua"
local pickle = dofile "tests/pickle.lua"

local EVENTS = tonumber(os.getenv "EVENTS") or 1000000
local BASE, FRAMES, DEPTH = 0x7f0000000000, 300, 20
local path = os.tmpname()

-- Tracebacks of frames that are shared, each in a list of its own, as PyTorch writes them
local frames = {}
for i = 1, FRAMES do
  frames[i] = i % 10 == 0 and {name = "forward", filename = ("/home/user/train/model%d.py"):format(i % 7), line = i}
    or {name = ("at::_ops::op%d::call(at::Tensor const&)"):format(i % 40), filename = "??", line = 0}
end

local function traceback(n)
  local list = {}
  for i = 1, DEPTH do list[i] = frames[(n * 7 + i * 13) % FRAMES + 1] end
  return list
end

-- Blocks of 512 bytes that come and go like a stack, in one segment: each lies at the lowest free address
local events, depth, up = {}, 0, true
while #events < EVENTS do
  if up and depth == 4000 or not up and depth == 0 then up = not up end
  local place = up and depth or depth - 1
  local event = {action = up and "alloc" or "free_completed", addr = BASE + 512 * place, size = 500, stream = 0,
    time_us = 1700000000000000 + #events, compile_context = "N/A", user_metadata = "", frames = traceback(#events)}
  if not up then
    local asked = {}
    for key, value in pairs(event) do asked[key] = value end
    asked.action = "free_requested"
    events[#events + 1] = asked
  end
  events[#events + 1] = event
  depth = depth + (up and 1 or -1)
end
local blocks = {}
for i = 1, depth do
  blocks[i] = {address = BASE + 512 * (i - 1), size = 512, requested_size = 500, state = "active_allocated",
    frames = {}}
end
if depth < 4096 then
  blocks[depth + 1] = {address = BASE + 512 * depth, size = (4096 - depth) * 512, requested_size = 0,
    state = "inactive", frames = {}}
end
local segment = {device = 0, address = BASE, total_size = 2 << 20, stream = 0, segment_type = "small",
  is_expandable = false, blocks = blocks}
local file = assert(io.open(path, "wb"))
pickle.write({segments = {segment}, device_traces = {events}, allocator_settings = pickle.dict{}}, 4,
  function(bytes) assert(file:write(bytes)) end)
local megabytes = file:seek "end" / 1e6
file:close()
events, blocks, segment = nil, nil, nil -- luacheck: ignore 311
collectgarbage()

local CODE = [[local mt, core = require "memtide", require "memtide.core"
local start = os.clock()
local t = mt.snapshot(arg[1])
local status = assert(io.open "/proc/self/status"):read "a"
print(t.replay.equal, t.replay.different, t.allocations, os.clock() - start, status:match "VmHWM:%s*(%d+)")]]
local code = os.tmpname() .. ".lua"
local script = assert(io.open(code, "w"))
script:write(CODE)
script:close()
local pipe = assert(io.popen(("'%s' '%s' '%s' 2>&1"):format(os.getenv "MEMTIDE" or "build/memtide", code, path)))
local answer = pipe:read "a"
pipe:close()
os.remove(path)
os.remove(code)

local equal, different, allocations, seconds, kilobytes = answer:match "^(%d+)%s(%d+)%s(%d+)%s(%S+)%s(%d+)"
if not tap.ok(equal, "it is read") then print("# " .. answer) end
tap.is(tonumber(equal), tonumber(allocations), "every address agrees")
tap.is(tonumber(different), 0, "... and none differs")
tap.ok(tonumber(seconds) < 3, ("%.0f MB with %d events took %.2f s"):format(megabytes, EVENTS, seconds))
tap.ok(tonumber(kilobytes) < 500e3, ("... and %.0f MB of memory"):format(kilobytes / 1e3))
tap.done()
