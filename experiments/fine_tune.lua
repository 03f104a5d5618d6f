-- Fine-tuning: a network learns the digits 0 to 4. Its weights are loaded into a network with a new last layer, of
-- which only that layer is trained; it learns all ten digits in a fraction of the memory.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local dir, epochs = ...
dir, epochs = dir or "digits", math.tointeger(epochs or 3)
if not mt.data.exists(dir .. "/train-images-idx3-ubyte") then require "memtide.digits".write(dir, 2000, 500, 1) end
local train, test = mt.data.mnist(dir, "train"), mt.data.mnist(dir, "test")
local function trainer(model)
  return assert(mt.trainer{model = model, input = {1, 28, 28}, batch = 50, loss = nn.CrossEntropyLoss(),
    optimizer = optim.Adam{lr = 1e-3}})
end
local function learn(run, below)
  local loader = mt.data.loader{train, batch = 50, shuffle = true, seed = 1}
  for _ = 1, epochs do
    for x, y in loader:epoch() do
      local labels = y:values()
      for i, label in ipairs(labels) do if label >= below then labels[i] = -100 end end -- left out of the loss
      assert(run:step(x, labels))
    end
  end
  local loss, accuracy = run:evaluate(mt.data.loader{test, batch = 50})
  local peak = run:memory().peak.bytes
  print(("loss %.4f, accuracy %.1f %%, peak %d bytes"):format(loss, 100 * accuracy, peak))
  return accuracy, peak
end
local path = os.tmpname()
local first = trainer(mt.models.LeNet())
local accuracy, peak = learn(first, 5)
assert(first:save(path))
first:close()local model = mt.models.LeNet()
model:freeze()
model.fc3:unfreeze()
local second = trainer(model)
second:load(path, {strict = false, skip = {"fc3.weight", "fc3.bias"}})
os.remove(path)
local later, less = learn(second, 10)
print(second)
return accuracy, later, peak, less
