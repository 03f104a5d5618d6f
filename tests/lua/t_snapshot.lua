-- PyTorch's memory snapshots: states and peaks of small ones by hand, the two public ones, and what is refused.
local tap = dofile "tests/tap.lua"
local pickle = dofile "tests/pickle.lua"
local traces = dofile "tests/traces.lua"
local mt = require "memtide"
local core = require "memtide.core"

local path = os.tmpname()
local function write(value, protocol)
  local file = assert(io.open(path, "wb"))
  assert(file:write(pickle.dump(value, protocol)))
  assert(file:close())
  return path
end
local function fails(value, text, given)
  local good, found = pcall(mt.snapshot, write(value), given)
  tap.has(not good and tostring(found.message or found) or "it is read", text, "refused: " .. text)
end

local MIB, BASE = 1 << 20, 1 << 40

-- ---- by hand: a large segment of 20 MiB and a small one, in every protocol

local function event(action, at, size, more)
  local e = {action = action, addr = BASE + at, size = size, stream = 0, time_us = 5000}
  for key, value in pairs(more or {}) do e[key] = value end
  return e
end
local function block(at, size, requested)
  return {address = BASE + at, size = size, requested_size = requested, state = "active_allocated", frames = {}}
end
local function traceback(op, node, file, line)
  local list = {{name = "c10::malloc", filename = "??", line = 0}, {name = "at::_ops::empty_memory_format::call()",
    filename = "??", line = 0}, {name = ("at::_ops::%s::call(at::Tensor)"):format(op), filename = "??", line = 0}}
  if node then list[#list + 1] = {name = ("void torch::autograd::generated::%s_apply_functional(x)"):format(node),
    filename = "", line = 0} end
  if file then
    list[#list + 1] = {name = "_call_impl", filename = "/usr/lib/python3/site-packages/torch/nn/module.py", line = 9}
    list[#list + 1] = {name = "forward", filename = file, line = line}
    list[#list + 1] = {name = "main", filename = "/home/me/main.py", line = 1}
  end
  return list
end

-- At the start: A, 3 MiB at 0 (freed later), B, 4 MiB - 100 at 3 MiB; 13 MiB free. Then:
--   1  alloc C 5 MiB at 7   2  free A   3  alloc D 3 MiB - 512 - 7 at 0   4  a new segment of 12 MiB for E
--   5  free C
-- Most in blocks after 4: B 4 MiB, C 5 MiB, D 3 MiB (its rest of 512 bytes is not cut off), E 12 MiB.
local HIGH = 64 * MIB
local function sample()
  return {segments = {
      {device = 0, address = BASE, total_size = 20 * MIB, stream = 0, segment_type = "large", is_expandable = false,
        blocks = {block(0, 3 * MIB, 3 * MIB - 519), block(3 * MIB, 4 * MIB, 4 * MIB - 100)}},
      {device = 0, address = BASE + HIGH, total_size = 12 * MIB, stream = 0, segment_type = "large",
        is_expandable = false, blocks = {block(HIGH, 12 * MIB, 12 * MIB)}},
      {device = 1, address = 512, total_size = 2 * MIB, stream = 0, segment_type = "small", blocks = {}}},
    device_traces = {{
      event("alloc", 7 * MIB, 5 * MIB, {frames = traceback("mul_Tensor", nil, "/home/me/model.py", 30),
        time_us = 1000}),
      event("free_requested", 0, 3 * MIB), event("free_completed", 0, 3 * MIB),
      event("alloc", 0, 3 * MIB - 519, {frames = traceback("where_ScalarOther", "MulBackward0"), time_us = 3000}),
      event("segment_alloc", HIGH, 12 * MIB),
      event("alloc", HIGH, 12 * MIB, {frames = traceback("empty_strided", nil, "/home/me/lib/opt.py", 7)}),
      event("free_requested", 7 * MIB, 5 * MIB), event("free_completed", 7 * MIB, 5 * MIB)}, {}},
    allocator_settings = pickle.dict{}}
end

for _, protocol in ipairs{0, 2, 4} do
  local t = mt.snapshot(write(sample(), protocol))
  local where = ("protocol %d: "):format(protocol)
  tap.is(t.replay.equal, 3, where .. "every address agrees")
  tap.is(t.replay.different + t.replay.segments_different, 0, "... and every segment")
  tap.is(t.replay.segments_equal, 1, "... of which one is taken")
  tap.is(t.start.tensors, 2, "tensors at the start")
  tap.is(t.start.allocated, 7 * MIB, "bytes in their blocks")
  tap.is(t.start.reserved, 20 * MIB, "bytes reserved then")
  tap.is(t.max_memory_reserved, 32 * MIB, "the most reserved")
  tap.is(t.max_memory_allocated, 24 * MIB, "the most allocated")
  tap.is(t.peak.event, 4, "... after the fourth event")
  tap.is(t.peak.requested, 24 * MIB - 619, "what was asked for")
  tap.is(t.lower_bound, 24 * MIB - 619, "which is the lower bound")
  tap.is(t.peak.rounding, 619, "rounding")
  tap.is(t.peak.split, 8 * MIB, "free in the first segment")
  tap.is(t.peak.cached, 0, "no segment is free")
  tap.is(t["end"].allocated, 19 * MIB, "allocated at the end")
end

local t = mt.snapshot(path)
tap.is(t.tensors[1].bytes, 12 * MIB, "the largest tensor at the peak")
tap.is(t.tensors[1].where, "lib/opt.py:7", "... its line, without the folder that all have in common")
tap.is(t.folder, "/home/me/", "... which is this")
tap.is(t.tensors[1].op, "aten::empty_strided", "... its op")
tap.is(t.tensors[2].age_us, 4000, "the age of the next")
tap.is(t.tensors[2].op, "aten::mul", "... its op, without the overload's name, the outermost one")
tap.is(t.tensors[2].where, "model.py:30", "... the innermost line that is not a library's")
tap.is(t.tensors[3].start, true, "one that was there before")
tap.is(t.tensors[4].op, "MulBackward0|aten::where", "a node of the backward pass")
tap.is(#t.tensors, 4, "four tensors")
local by_line = {}
for _, one in ipairs(t.lines) do by_line[one.where] = one end
tap.is(by_line["model.py:30"].bytes, 5 * MIB, "bytes by line")
tap.is(by_line["lib/opt.py:7"].live_bytes, 12 * MIB, "... at the peak")
tap.is(t.what_if[1].reserved, 32 * MIB, "from an empty allocator: 20 MiB and 12")
tap.is(t.what_if[2].alloc_conf, "expandable_segments:True", "pages of 20 MiB")
tap.is(t.what_if[2].reserved, 40 * MIB, "... are two")

local limited = mt.snapshot(path, {memory = 30 * MIB, alloc_conf = "max_split_size_mb:20", largest = 1})
tap.is(#limited.tensors, 1, "as many tensors as asked for")
tap.is(limited.what_if[1].fits, false, "30 MiB are not enough")
tap.has(limited.what_if[1].reason, "requested 12582912 bytes, held 20971520, limit 31457280", "... which says why")
tap.is(limited.what_if[#limited.what_if].alloc_conf, "max_split_size_mb:20", "settings that were asked for")

-- ---- what the trace does not agree with

local other = sample()
other.device_traces[1][1].addr = BASE + 8 * MIB
other.device_traces[1][8].addr = BASE + 8 * MIB
t = mt.snapshot(write(other))
tap.is(t.replay.different, 1, "a block that lies elsewhere")
tap.is(t.replay.first, 1, "... is the first difference")
tap.has(t.replay.difference, "a request of 5242880 bytes gets 0x10000700000, and got 0x10000800000", "... in words")
other = sample()
table.remove(other.device_traces[1], 5)
t = mt.snapshot(write(other))
tap.is(t.start.reserved, 32 * MIB, "a segment that was there at the start")
tap.is(t.replay.first, 1, "... is a better fit for the first request than where that went")

-- ---- two streams: blocks of one are not for the other

do
  local function large(at, stream, blocks)
    return {device = 0, address = BASE + at, total_size = 20 * MIB, stream = stream, segment_type = "large",
      blocks = blocks}
  end
  t = mt.snapshot(write{segments = {large(0, 0, {block(0, 4 * MIB, 4 * MIB)}),
      large(HIGH, 7, {block(HIGH, 5 * MIB, 5 * MIB)})},
    device_traces = {{event("alloc", 0, 4 * MIB), event("alloc", HIGH, 5 * MIB, {stream = 7})}},
    allocator_settings = pickle.dict{}})
  tap.is(t.replay.equal, 2, "streams: each at the recorded address")
  tap.is(t.what_if[1].reserved, 40 * MIB, "... each in a segment of its own")
end

-- ---- refused

fails(7, "expected a dict with the lists segments and device_traces")
fails({segments = {}, device_traces = {{}}}, "no events of GPU 0")
local function changed(text, change, given)
  local value = sample()
  change(value)
  fails(value, text, given)
end
local function of_event(n, key, value) return function(s) s.device_traces[1][n][key] = value end end
changed("device_traces[0][0]: action: expected a text, found nothing", of_event(1, "action", nil))
changed('device_traces[0][0]: action: expected one such as alloc or free_completed, found "malloc"',
  of_event(1, "action", "malloc"))
changed("device_traces[0][0]: size: expected a whole number, found a text", of_event(1, "size", "5"))
changed("device_traces[0][0]: size: expected at least 1 byte", of_event(1, "size", 0))
changed("size: expected a number from 0 to 1125899906842624, found -1", of_event(1, "size", -1))
changed("addr: expected a whole number, found a whole number of 2^62 or more", of_event(1, "addr", 1 << 62))
changed("device_traces[0][0]: addr: expected an address, found 0", of_event(1, "addr", 0))
changed("event 0 of GPU 0, alloc at 0x10000000001 of 5242880 bytes: this block is not there afterwards",
  of_event(1, "addr", BASE + 1))
changed("segment_alloc at 0x10000000001 of 12582912 bytes: this segment is not there afterwards",
  of_event(5, "addr", BASE + 1))
changed("free_completed at 0x10000300000 of 5242880 bytes: this block is there afterwards",
  of_event(8, "addr", BASE + 3 * MIB))
changed("segments[0].blocks[1]: address, size: expected a block of at least 1 byte inside its segment",
  function(s) s.segments[1].blocks[2].address = BASE + 2 * MIB end)
changed("segments[0].blocks[1]: requested_size: expected a number from 0 to 4194304, found 4194305",
  function(s) s.segments[1].blocks[2].requested_size = 4 * MIB + 1 end)
changed("segments[0]: total_size: expected a whole number, found nothing",
  function(s) s.segments[1].total_size = nil end)
changed("overlap at the start", function(s)
  s.segments[4] = {device = 0, address = BASE + MIB, total_size = MIB, stream = 0, segment_type = "large", blocks = {}}
end)
changed("no events of GPU 1", function() end, {gpu = 1})
changed("allocator_settings: alloc_conf: unknown key", function(s)
  s.allocator_settings.PYTORCH_CUDA_ALLOC_CONF = "maxsplit:3"
end)
changed('alloc_conf: unknown key "max_split"', function() end, {alloc_conf = "max_split:3"})
changed('snapshot: unknown key "device"', function() end, {device = 1})
changed("snapshot: memory: expected a whole number", function() end, {memory = "1GB"})

-- ---- expandable segments: read, and not compared
other = sample()
other.segments[1].is_expandable = true
t = mt.snapshot(write(other))
tap.is(t.expandable, true, "an expandable segment")
tap.is(t.replay.equal + t.replay.different, 0, "... has no addresses to compare")
tap.is(t.max_memory_reserved, 32 * MIB, "reserved bytes are as recorded")

-- ---- the public ones: what PyTorch recorded on a GPU, and what its own events add up to

local PUBLIC = {
  gpt_training_128 = {allocations = 6526, frees = 6305, start = 664, start_allocated = 5101219840, end_allocated = 6816891392},
  gpt_inference_256 = {allocations = 1280, frees = 1280, start = 223, start_allocated = 1703333888, end_allocated = 1703333888},
}
for name, expected in pairs(PUBLIC) do
  local list, peaks = traces.read(name), traces.peaks[name]
  t = mt.snapshot(write(traces.snapshot(list, pickle)))
  tap.is(t.allocations, expected.allocations, name .. ": allocations")
  tap.is(t.frees, expected.frees, "frees")
  tap.is(t.start.tensors, expected.start, "tensors at the start")
  tap.is(t.replay.equal, expected.allocations, "every one is at the recorded address")
  tap.is(t.replay.different + t.replay.segments_different, 0, "none differs")
  tap.is(t.max_memory_allocated, peaks.allocated, "the recorded peak of allocated bytes")
  tap.is(t.max_memory_reserved, peaks.reserved, "... and of reserved ones")
  tap.is(t.replay.reserved_peak, peaks.reserved, "... also replayed")
  tap.is(t.start.allocated, expected.start_allocated, "allocated at the start")
  tap.is(t["end"].allocated, expected.end_allocated, "... and at the end")
  local bytes, found = {}, 0
  for _, e in ipairs(list.events) do
    local op = e[3] and list.calls[e[3]].op
    if op then bytes[op] = (bytes[op] or 0) + e[2] end
  end
  for _, one in ipairs(t.ops) do
    if one.count > 0 and bytes[one.op] == one.bytes then found = found + 1 end
    bytes[one.op] = nil
  end
  tap.ok(found > 15 and next(bytes) == nil, ("bytes of %d ops are those of the list"):format(found))
  local snapshot, n = assert(core.snapshot(path)), 0
  for kind, _, size in snapshot:events() do
    n = n + 1
    local e = list.events[n]
    if not e or size ~= e[2] or (kind == "alloc") ~= (e[3] ~= nil) then break end
  end
  tap.is(n, #list.events, "the events one by one")
  snapshot:close()
end

os.remove(path)
tap.done()
