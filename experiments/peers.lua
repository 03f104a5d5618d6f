-- Networks that are also measured in PyTorch: experiments/peers/pytorch.py --like peers.csv runs these rows there, and
-- memtide compare peers.csv pytorch.csv shows both side by side.
local mt = require "memtide"
local nn, models = mt.nn, mt.models

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

-- data: arguments of mt.data.random
local function case(name, model, batch, data)
  data.count, data.seed = 50000, 1
  return {case = name, model_name = name, model = model, batch = batch, data = mt.data.random(data)}
end
local function images(size, classes) return {shape = size, classes = classes} end

return mt.experiment{
  name = "peers", loss = nn.CrossEntropyLoss(), optimizer = mt.optim.Adam{lr = 1e-3}, steps = 50, warmup = 10,
  drop_last = true,
  cases = {
    case("simple_convnet", ConvNet(64), 64, images({3, 32, 32}, 10)),
    case("smaller_convnet", ConvNet(32), 64, images({3, 32, 32}, 10)),
    case("mnist_cnn", MnistCNN, 64, images({1, 28, 28}, 10)),
    case("mlp", MLP, 256, images({784}, 10)),
    case("vgg16", VGG16, 64, images({3, 224, 224}, 1000)),
    case("resnet18", models.ResNet18(), 16, images({3, 64, 64}, 1000)),
    case("lstm", models.TextClassifier{vocab_size = 1000, embedding_dim = 256, hidden_size = 256, num_layers = 2}, 32,
      {shape = {64}, tokens = 1000, classes = 2}),
    case("gpt", models.GPT{block_size = 128, vocab_size = 512, n_layer = 4, n_head = 4, n_embd = 128}, 8,
      {shape = {128}, tokens = 512, classes = 512, target = {128}}),
    case("llama", models.Llama{vocab_size = 512, hidden_size = 384, intermediate_size = 1024, num_hidden_layers = 6,
      num_attention_heads = 6, num_key_value_heads = 2}, 8,
      {shape = {128}, tokens = 512, classes = 512, target = {128}}),
    case("vit", models.ViTForImageClassification{image_size = 64, patch_size = 8, hidden_size = 192, num_hidden_layers = 6,
      num_attention_heads = 3, intermediate_size = 768, num_labels = 100}, 32, images({3, 64, 64}, 100)),
  },
  sweep = {{"precision", {"fp32", "tf32", "amp_fp16", "amp_bf16", "bf16"}}},
}
