-- The article's training loop, line by line: loss and allocated and reserved memory after each epoch.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local model = nn.Sequential{
  nn.Conv2d(3, 64, 3),   nn.ReLU(),
  nn.Conv2d(64, 128, 3), nn.ReLU(),
  nn.Flatten(),          nn.Linear(128 * 28 * 28, 10),
}
local dataset = mt.data.random{count = 256, shape = {3, 32, 32}, classes = 10, seed = 1}
local loader = mt.data.loader{dataset, batch = 64, shuffle = true, seed = 1}

local trainer = mt.trainer{
  model = model, input = {3, 32, 32}, classes = 10, batch = 64,
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3}, allocator = "caching",
}

for epoch = 1, 3 do
  local total, batches = 0, 0
  for x, y in loader:epoch() do
    total, batches = total + trainer:step(x, y), batches + 1
  end
  print(("Epoch %d, Loss: %.4f"):format(epoch, total / batches))
  print(("Allocated Memory: %.2f MB"):format(mt.memory.allocated() / 1024 ^ 2))
  print(("Reserved Memory: %.2f MB"):format(mt.memory.reserved() / 1024 ^ 2))
end
trainer:close()
