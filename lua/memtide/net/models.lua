-- mt.models: well-known networks, made of mt.nn. Names of parameters and defaults are those of the PyTorch code that
-- each comes from (torchvision, the DCGAN example, nanoGPT, Hugging Face), so that its weights can be loaded. Each
-- takes one table of options. Classifiers return logits.
local nn = require "memtide.net.nn".nn
local shared = require "memtide.net.model"
local util = require "memtide.base.util"

local models = {}

local define, graph = shared.define, shared.graph

local function model(name, defaults, build) define(models, name, defaults, build) end

local function append(list, ...)
  for _, item in ipairs{...} do list[#list + 1] = item end
  return list
end

-- ---- small networks

model("MLP", {in_features = 784, hidden = {512, 512}, num_classes = 10}, function(o)
  local layers, features = {}, o.in_features
  for _, width in ipairs(o.hidden) do
    append(layers, nn.Linear(features, width), nn.ReLU())
    features = width
  end
  return nn.Sequential(append(layers, nn.Linear(features, o.num_classes)))
end)

-- For images of `size` x `size`; padding 2 makes MNIST's 28 x 28 LeCun's 32 x 32.
model("LeNet", {in_channels = 1, num_classes = 10, size = 28, padding = 2}, function(o)
  local side = ((o.size + 2 * o.padding - 4) // 2 - 4) // 2
  return nn.Graph{
    conv1 = nn.Conv2d(o.in_channels, 6, 5, {padding = o.padding}), conv2 = nn.Conv2d(6, 16, 5),
    fc1 = nn.Linear(16 * side * side, 120), fc2 = nn.Linear(120, 84), fc3 = nn.Linear(84, o.num_classes),
    forward = function(self, x)
      x = nn.max_pool2d(nn.relu(self.conv1(x)), 2)
      x = nn.max_pool2d(nn.relu(self.conv2(x)), 2):flatten()
      return self.fc3(nn.relu(self.fc2(nn.relu(self.fc1(x)))))
    end,
  }
end)

local function conv_net(o)
  local side = o.size - 4
  return nn.Sequential{
    nn.Conv2d(o.in_channels, o.width, 3), nn.ReLU(), nn.Conv2d(o.width, 2 * o.width, 3), nn.ReLU(),
    nn.Flatten(), nn.Linear(2 * o.width * side * side, o.num_classes),
  }
end
model("SimpleConvNet", {in_channels = 3, width = 64, size = 32, num_classes = 10}, conv_net)
model("SmallerConvNet", {in_channels = 3, width = 32, size = 32, num_classes = 10}, conv_net)

model("SimpleCNN", {in_channels = 1, size = 28, num_classes = 10}, function(o)
  local side = o.size // 2
  return nn.Sequential{
    nn.Conv2d(o.in_channels, 16, 3, {padding = 1}), nn.ReLU(), nn.MaxPool2d(2, 2),
    nn.Flatten(), nn.Linear(16 * side * side, o.num_classes),
  }
end)

-- ---- torchvision's VGG

local function vgg(blocks)
  return function(o)
    local features, channels = {}, 3
    for i, width in ipairs{64, 128, 256, 512, 512} do
      for _ = 1, blocks[i] do
        append(features, nn.Conv2d(channels, width, 3, {padding = 1}), nn.ReLU{inplace = true})
        channels = width
      end
      append(features, nn.MaxPool2d(2, 2))
    end
    return nn.Sequential{
      {"features", nn.Sequential(features)}, {"avgpool", nn.AdaptiveAvgPool2d(7)}, {"flatten", nn.Flatten()},
      {"classifier", nn.Sequential{
        nn.Linear(512 * 7 * 7, 4096), nn.ReLU{inplace = true}, nn.Dropout(o.dropout),
        nn.Linear(4096, 4096), nn.ReLU{inplace = true}, nn.Dropout(o.dropout), nn.Linear(4096, o.num_classes),
      }},
    }
  end
end
for name, blocks in pairs{VGG11 = {1, 1, 2, 2, 2}, VGG16 = {2, 2, 3, 3, 3}, VGG19 = {2, 2, 4, 4, 4}} do
  model(name, {num_classes = 1000, dropout = 0.5}, vgg(blocks))
end

-- ---- torchvision's ResNet

local function conv(from, to, kernel, stride)
  return nn.Conv2d(from, to, kernel, {stride = stride, padding = kernel // 2, bias = false})
end

local function downsample(from, to, stride)
  if stride == 1 and from == to then return nn.Identity() end
  return nn.Sequential{conv(from, to, 1, stride), nn.BatchNorm2d(to)}
end

local function basic_block(from, planes, stride)
  return nn.Graph{
    conv1 = conv(from, planes, 3, stride), bn1 = nn.BatchNorm2d(planes),
    conv2 = conv(planes, planes, 3, 1), bn2 = nn.BatchNorm2d(planes),
    downsample = downsample(from, planes, stride),
    forward = function(self, x)
      local out = nn.relu(self.bn1(self.conv1(x)), {inplace = true})
      out = self.bn2(self.conv2(out))
      return nn.relu(out + self.downsample(x), {inplace = true})
    end,
  }
end

-- The stride is in the 3 x 3 convolution, as in torchvision.
local function bottleneck(from, planes, stride)
  return nn.Graph{
    conv1 = conv(from, planes, 1, 1), bn1 = nn.BatchNorm2d(planes),
    conv2 = conv(planes, planes, 3, stride), bn2 = nn.BatchNorm2d(planes),
    conv3 = conv(planes, 4 * planes, 1, 1), bn3 = nn.BatchNorm2d(4 * planes),
    downsample = downsample(from, 4 * planes, stride),
    forward = function(self, x)
      local out = nn.relu(self.bn1(self.conv1(x)), {inplace = true})
      out = nn.relu(self.bn2(self.conv2(out)), {inplace = true})
      out = self.bn3(self.conv3(out))
      return nn.relu(out + self.downsample(x), {inplace = true})
    end,
  }
end

local function resnet(block, expansion, blocks)
  return function(o)
    local channels, what = 64, {conv1 = conv(o.in_channels, 64, 7, 2), bn1 = nn.BatchNorm2d(64)}
    for stage, count in ipairs(blocks) do
      local planes, layers = 32 << stage, {}
      for i = 1, count do
        layers[i] = block(channels, planes, i == 1 and stage > 1 and 2 or 1)
        channels = planes * expansion
      end
      what["layer" .. stage] = nn.Sequential(layers)
    end
    what.fc = nn.Linear(channels, o.num_classes)
    function what.forward(self, x)
      x = nn.relu(self.bn1(self.conv1(x)), {inplace = true})
      x = nn.max_pool2d(x, 3, {stride = 2, padding = 1})
      for stage = 1, #blocks do x = self["layer" .. stage](x) end
      return self.fc(nn.adaptive_avg_pool2d(x, 1):flatten())
    end
    return nn.Graph(what)
  end
end
model("ResNet18", {in_channels = 3, num_classes = 1000}, resnet(basic_block, 1, {2, 2, 2, 2}))
model("ResNet50", {in_channels = 3, num_classes = 1000}, resnet(bottleneck, 4, {3, 4, 6, 3}))

-- ---- torchvision's GoogLeNet

local function basic_conv(from, to, kernel, stride)
  return nn.Sequential{
    {"conv", conv(from, to, kernel, stride or 1)}, {"bn", nn.BatchNorm2d(to, {eps = 0.001})},
    {"relu", nn.ReLU{inplace = true}},
  }
end

-- Four parallel branches; the third has 3 x 3 as in torchvision, where the article has 5 x 5.
local function inception(from, one, three_in, three, five_in, five, pool)
  return nn.Graph{
    branch1 = basic_conv(from, one, 1),
    branch2 = nn.Sequential{basic_conv(from, three_in, 1), basic_conv(three_in, three, 3)},
    branch3 = nn.Sequential{basic_conv(from, five_in, 1), basic_conv(five_in, five, 3)},
    branch4 = nn.Sequential{nn.MaxPool2d(3, 1, 1, {ceil_mode = true}), basic_conv(from, pool, 1)},
    forward = function(self, x)
      return nn.cat({self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)}, 1)
    end,
  }
end

local function inception_aux(from, o)
  return nn.Sequential{
    {"pool", nn.AdaptiveAvgPool2d(4)}, {"conv", basic_conv(from, 128, 1)}, {"flatten", nn.Flatten()},
    {"fc1", nn.Linear(2048, 1024)}, {"relu", nn.ReLU{inplace = true}}, {"dropout", nn.Dropout(o.dropout_aux)},
    {"fc2", nn.Linear(1024, o.num_classes)},
  }
end

-- pool: the window of the pooling before the block; aux: the head after it
local INCEPTION = {
  {"inception3a", 192, 64, 96, 128, 16, 32, 32, pool = 3}, {"inception3b", 256, 128, 128, 192, 32, 96, 64},
  {"inception4a", 480, 192, 96, 208, 16, 48, 64, pool = 3, aux = "aux1"},
  {"inception4b", 512, 160, 112, 224, 24, 64, 64}, {"inception4c", 512, 128, 128, 256, 24, 64, 64},
  {"inception4d", 512, 112, 144, 288, 32, 64, 64, aux = "aux2"}, {"inception4e", 528, 256, 160, 320, 32, 128, 128},
  {"inception5a", 832, 256, 160, 320, 32, 128, 128, pool = 2}, {"inception5b", 832, 384, 192, 384, 48, 128, 128},
}

-- aux_logits: returns the logits, those of aux2 and those of aux1, for loss + 0.3 * loss + 0.3 * loss
model("GoogLeNet", {in_channels = 3, num_classes = 1000, aux_logits = true, dropout = 0.2, dropout_aux = 0.7},
  function(o)
    local what = {
      conv1 = basic_conv(o.in_channels, 64, 7, 2), conv2 = basic_conv(64, 64, 1), conv3 = basic_conv(64, 192, 3),
      dropout = nn.Dropout(o.dropout), fc = nn.Linear(1024, o.num_classes), order = {"conv1", "conv2", "conv3"},
    }
    if o.aux_logits then what.aux1, what.aux2 = inception_aux(512, o), inception_aux(528, o) end
    for _, block in ipairs(INCEPTION) do
      what[block[1]] = inception(table.unpack(block, 2))
      append(what.order, block[1])
    end
    append(what.order, "aux1", "aux2", "dropout", "fc")
    function what.forward(self, x)
      local heads = {}
      x = nn.max_pool2d(self.conv1(x), 3, {stride = 2, ceil_mode = true})
      x = self.conv3(self.conv2(x))
      for _, block in ipairs(INCEPTION) do
        if block.pool then x = nn.max_pool2d(x, block.pool, {stride = 2, ceil_mode = true}) end
        x = self[block[1]](x)
        if o.aux_logits and block.aux then table.insert(heads, 1, self[block.aux](x)) end
      end
      return self.fc(self.dropout(x:mean{2, 3})), table.unpack(heads)
    end
    return nn.Graph(what)
  end)

-- ---- sequences

-- (N, T) tokens -> (N, num_classes), from the last step of the last layer
model("TextClassifier", {vocab_size = 10000, embedding_dim = 128, hidden_size = 256, num_layers = 1, num_classes = 2,
  dropout = 0}, function(o)
  return nn.Graph{
    embedding = nn.Embedding(o.vocab_size, o.embedding_dim),
    lstm = nn.LSTM(o.embedding_dim, o.hidden_size,
      {num_layers = o.num_layers, batch_first = true, dropout = o.dropout}),
    fc = nn.Linear(o.hidden_size, o.num_classes),
    forward = function(self, x) return self.fc(self.lstm(self.embedding(x)):select(1, -1)) end,
  }
end)

local function gpt_block(o)
  return graph(o, {
    ln_1 = nn.LayerNorm(o.n_embd, {bias = o.bias}),
    attn = nn.CausalSelfAttention(o.n_embd, o.n_head, {dropout = o.dropout, bias = o.bias}),
    ln_2 = nn.LayerNorm(o.n_embd, {bias = o.bias}),
    mlp = nn.Sequential{
      {"c_fc", nn.Linear(o.n_embd, 4 * o.n_embd, {bias = o.bias})}, {"gelu", nn.GELU()},
      {"c_proj", nn.Linear(4 * o.n_embd, o.n_embd, {bias = o.bias})}, {"dropout", nn.Dropout(o.dropout)},
    },
    forward = function(self, x, ...)
      x = x + self.attn(self.ln_1(x), ...)
      return x + self.mlp(self.ln_2(x))
    end,
  })
end

-- (N, T) tokens -> (N T, vocab_size), the logits of the next token of each. The defaults are those of GPT-2 with 124M
-- parameters. The output layer shares the embedding's weight. packed: rows hold several sequences, whose positions are a
-- second input, position_ids (N, T).
model("GPT", {block_size = 1024, vocab_size = 50257, n_layer = 12, n_head = 12, n_embd = 768, dropout = 0,
  bias = true, packed = false}, function(o)
  local wte, blocks = nn.Embedding(o.vocab_size, o.n_embd), {}
  for i = 1, o.n_layer do blocks[i] = gpt_block(o) end
  return graph(o, {
    transformer = graph(o, {
      wte = wte, wpe = shared.positions(o, o.block_size, o.n_embd), drop = nn.Dropout(o.dropout), h = blocks,
      ln_f = nn.LayerNorm(o.n_embd, {bias = o.bias}),
      forward = function(self, x, ...)
        x = self.drop(shared.placed(self.wpe, self.wte(x), ...))
        for _, block in ipairs(self.h) do x = block(x, ...) end
        return self.ln_f(x)
      end,
    }),
    lm_head = nn.Linear(o.n_embd, o.vocab_size, {bias = false, tied = wte}),
    forward = function(self, x, ...) return self.lm_head(self.transformer(x, ...)):flatten(0, 1) end,
  })
end)

-- ---- DCGAN

-- Side of the smallest image, and how often it is doubled to reach `size`: 64 = 4 * 2^4, 28 = 7 * 2^2.
local function pyramid(name, size)
  local side, doublings = size, 0
  while side > 7 and side % 2 == 0 do side, doublings = side // 2, doublings + 1 end
  if side > 7 or doublings == 0 then
    util.fail("models.%s: size: expected 2 to 7 times a power of 2 such as 64 or 28, found %d", name, size)
  end
  return side, doublings
end

-- noise (N, latent, 1, 1) -> images (N, channels, size, size) in [-1, 1]
model("DCGANGenerator", {latent = 100, features = 64, channels = 3, size = 64}, function(o)
  local side, doublings = pyramid("DCGANGenerator", o.size)
  local width = o.features << (doublings - 1)
  local main = {nn.ConvTranspose2d(o.latent, width, side, {bias = false}), nn.BatchNorm2d(width),
    nn.ReLU{inplace = true}}
  for _ = 2, doublings do
    append(main, nn.ConvTranspose2d(width, width // 2, 4, {stride = 2, padding = 1, bias = false}),
      nn.BatchNorm2d(width // 2), nn.ReLU{inplace = true})
    width = width // 2
  end
  append(main, nn.ConvTranspose2d(width, o.channels, 4, {stride = 2, padding = 1, bias = false}), nn.Tanh())
  return nn.Sequential{{"main", nn.Sequential(main)}}
end)

-- images -> one logit each (N, 1), for BCEWithLogitsLoss
model("DCGANDiscriminator", {features = 64, channels = 3, size = 64}, function(o)
  local side, halvings = pyramid("DCGANDiscriminator", o.size)
  local width = o.features
  local main = {nn.Conv2d(o.channels, width, 4, {stride = 2, padding = 1, bias = false}),
    nn.LeakyReLU(0.2, {inplace = true})}
  for _ = 2, halvings do
    append(main, nn.Conv2d(width, 2 * width, 4, {stride = 2, padding = 1, bias = false}), nn.BatchNorm2d(2 * width),
      nn.LeakyReLU(0.2, {inplace = true}))
    width = 2 * width
  end
  append(main, nn.Conv2d(width, 1, side, {bias = false}), nn.Flatten())
  return nn.Sequential{{"main", nn.Sequential(main)}}
end)

-- ---- U-Net

local function double_conv(from, to)
  return nn.Sequential{
    conv(from, to, 3, 1), nn.BatchNorm2d(to), nn.ReLU{inplace = true},
    conv(to, to, 3, 1), nn.BatchNorm2d(to), nn.ReLU{inplace = true},
  }
end

-- images (N, in_channels, H, W), sides divisible by 2^depth -> logits (N, num_classes, H, W)
model("UNet", {in_channels = 3, num_classes = 1, features = 64, depth = 4}, function(o)
  local down, up, merge = {}, {}, {}
  for level = 1, o.depth do
    local width = o.features << level
    down[level] = double_conv(width // 2, width)
    up[level] = nn.ConvTranspose2d(width, width // 2, 2, {stride = 2})
    merge[level] = double_conv(width, width // 2)
  end
  return nn.Graph{
    inc = double_conv(o.in_channels, o.features), down = down, up = up, merge = merge,
    outc = nn.Conv2d(o.features, o.num_classes, 1),
    forward = function(self, x)
      local kept = {self.inc(x)}
      for level = 1, o.depth do kept[level + 1] = self.down[level](nn.max_pool2d(kept[level], 2)) end
      x = kept[o.depth + 1]
      for level = o.depth, 1, -1 do x = self.merge[level](nn.cat({kept[level], self.up[level](x)}, 1)) end
      return self.outc(x)
    end,
  }
end)

require "memtide.net.decoders"(models)
require "memtide.net.encoders"(models)
require "memtide.net.clip"(models)
require "memtide.net.seq2seq"(models)

setmetatable(models, {
  __index = function(_, name)
    util.fail("models.%s does not exist%s", tostring(name), util.meant(name, util.sorted_keys(models)))
  end,
})

return models
