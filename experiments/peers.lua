-- The networks that are also measured in PyTorch: experiments/peers/pytorch.py --like peers.csv runs these rows there,
-- and memtide compare peers.csv pytorch.csv sets the two side by side.
local mt = require "memtide"
local nn = mt.nn

local function ConvNet(width)
  return nn.Sequential{nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3), nn.ReLU(),
    nn.Flatten(), nn.Linear(2 * width * 28 * 28, 10)}
end

local function VGG16()
  local layers, channels = {}, 3
  for _, block in ipairs{{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}} do
    for _ = 1, block[2] do
      layers[#layers + 1] = nn.Conv2d(channels, block[1], 3, {padding = 1})
      layers[#layers + 1], channels = nn.ReLU{inplace = true}, block[1]
    end
    layers[#layers + 1] = nn.MaxPool2d(2, 2)
  end
  return nn.Sequential{nn.Sequential(layers), nn.Flatten(),
    nn.Linear(512 * 7 * 7, 4096), nn.ReLU{inplace = true}, nn.Dropout(),
    nn.Linear(4096, 4096), nn.ReLU{inplace = true}, nn.Dropout(), nn.Linear(4096, 1000)}
end

local MnistCNN = nn.Sequential{nn.Conv2d(1, 16, 3, {padding = 1}), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten(),
  nn.Linear(16 * 14 * 14, 10)}
local MLP = nn.Sequential{nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)}

local function case(name, model, batch, input, classes)
  return {case = name, model_name = name, model = model, batch = batch, input = input, classes = classes}
end
return mt.experiment{
  name = "peers", loss = nn.CrossEntropyLoss(), optimizer = mt.optim.Adam{lr = 1e-3}, steps = 50, warmup = 10,
  cases = {
    case("simple_convnet", ConvNet(64), 64, {3, 32, 32}, 10), case("smaller_convnet", ConvNet(32), 64, {3, 32, 32}, 10),
    case("mnist_cnn", MnistCNN, 64, {1, 28, 28}, 10), case("mlp", MLP, 256, {784}, 10),
    case("vgg16", VGG16, 64, {3, 224, 224}, 1000),
  },
  sweep = {{"precision", {"fp32", "tf32", "amp_fp16", "amp_bf16", "bf16"}}},
}
