-- One row per network: parameters, memory by category and, for networks that a CPU can train, the time of a step.
-- `memtide predict` gives the memory of all of them.
local mt = require "memtide"
local nn, optim, models = mt.nn, mt.optim, mt.models

local function case(name, options, input, batch, loss)
  return {case = name, model = models[name](options), input = input, batch = batch, loss = loss}
end

local ce = nn.CrossEntropyLoss()

return mt.experiment{
  name = "networks", loss = ce, optimizer = optim.Adam{lr = 1e-3},
  cases = {
    case("MLP", {}, {784}, 64), case("LeNet", {}, {1, 28, 28}, 64), case("SimpleCNN", {}, {1, 28, 28}, 64),
    case("SimpleConvNet", {}, {3, 32, 32}, 64), case("SmallerConvNet", {}, {3, 32, 32}, 64),
    case("ResNet18", {}, {3, 224, 224}, 16), case("ResNet50", {}, {3, 224, 224}, 16),
    case("GoogLeNet", {}, {3, 224, 224}, 16, ce + 0.3 * ce + 0.3 * ce),
    case("VGG11", {}, {3, 224, 224}, 16), case("VGG16", {}, {3, 224, 224}, 16), case("VGG19", {}, {3, 224, 224}, 16),
    case("TextClassifier", {}, {64}, 32), case("GPT", {}, {1024}, 1),
    case("DCGANGenerator", {}, {100, 1, 1}, 16, nn.MSELoss()),
    case("DCGANDiscriminator", {}, {3, 64, 64}, 16, nn.BCEWithLogitsLoss()),
    case("UNet", {}, {3, 128, 128}, 4, nn.BCEWithLogitsLoss()),
  },
  steps = 3, warmup = 1,
}
