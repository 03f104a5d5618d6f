-- Weights of ResNet-18 to and from PyTorch, running statistics included: equal logits both ways.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"

local torch = dofile "tests/lua/torch.lua"(tap, "ResNet-18")
local path = torch.path

local function images(offset)
  local x = {}
  for i = 0, 2 * 3 * 64 * 64 - 1 do x[i + 1] = math.sin(0.37 * i + offset) end
  return x
end

local function open(seed)
  return assert(mt.trainer{model = mt.models.ResNet18(), input = {3, 64, 64}, classes = 1000, batch = 2, seed = seed,
    loss = mt.nn.CrossEntropyLoss(), optimizer = mt.optim.SGD{lr = 0.01}})
end

-- The largest difference of logits from those in a file, over the largest logit there.
local function distance(logits, name)
  local worst, largest, i = 0, 0, 0
  for line in io.lines(path(name)) do
    i = i + 1
    worst, largest = math.max(worst, math.abs(logits[i] - tonumber(line))), math.max(largest, math.abs(tonumber(line)))
  end
  return i == 2000 and largest > 0 and worst / largest or math.huge
end

local ours = open(1)
for step = 1, 2 do assert(ours:step(images(step), {3, 7})) end
assert(ours:save(path "ours"))
local ran, version = torch.run "tests/peers/pytorch_resnet.py"
tap.ok(ran, ("PyTorch %s loads our file and writes one"):format(version))

local found = distance(ours:predict(images(0)), "ours.txt")
tap.ok(found < 1e-4, ("our weights give our logits there: %.1e of the largest"):format(found))
ours:close()

local theirs = open(2)
local missing = assert(theirs:load(path "theirs"))
tap.ok(#missing.missing == 0 and #missing.unexpected == 0, "PyTorch's file has all that we want, and nothing else")
found = distance(theirs:predict(images(0)), "theirs.txt")
tap.ok(found < 1e-4, ("its weights give its logits here: %.1e of the largest"):format(found))
assert(theirs:save(path "again"))
local again = io.open(path "again", "rb"):read "a"
tap.has(again, '"bn1.num_batches_tracked":{"dtype":"I64","shape":[],', "counters are written as PyTorch has them")
theirs:close()

torch.close()
tap.done()
