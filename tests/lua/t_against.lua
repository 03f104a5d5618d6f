-- memtide snapshot --against: a predicted step beside a recording that is made of the prediction itself, equal and with
-- one thing changed at a time.
local tap = dofile "tests/tap.lua"
local pickle = dofile "tests/pickle.lua"
local program = os.getenv "MEMTIDE" or "build/memtide"

local script, recording = os.tmpname(), os.tmpname()
local function write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  assert(file:close())
end
local function ask(words)
  local pipe = assert(io.popen(("%s %s 2>&1"):format(program, words)))
  local text = pipe:read "a"
  local _, _, status = pipe:close()
  return text, status
end

write(script, [[
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{name = "mlp", input = {20}, model = nn.Sequential{nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 30), nn.Tanh(),
  nn.Linear(30, 10)}, loss = nn.CrossEntropyLoss(), optimizer = mt.optim.Adam(), batch = 16, steps = 1,
  cases = {{case = "plain"}, {case = "wide", batch = 24}}}
]])

-- The predicted events from step 2 on, and what was there before: {{number, bytes, op, where} or {number}, ...}
local function predicted()
  local start, events, begun = {}, {}, false
  for line in ask(("dump %s --set framework=pytorch --case plain -q"):format(script)):gmatch "[^\n]+" do
    local number, bytes, op, where = line:match "^%+(%d+) (%d+) %S+ (%S+) %S+ (%S+)$"
    local freed = line:match "^%-(%d+)$"
    begun = begun or line == "= step 2"
    if number then
      local one = {tonumber(number), tonumber(bytes), op, where}
      if begun then events[#events + 1] = one else start[#start + 1] = one end
    elseif freed and begun then events[#events + 1] = {tonumber(freed)}
    elseif freed then
      for i, one in ipairs(start) do
        if one[1] == tonumber(freed) then table.remove(start, i) break end
      end
    end
  end
  return start, events
end

local BASE <const> = 1 << 40
local function rounded(bytes) return (bytes + 511) // 512 * 512 end

-- The frames of PyTorch's recorder; it names the outermost op: where the prediction has mm, matmul.
local function frames_of(op, where)
  local node, name = op:match "^(.-)|aten::(.+)$"
  name = (name or op:match "^aten::(.+)$"):gsub("^mm$", "matmul")
  local list = {{name = ("at::_ops::%s::call(at::Tensor const&)"):format(name), filename = "??", line = 0}}
  if node then list[2] = {name = ("torch::autograd::generated::%s::apply(...)"):format(node), filename = "??", line = 0} end
  local line = where:match ":(%d+)$"
  if line then list[#list + 1] = {name = "forward", filename = "/train/mlp.py", line = math.tointeger(line)} end
  return list
end

-- A recording of these events: every tensor has an address of its own, in one segment.
local function record(start, events)
  local address, tensors, next_address = {}, {}, BASE
  local function place(one)
    address[one[1]], tensors[one[1]], next_address = next_address, one, next_address + rounded(one[2])
  end
  for _, one in ipairs(start) do place(one) end
  local alive, list = {}, {}
  for _, one in ipairs(start) do alive[one[1]] = true end
  for _, one in ipairs(events) do
    if one[2] then
      place(one)
      list[#list + 1] = {action = "alloc", addr = address[one[1]], size = one[2], stream = 0, time_us = 1000 + #list,
        frames = frames_of(one[3], one[4])}
    else
      local bytes = tensors[one[1]][2]
      for _, action in ipairs{"free_requested", "free_completed"} do
        list[#list + 1] = {action = action, addr = address[one[1]], size = bytes, stream = 0, time_us = 1000 + #list}
      end
    end
    alive[one[1]] = one[2] and true or nil
  end
  local blocks = {}
  for number in pairs(alive) do
    blocks[#blocks + 1] = {address = address[number], size = rounded(tensors[number][2]), requested_size = tensors[number][2],
      state = "active_allocated", frames = {}}
  end
  table.sort(blocks, function(a, b) return a.address < b.address end)
  write(recording, pickle.dump{segments = {{device = 0, address = BASE, total_size = next_address - BASE, stream = 0,
    segment_type = "large", is_expandable = false, blocks = blocks}}, device_traces = {list},
    allocator_settings = pickle.dict{}})
end

local function against(more) return ask(("snapshot %s --against %s -q %s"):format(recording, script, more or "--case plain")) end

local start, events = predicted()
record(start, events)
local text, status = against()
tap.is(status, 0, "a recording of what is predicted")
tap.has(text, "every size and every free of the step is as predicted", "... is equal")
tap.has(text, "allocations, at the events 1 to ", "... and the first step of it is taken")
local allocations = tonumber(text:match "of the step's (%d+) allocations")
tap.ok(allocations and text:find(("sizes: %d of"):format(allocations), 1, true), "... with every allocation")
tap.has(text, "aten::matmul", "ops have the recorder's names, too")
local json = against "--case plain --json"
tap.has(json, '"only_predicted":0', "as JSON")
tap.has(against "--case plain --csv -", ",predicted_op,predicted_bytes,predicted_tensors\n", "as CSV")

-- Only one step is recorded from here on: the last.
local function last_step(list)
  local allocs, from = 0, #list
  for i = #list, 1, -1 do
    if list[i][2] then
      allocs = allocs + 1
      if allocs == allocations then from = i break end
    end
  end
  return from
end

-- The last step alone, recorded after everything else was there already, with `change` made to it
local function step_with(change)
  local before, all = predicted()
  local from, known, freed = last_step(all), {}, {}
  for i = 1, from - 1 do
    if all[i][2] then before[#before + 1] = all[i] else freed[all[i][1]] = true end
  end
  for _, one in ipairs(before) do if not freed[one[1]] then known[#known + 1] = one end end
  local step = table.move(all, from, #all, 1, {})
  change(step)
  record(known, step)
  return against()
end

local function find(step, op)
  for i, one in ipairs(step) do if one[3] == op then return i end end
end

text = step_with(function() end)
tap.has(text, "every size and every free of the step is as predicted", "one step alone")

text = step_with(function(step)
  for _, one in ipairs(step) do
    if one[2] == 6000 and one[3] == "AddmmBackward0|aten::mm" then one[2] = 8192 end
  end
end)
tap.has(text, "only predicted: 1 allocations; only recorded: 1; freed at another time: 0 tensors", "a size that differs")
tap.has(text, "predicted: allocates 6000 bytes, AddmmBackward0|aten::mm, 2, " .. script, "... what was predicted, its layer and line")
tap.has(text, "recorded:  allocates 8192 bytes, AddmmBackward0|aten::matmul, /train/mlp.py", "... and what was recorded")

text = step_with(function(step) table.insert(step, find(step, "aten::relu"), {1 << 20, 7777, "aten::cudnn_workspace", "-"}) end)
tap.has(text, "only predicted: 0 allocations; only recorded: 1;", "a workspace that is not predicted")
tap.has(text, "recorded:  allocates 7777 bytes, aten::cudnn_workspace", "... is named")
tap.ok(text:find "tensors  recorded +bytes  tensors\n  %- +0 +0  aten::cudnn_workspace +7777 +1\n",
  "... and is the largest difference by op")

text = step_with(function(step) table.remove(step, 1) end)
tap.has(text, "1 of them are not compared: the recording begins after them", "a recording that begins later")

text = step_with(function(step)
  local i = find(step, "aten::relu")
  local k = i
  while step[k][2] do k = k + 1 end
  step[#step + 1] = table.remove(step, k)
end)
tap.has(text, "only predicted: 0 allocations; only recorded: 0; freed at another time: 1 tensors", "a tensor that lives longer")
tap.has(text, "recorded:  frees it at another time", "... which is said")

-- another cell of the script
record(start, events)
text = against "--case wide"
tap.has(text, "the first difference, after ", "another batch is not what was recorded")
tap.has(against "--set batch=16", "every size and every free", "--set makes it the recorded one")

-- what is refused
tap.is(select(2, ask(("snapshot %s --case x"):format(recording))), 2, "--case without a script")
text, status = against "--set framework=memtide"
tap.is(status, 2, "another framework")
tap.has(text, "expected framework=pytorch", "... in words")

os.remove(script)
os.remove(recording)
tap.done()
