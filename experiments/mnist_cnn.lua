-- Another article's SimpleCNN, trained on digits from IDX files: those of MNIST if their folder is given (`-- DIR`),
-- otherwise a small generated dataset. That article gives its Linear 16*7*7 inputs, but one MaxPool2d(2, 2) leaves
-- 14 x 14, so it has 16*14*14 here.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local dir = ... or "digits"
local images = dir .. "/train-images-idx3-ubyte"
if not mt.data.exists(images) and not mt.data.exists(images .. ".gz") then
  require "memtide.digits".write(dir, 2000, 500, 1)
end

return mt.experiment{
  name = "mnist_cnn", model_name = "SimpleCNN",
  model = nn.Sequential{
    nn.Conv2d(1, 16, 3, {padding = 1}), nn.ReLU(), nn.MaxPool2d(2, 2),
    nn.Flatten(), nn.Linear(16 * 14 * 14, 10),
  },
  data = mt.data.mnist(dir, "train"), batch = 32, shuffle = true, drop_last = true,
  test_data = mt.data.mnist(dir, "test"),
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3},
  epochs = 2, warmup = 0,
}
