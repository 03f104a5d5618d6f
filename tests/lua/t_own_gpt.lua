-- A transformer of a script's own layers as framework = "pytorch" predicts it, beside what PyTorch's allocator recorded on
-- a GPU: the sizes of one forward pass in their order, and after which allocation each tensor is freed.
local tap = dofile "tests/tap.lua"
local traces = dofile "tests/traces.lua"

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

-- The most bytes at once of the tensors in the list
local function peak(list)
  local now, most = 0, 0
  for _, event in ipairs(list) do
    now = now + event.bytes
    most = math.max(most, now)
    for _, place in ipairs(event.freed) do now = now - list[place].bytes end
  end
  return most
end

local recorded = new()
local trace = traces.read "gpt_inference_256"
for _, event in ipairs(trace.events) do
  local address, bytes, call = table.unpack(event)
  if call then recorded:allocated(address, bytes, trace.calls[call].op) else recorded:freed(address) end
end

-- The second step, to the loss, which the recorded program does not compute; x and y are there before.
local predicted, running = new(), false
local pipe = assert(io.popen((os.getenv "MEMTIDE" or "build/memtide") .. " dump tests/peers/own_gpt.lua"))
for line in pipe:lines() do
  local id, bytes, category, op = line:match "^%+(%d+) (%d+) (%S+) (%S+)"
  if line:find "^= " then running = line == "= step 2" end
  if op == "aten::_log_softmax" then running = false end
  if running and id and category ~= "input" then predicted:allocated(id, math.tointeger(bytes), op) end
  if running and line:find "^%-" then predicted:freed(line:match "^%-(%d+)$") end
end
assert(pipe:close())

local function text(event)
  if not event then return "nothing" end
  table.sort(event.freed)
  return ("%d; then freed: %s"):format(event.bytes, table.concat(event.freed, " "))
end

tap.is(#predicted, #recorded, "as many allocations as were recorded")
local difference
for i = 1, #recorded - 1 do -- after the last one, the recorded program drops its output
  local a, b = text(recorded[i]), text(predicted[i])
  difference = difference or a ~= b and ("%d: %s %s, predicted %s"):format(i, recorded[i].op, a, b) or nil
end
tap.is(difference, nil, "of the same sizes, freed at the same places")
tap.is(predicted[#predicted].bytes, recorded[#recorded].bytes, "the last one, too")
tap.is(peak(predicted), peak(recorded), "the same peak")
tap.ok(#recorded > 1200, "there is a list")
tap.done()
