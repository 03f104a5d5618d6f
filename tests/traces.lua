-- Event lists of tests/unit/traces/: what two public snapshots say of a transformer's training and inference on a GPU,
-- without tracebacks. Lines, each of a list of its own but for the last two, which stand in order:
--   segment ADDRESS BYTES small|large    block ADDRESS BYTES REQUESTED   at the end
--   call OP WHERE                        what allocations belong to, numbered from 1; - where it is not known
--   +ADDRESS BYTES CALL                  allocated
--   -ADDRESS BYTES                       freed
local traces = {}

-- PyTorch's peaks in bytes, as the snapshots have them
traces.peaks = {
  gpt_training_128 = {allocated = 7026606592, reserved = 7235174400},
  gpt_inference_256 = {allocated = 1795741696, reserved = 1864368128},
}

-- traces.read "gpt_training_128" -> {segments =, blocks =, calls =, events = {{address, bytes, call or nil}, ...}}
function traces.read(name)
  local t = {segments = {}, blocks = {}, calls = {}, events = {}}
  local pipe = assert(io.popen(("gzip -dc tests/unit/traces/%s.txt.gz"):format(name)))
  for line in pipe:lines() do
    local word, a, b, c = line:match "^(%a+) (%S+) (%S+) ?(%S*)$"
    local sign, address, bytes, call = line:match "^([+-])(%d+) (%d+) ?(%d*)$"
    if sign then
      t.events[#t.events + 1] = {math.tointeger(address), math.tointeger(bytes),
        sign == "+" and math.tointeger(call) or nil}
    elseif word == "call" then t.calls[#t.calls + 1] = {op = a ~= "-" and a or "", where = b ~= "-" and b or ""}
    elseif word == "segment" then
      t.segments[#t.segments + 1] = {address = math.tointeger(a), bytes = math.tointeger(b), pool = c}
    elseif word == "block" then
      t.blocks[#t.blocks + 1] = {address = math.tointeger(a), bytes = math.tointeger(b), requested = math.tointeger(c)}
    else error("no line of an event list: " .. line) end
  end
  assert(pipe:close())
  return t
end

-- A traceback of the call, as PyTorch records it, innermost frame first.
local function frames_of(call, list)
  local node, op = call.op:match "^(.-)|aten::(.+)$"
  op = op or call.op:match "^aten::(.+)$"
  if op then
    list[#list + 1] = {name = ("at::_ops::%s::call(at::Tensor const&)"):format(op), filename = "??", line = 0}
  end
  if node == "AccumulateGrad" then
    list[#list + 1] = {name = "torch::autograd::AccumulateGrad::apply(...)", filename = "??", line = 0}
  elseif node then
    list[#list + 1] = {name = ("torch::autograd::generated::%s::apply(...)"):format(node), filename = "??", line = 0}
  end
  local file, line = call.where:match "^(.*):(%d+)$"
  if file then list[#list + 1] = {name = "forward", filename = "/train/" .. file, line = math.tointeger(line)} end
  return list
end

-- The same as PyTorch's snapshot, for tests/pickle.lua.
function traces.snapshot(t, pickle)
  local events, frames, segments, at = {}, {}, {}, 1
  for i, call in ipairs(t.calls) do frames[i] = frames_of(call, {}) end
  for _, e in ipairs(t.events) do
    if not e[3] then
      events[#events + 1] = {action = "free_requested", addr = e[1], size = e[2], stream = 0, time_us = #events}
    end
    events[#events + 1] = {action = e[3] and "alloc" or "free_completed", addr = e[1], size = e[2], stream = 0,
      time_us = 1000 + #events, frames = e[3] and frames[e[3]] or nil}
  end
  for i, s in ipairs(t.segments) do
    local blocks = {}
    while t.blocks[at] and t.blocks[at].address < s.address + s.bytes do
      local b = t.blocks[at]
      blocks[#blocks + 1] = {address = b.address, size = b.bytes, requested_size = b.requested,
        state = "active_allocated", frames = {}}
      at = at + 1
    end
    segments[i] = {device = 0, address = s.address, total_size = s.bytes, stream = 0, segment_type = s.pool,
      segment_pool_id = pickle.tuple{0, 0}, is_expandable = false, blocks = blocks, frames = {}}
  end
  assert(at > #t.blocks, "a block outside of the segments")
  return {segments = segments, device_traces = {events}, external_annotations = {},
    allocator_settings = pickle.dict{PYTORCH_CUDA_ALLOC_CONF = "", max_split_size = -1, expandable_segments = false,
      garbage_collection_threshold = 0.0, roundup_power2_divisions = pickle.dict{["1"] = 0, ["2"] = 0}}}
end

return traces
