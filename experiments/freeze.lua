-- What freezing saves: ResNet-18 with more and more layers frozen, beginning at the input. A frozen layer has no
-- gradient and no optimizer state, and no activations are kept before the first trained layer.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local PARTS = {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4"}

return mt.experiment{
  name = "freeze",
  model = function(cell)
    local model = mt.models.ResNet18{num_classes = 10}
    for i = 1, cell.frozen_parts do model[PARTS[i]]:freeze() end
    return model
  end,
  model_name = "ResNet18", input = {3, 64, 64}, classes = 10, batch = 16,
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3},
  sweep = {{"frozen_parts", {0, 2, 3, 4, 5, 6}}},
  steps = 3, warmup = 1,
}
