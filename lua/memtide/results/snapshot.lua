-- What PyTorch's own recording of its memory says: a snapshot of torch.cuda.memory._dump_snapshot, replayed.
local core = require "memtide.core"
local util = require "memtide.base.util"

local snapshot = {}

local LARGEST = 20 -- tensors at the peak, where nobody asks for more
-- Settings of the allocator that are tried on the same requests, beside those of the recording
local OTHERS = {"expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8"}

-- The folder that all files have in common: a traceback's lines are shown below it.
local function common_folder(calls)
  local folder
  for _, call in ipairs(calls) do
    local own = call.where:match "^(.*/)[^/]*$"
    if own and not folder then folder = own end
    while own and own:sub(1, #folder) ~= folder do folder = folder:match "^(.*/)[^/]+/$" or "" end
  end
  return folder or ""
end

local function shorten(list, folder)
  for _, one in ipairs(list) do
    if folder ~= "" and one.where:sub(1, #folder) == folder then one.where = one.where:sub(#folder + 1) end
  end
end

-- Sums of the calls by one of their texts, those with the most bytes at the peak first.
local function sums(calls, name)
  local list, at = {}, {}
  for _, call in ipairs(calls) do
    local key = call[name]
    if not at[key] then
      at[key] = {[name] = key, count = 0, bytes = 0, live = 0, live_bytes = 0}
      list[#list + 1] = at[key]
    end
    for _, number in ipairs{"count", "bytes", "live", "live_bytes"} do
      at[key][number] = at[key][number] + call[number]
    end
  end
  table.sort(list, function(a, b)
    if a.live_bytes ~= b.live_bytes then return a.live_bytes > b.live_bytes end
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    return a[name] < b[name]
  end)
  return list
end

-- The same requests with other settings (nil: the recording's) and a limit (nil: none).
local function what_if(file, alloc_conf, memory)
  local found = util.must(file:what_if(alloc_conf, memory))
  found.alloc_conf, found.memory = alloc_conf or "as recorded", memory
  return found
end

-- The last step of a predicted trace, looked for in the recording
local function beside(file, trace)
  local found, predicted = util.must(file:compare(trace)), util.must(trace:predict{})
  found.max_memory_allocated, found.max_memory_reserved = predicted.max_memory_allocated, predicted.max_memory_reserved
  return found
end

local KEYS = {"gpu", "alloc_conf", "memory", "largest", "against"}
snapshot.keys = KEYS

local function check(given)
  util.check_keys("snapshot", given, KEYS)
  for _, name in ipairs{"gpu", "memory", "largest"} do
    local value = given[name]
    if value ~= nil and (math.type(value) ~= "integer" or value < 0) then
      util.fail("snapshot: %s: expected a whole number of at least 0, found %s", name, tostring(value))
    end
  end
  local list = given.alloc_conf or {}
  return type(list) == "string" and {list} or list
end

-- read(path, {gpu = number, alloc_conf = text or list of them, memory = bytes, largest = n}) -> a table: see
-- docs/pytorch.md. alloc_conf: settings (PYTORCH_CUDA_ALLOC_CONF) to try on the same requests; memory: a limit for all
-- of these; gpu: whose events (the first GPU that has some); against: the core's trace of PyTorch's step, which is
-- laid beside the recording. Raises where the file is no snapshot.
function snapshot.read(path, given)
  local confs = check(given or {})
  given = given or {}
  for _, conf in ipairs(confs) do core.check_alloc_conf(conf) end
  local file <close> = util.must(core.snapshot(path, given.gpu))
  local info, replay = util.must(file:info()), util.must(file:replay())
  local calls, tensors = util.must(file:who(replay.peak.event, given.largest or LARGEST))
  local folder, peak = common_folder(calls), replay.peak
  shorten(calls, folder)
  shorten(tensors, folder)
  local out = {file = path, gpu = info.device, gpus = info.devices, allocations = info.allocations,
    frees = info.frees, ooms = info.ooms, oom_bytes = info.oom_bytes, expandable = info.expandable, folder = folder,
    max_memory_allocated = peak.allocated, max_memory_reserved = info.reserved_peak,
    lower_bound = replay.requested_peak, start = {tensors = info.tensors_start, segments = info.segments_start,
      allocated = replay.allocated_start, reserved = info.reserved_start},
    ["end"] = {allocated = replay.allocated_end, reserved = info.reserved_end},
    peak = {event = peak.event, requested = peak.requested, rounding = peak.allocated - peak.requested,
      allocated = peak.allocated, split = peak.split, cached = peak.cached, reserved = peak.reserved},
    replay = {equal = replay.equal, different = replay.different, segments_equal = replay.segments_equal,
      segments_different = replay.segments_different, first = replay.first, difference = replay.difference,
      reserved_peak = replay.reserved_peak},
    tensors = tensors, lines = sums(calls, "where"), ops = sums(calls, "op"), what_if = {}}
  local tried = {false, table.unpack(OTHERS)}
  for _, conf in ipairs(confs) do tried[#tried + 1] = conf end
  for i, conf in ipairs(tried) do out.what_if[i] = what_if(file, conf or nil, given.memory) end
  out.against = given.against and beside(file, given.against)
  return out
end

return snapshot
