-- A step as a file that torch.cuda.memory._dump_snapshot could have written: PyTorch's memory_viz opens it, and memtide
-- snapshot. What the dictionaries hold: torch/csrc/cuda/memory_snapshot.cpp.
--
-- Of PyTorch's step (facts.segments) it says what the allocator does. memtide's own step has one segment, the arena, and in it
-- each buffer where the plan puts it. There are no times: a step that is predicted takes none.
local core = require "memtide.core"
local util = require "memtide.base.util"

local snapshot = {}

local BASE = 0x7f0000000000 -- where a GPU's addresses are
local MULTIPLE = 512        -- of the bytes of segments and blocks

-- ---- tracebacks, the innermost frame first, as PyTorch has them

local function native(name) return {name = name, filename = "??", line = 0} end

-- "AddmmBackward0|aten::mm" as the C++ functions that PyTorch records for it; memtide's ops as functions of memtide
local function add_op(list, facts, name)
  local node, op = name:match "^(.-)|(.*)$"
  op = op or name
  local aten = op:match "^aten::(.+)$"
  if aten then list[#list + 1] = native(("at::_ops::%s::call"):format(aten))
  elseif op:find "^[%w]+Backward%d*$" or op == "AccumulateGrad" then node = node or op
  elseif op ~= "" then list[#list + 1] = native(facts.pytorch and op or "memtide::" .. op) end
  if node == "AccumulateGrad" then list[#list + 1] = native "torch::autograd::AccumulateGrad::apply"
  elseif node and node ~= "" then list[#list + 1] = native(("torch::autograd::generated::%s::apply"):format(node)) end
end

-- Of what an op (nil: none) allocates: {name, category, layer, where} of the buffer. Equal ones are one object.
local function tracebacks(facts)
  local known = {}
  return function(buf, op)
    local name = facts.pytorch and buf.category or ("%s, %s"):format(buf.name, buf.category)
    local made, where = facts.pytorch and buf.name or op and op.name or "", op and op.where or buf.where
    local layer = op and op.layer or buf.layer
    local key = table.concat({name, made, layer, where}, "\0")
    if not known[key] then
      local list = {native(name)}
      add_op(list, facts, made)
      local file, line = where:match "^(.*):(%d+)$"
      if file then list[#list + 1] = {name = layer ~= "" and layer or "the step", filename = file, line = math.tointeger(line)}
      elseif layer ~= "" then list[#list + 1] = native(layer) end
      known[key] = list
    end
    return known[key]
  end
end

-- ---- what happens, in its order

local function events_of(facts, bufs, frames_of)
  local list, first, last, segments = {}, {}, {}, {}
  local function add(action, offset, size, frames)
    list[#list + 1] = {action = action, addr = BASE + offset, size = size, stream = 0, frames = frames}
  end
  for i = 0, #facts.ops do first[i], last[i], segments[i] = {}, {}, {} end
  for _, one in ipairs(facts.segments or {}) do table.insert(segments[one.op], one) end
  for _, buf in ipairs(bufs) do
    if not buf.before then table.insert(first[buf.first], buf) end
    if not buf.after then table.insert(last[buf.last], buf) end
  end
  for i, op in ipairs(facts.ops) do
    for _, one in ipairs(i > 1 and segments[i - 1] or {}) do
      add((one.page and (one.taken and "segment_map" or "segment_unmap")) or (one.taken and "segment_alloc" or "segment_free"),
        one.offset, one.bytes, {})
    end
    for _, buf in ipairs(first[i]) do add("alloc", buf.offset, buf.bytes, frames_of(buf, op)) end
    for _, buf in ipairs(last[i]) do
      add("free_requested", buf.offset, buf.bytes, {})
      add("free_completed", buf.offset, buf.bytes, {})
    end
  end
  return list
end

-- ---- what there is at the end

-- {{offset, bytes, small, page}, ...}: the segments, neighbouring pages as one
local function segments_of(facts)
  local whole = {}
  for _, one in ipairs(facts.ranges) do
    if one.last == #facts.ops then whole[#whole + 1] = one end
  end
  table.sort(whole, function(a, b) return a.offset < b.offset end)
  local out = {}
  for _, one in ipairs(whole) do
    local before = out[#out]
    if before and before.page and one.page and before.small == one.small and before.offset + before.bytes == one.offset then
      before.bytes = before.bytes + one.bytes
    else out[#out + 1] = {offset = one.offset, bytes = one.bytes, small = one.small, page = one.page} end
  end
  return out
end

-- A segment with its blocks, which cover it: tensors that are there at the end, and what is free between them
local function segment(one, bufs, frames_of)
  local blocks, at, active = {}, one.offset, 0
  local function add(offset, size, requested, state, frames)
    blocks[#blocks + 1] = {address = BASE + offset, size = size, requested_size = requested, state = state, frames = frames}
  end
  local function free_until(offset) if offset > at then add(at, offset - at, 0, "inactive", {}) end end
  for _, buf in ipairs(bufs) do
    free_until(buf.offset)
    add(buf.offset, buf.size, buf.bytes, "active_allocated", frames_of(buf))
    at, active = buf.offset + buf.size, active + buf.size
  end
  free_until(one.offset + one.bytes)
  return {device = 0, address = BASE + one.offset, total_size = one.bytes, allocated_size = active, active_size = active,
    requested_size = active, stream = 0, segment_type = one.small and "small" or "large", segment_pool_id = {0, 0},
    is_expandable = one.page or false, frames = {}, blocks = blocks}
end

-- ---- the whole

-- The facts of memtide's step as those of one segment, which is there all the time
local function as_segment(facts)
  local bufs = {}
  for i, buf in ipairs(facts.bufs) do bufs[i] = setmetatable({before = buf.always, after = buf.always}, {__index = buf}) end
  local bytes = (facts.arena + MULTIPLE - 1) // MULTIPLE * MULTIPLE
  return bufs, {{offset = 0, bytes = bytes, small = false, page = false}}
end

-- facts: step.facts. Writes the file; raises where it cannot.
function snapshot.write(facts, path)
  local frames_of, bufs, segments = tracebacks(facts), facts.bufs
  if facts.segments then segments = segments_of(facts) else bufs, segments = as_segment(facts) end
  local kept, list, at = {}, {}, 1
  for _, buf in ipairs(bufs) do if buf.after then kept[#kept + 1] = buf end end
  table.sort(kept, function(a, b) return a.offset < b.offset end)
  for i, one in ipairs(segments) do
    local inside = {}
    while kept[at] and kept[at].offset < one.offset + one.bytes do inside[#inside + 1], at = kept[at], at + 1 end
    list[i] = segment(one, inside, frames_of)
  end
  util.must(core.write_pickle(path, {segments = list, device_traces = {events_of(facts, bufs, frames_of)},
    allocator_settings = {PYTORCH_CUDA_ALLOC_CONF = facts.alloc_conf}, external_annotations = {}}))
end

return snapshot
