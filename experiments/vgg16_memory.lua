-- VGG16 at 224 x 224: the well-known table of its memory, layer by layer (memtide explain), and the memory of a
-- training step (memtide predict), and what articles claim of it (memtide run). 138,357,544 parameters. Its steps are predicted and not
-- run: on a CPU they would take hours.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function VGG16()
  local layers, channels = {}, 3
  for _, width in ipairs{64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool",
                         512, 512, 512, "pool", 512, 512, 512, "pool"} do
    if width == "pool" then
      layers[#layers + 1] = nn.MaxPool2d(2, 2)
    else
      layers[#layers + 1] = nn.Conv2d(channels, width, 3, {padding = 1})
      layers[#layers + 1] = nn.ReLU{inplace = true}
      channels = width
    end
  end
  for _, layer in ipairs{
    nn.AdaptiveAvgPool2d(7), nn.Flatten(),
    nn.Linear(512 * 7 * 7, 4096), nn.ReLU{inplace = true}, nn.Dropout(),
    nn.Linear(4096, 4096),        nn.ReLU{inplace = true}, nn.Dropout(),
    nn.Linear(4096, 1000),
  } do layers[#layers + 1] = layer end
  return nn.Sequential(layers)
end

return mt.experiment{
  name = "vgg16_memory", counting = "table", model = VGG16(), model_name = "VGG16",
  input = {3, 224, 224}, classes = 1000,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01, momentum = 0.9},
  sweep = {
    {"batch", {1, 16, 64}},
    {"precision", {"fp32", "amp_bf16"}},
    {"checkpoint", {"none", "sqrt", "all"}},
  },
  claims = {
    {claim = "the backward pass about doubles the intermediates", source = "the table of VGG16", of = "activations_bytes",
      ratio = {{batch = 64, precision = "fp32", checkpoint = "none", of = {"activations_bytes", "activation_gradients_bytes"}},
        {batch = 64, precision = "fp32", checkpoint = "none"}}, expect = 2, tolerance = 0.2},
    {claim = "gradients double the parameters", source = "the hand calculation", of = "weights_bytes",
      ratio = {{batch = 64, precision = "fp32", checkpoint = "none", of = {"weights_bytes", "gradients_bytes"}},
        {batch = 64, precision = "fp32", checkpoint = "none"}}, expect = 2, tolerance = 0.2},
    {claim = "momentum is as large as the parameters", source = "the hand calculation", of = "weights_bytes",
      equal = {{batch = 64, precision = "fp32", checkpoint = "none", of = "optimizer_bytes"},
        {batch = 64, precision = "fp32", checkpoint = "none"}}, tolerance = 1e-6},
    {claim = "mixed precision about halves the memory", source = "mixed precision", of = "predicted_peak_bytes",
      ratio = {{batch = 64, precision = "amp_bf16", checkpoint = "none"},
        {batch = 64, precision = "fp32", checkpoint = "none"}}, expect = 0.5, tolerance = 0.2},
  },
  predict_only = true,
}
