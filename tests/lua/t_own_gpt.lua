-- A transformer of a script's own layers, loss and optimizer as framework = "pytorch" predicts it, beside what PyTorch's
-- allocator recorded on a GPU: the peaks, the sizes of a step in their order, and after which allocation each tensor is
-- freed.
local tap = dofile "tests/tap.lua"
local traces = dofile "tests/traces.lua"
local MEMTIDE, SCRIPT = os.getenv "MEMTIDE" or "build/memtide", "tests/peers/own_gpt.lua"

-- A list of {bytes =, op =, freed = {place of a tensor, ...}}, what has been freed after it was allocated; place: by key
local List = {}
List.__index = List
local function new() return setmetatable({place = {}}, List) end

function List:allocated(key, bytes, op)
  self[#self + 1] = {bytes = bytes, op = op, freed = {}}
  self.place[key] = #self
end

function List:freed(key)
  if self.place[key] then table.insert(self[#self].freed, self.place[key]) end
  self.place[key] = nil
end

-- The buffers by which the recorded program sorts the indices of an embedding's gradient are not predicted.
local SORT = "IndexBackward0|aten::_index_put_impl_"

local function recorded_list(name)
  local list, trace = new(), traces.read(name)
  for _, event in ipairs(trace.events) do
    local address, bytes, call = table.unpack(event)
    local op = call and trace.calls[call].op
    if not call then list:freed(address) elseif op ~= SORT then list:allocated(address, bytes, op) end
  end
  return list
end

-- The last step; x and y are there before.
local function predicted_list(case)
  local list = new() -- first the model
  local pipe = assert(io.popen(("%s dump %s --case %s"):format(MEMTIDE, SCRIPT, case)))
  for line in pipe:lines() do
    local id, bytes, category, op = line:match "^%+(%d+) (%d+) (%S+) (%S+)"
    if line:find "^= " then list = new()
    elseif id and category ~= "input" then list:allocated(id, math.tointeger(bytes), op)
    elseif line:find "^%-" then list:freed(line:match "^%-(%d+)$") end
  end
  assert(pipe:close())
  return list
end

local function text(event)
  table.sort(event.freed)
  return ("%d; then freed: %s"):format(event.bytes, table.concat(event.freed, " "))
end

local function peaks(case)
  local pipe = assert(io.popen(("%s predict %s --case %s --json --quiet"):format(MEMTIDE, SCRIPT, case)))
  local all = pipe:read "a"
  assert(pipe:close())
  return math.tointeger(all:match '"max_memory_allocated": ?(%d+)'), math.tointeger(all:match '"max_memory_reserved": ?(%d+)')
end

-- The recorded RoPE turns pairs of numbers, which one call takes apart, where the script turns halves: their gradients have
-- the same sizes, and meet in another way.
local ROPE = {["UnbindBackward0|aten::stack"] = true, ["ReshapeAliasBackward0|aten::reshape"] = true}
-- Where the recorded program frees what is kept to the end of its steps, its recording is over.
local CASES = {
  {"inference", "gpt_inference_256", least = 1200, elsewhere = {}},
  {"training", "gpt_training_128", least = 6500, elsewhere = ROPE},
}
for _, case in ipairs(CASES) do
  local name, trace = table.unpack(case)
  local recorded, predicted = recorded_list(trace), predicted_list(name)
  tap.is(#predicted, #recorded, name .. ": as many allocations as were recorded")
  local difference
  for i = 1, #recorded - 1 do
    local a, b = text(recorded[i]), text(predicted[i])
    local same = case.elsewhere[recorded[i].op] and recorded[i].bytes == predicted[i].bytes or a == b
    difference = difference or not same and ("%d: %s %s, predicted %s"):format(i, recorded[i].op, a, b) or nil
  end
  tap.is(difference, nil, "of the same sizes, freed at the same places")
  tap.is(predicted[#predicted].bytes, recorded[#recorded].bytes, "the last one, too")
  tap.ok(#recorded > case.least, "there is a list")
  local allocated, reserved = peaks(name)
  tap.is(allocated, traces.peaks[trace].allocated, "max_memory_allocated")
  tap.is(reserved, traces.peaks[trace].reserved, "max_memory_reserved")
end
tap.done()
