-- Layers, losses and optimizers: arguments in PyTorch's order, and what a mistake is told.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

-- ---- arguments
local conv = nn.Conv2d(3, 64, 3, {padding = 1})
tap.is(conv.options.in_channels, 3, "positional arguments have PyTorch's names")
tap.is(conv.options.padding, 1, "named ones stand in the last table")
tap.is(nn.Conv2d(3, 64, {3, 5}).text, "in_channels=3 out_channels=64 kernel_size=3x5", "{3, 5} is a pair")
tap.is(nn.Conv2d(3, 6, 3, 1, "same").text, "in_channels=3 out_channels=6 kernel_size=3x3 padding=same",
  "padding may be a word")
tap.is(nn.MaxPool2d(2).text, "kernel_size=2x2", "the stride of pooling is its kernel")
tap.is(nn.ReLU{inplace = true}.options.inplace, true, "one table of names is enough")
tap.is(nn.Linear(4, 2, false).options.bias, false, "false is a value")
tap.is(tostring(optim.SGD{lr = 0.1, momentum = 0.9}), "SGD(lr=0.1, momentum=0.9)", "optimizers alike")
tap.is(tostring(optim.RMSprop(0.1, 0.9, 1e-6, 0.2, 0.3, true)),
  "RMSprop(lr=0.1, alpha=0.9, eps=1e-06, weight_decay=0.2, momentum=0.3, centered=true)", "in PyTorch's order")
tap.is(tostring(optim.AdamW(0.1, {0.8, 0.9}, 1e-6, 0.2, true)),
  "AdamW(lr=0.1, betas=0.8,0.9, eps=1e-06, weight_decay=0.2, amsgrad=true)", "what PyTorch has after them")
tap.is(tostring(optim.RAdam(0.1, {0.8, 0.9}, 1e-6, 0.2, true)),
  "RAdam(lr=0.1, betas=0.8,0.9, eps=1e-06, weight_decay=0.2, decoupled_weight_decay=true)", "RAdam's")
tap.is(tostring(optim.Adagrad(0.1, 0.2, 0.3, 0.4, 1e-6)),
  "Adagrad(lr=0.1, lr_decay=0.2, weight_decay=0.3, initial_accumulator_value=0.4, eps=1e-06)", "each of them")
tap.is(tostring(optim.Adafactor(0.1, -0.5, {1e-3, 1e-2}, 2, 0.1)),
  "Adafactor(lr=0.1, beta2_decay=-0.5, eps=0.001,0.01, d=2, weight_decay=0.1)", "also Adafactor")
tap.is(tostring(optim.AdamW8bit(0.1, {0.8, 0.9}, 1e-6, 0.2, true, {block_size = 128})),
  "AdamW8bit(lr=0.1, betas=0.8,0.9, eps=1e-06, weight_decay=0.2, amsgrad=true, block_size=128)", "torchao's AdamW8bit")
tap.is(tostring(optim.PagedAdamW8bit(0.1, {0.8, 0.9}, 1e-6, 0.2)),
  "PagedAdamW8bit(lr=0.1, betas=0.8,0.9, eps=1e-06, weight_decay=0.2)", "bitsandbytes' paged ones")
tap.is(optim.PagedLion():rate(), 1e-4, "PagedLion's learning rate")
tap.raises("optim.PagedSGD does not exist", "one that bitsandbytes has not either", function() return optim.PagedSGD end)
tap.is(optim.RMSprop():rate(), 0.01, "each has PyTorch's learning rate")
tap.is(optim.Adam():rate(), 0.001, "which are not alike")
tap.is(tostring(nn.CrossEntropyLoss{label_smoothing = 0.1}), "CrossEntropyLoss(label_smoothing=0.1)", "and losses")

-- ---- containers
local model = nn.Sequential{nn.Linear(4, 4), nn.Residual(nn.Sequential{nn.ReLU()}), nn.Checkpoint(nn.Tanh())}
tap.is(#model, 3, "a container is the list of its layers")
tap.is(#nn.Sequential(nn.ReLU(), nn.Tanh()), 2, "Sequential takes arguments too")
tap.has(tostring(model), "  (1): Residual(\n    (0): Sequential(\n      (0): ReLU()", "a tree prints indented")

-- ---- mistakes
local text = select(2, pcall(function() return nn.Conv2d(3, 64, 3, {pading = 1}) end))
tap.has(text, tap.line(-1), "a wrong option is reported with the script's line")
tap.has(text, 'unknown option "pading"', "and its name")
tap.has(text, "did you mean \"padding\"?", "and the nearest known one")
tap.raises('option "out_features" is required', "a missing argument is named", nn.Linear, 3)
tap.raises("takes at most 3 arguments", "too many arguments", nn.Linear, 1, 2, true, 4)
tap.raises("takes at most 4 arguments (kernel_size, stride, padding, dilation), and by name ceil_mode, found 5",
  "what PyTorch has others in front of stands by name", nn.MaxPool2d, 2, 2, 0, 1, true)
tap.raises("takes at most 4 arguments", "of attention, too", nn.MultiheadAttention, 8, 2, 0, true, true)
tap.raises("takes at most 0 arguments", "and of a loss", nn.MSELoss, "sum")
tap.is(nn.NLLLoss({1, 0.5}, {reduction = "sum"}).text, "weight=1,0.5 reduction=sum", "class weights come first")
tap.raises("expected numbers, found a string as number 2", "a class weight that is none", nn.CrossEntropyLoss, {1, "a"})
tap.raises('expected a list of numbers or "none", found 3', "one number", nn.CrossEntropyLoss, {weight = 3})
tap.raises("expected finite numbers, found inf as number 1", "an infinite one", nn.NLLLoss, {math.huge, 1})
tap.is(nn.HuberLoss("sum", 0.5).text, "reduction=sum delta=0.5", "HuberLoss's stand in PyTorch's order")
tap.raises('expected "mean" or "sum"', "a reduction that gives many numbers", nn.L1Loss, {reduction = "none"})
tap.is(nn.MaxPool2d(3, 2, {ceil_mode = true}).text, "kernel_size=3x3 stride=2x2 ceil_mode=true", "by name it is known")
tap.raises("expected a whole number", "a fraction where a whole number belongs", nn.Linear, 1.5, 2)
tap.raises("expected true or false", "a number where a flag belongs", nn.Linear, 1, 2, {bias = 1})
tap.raises("is given twice", "an argument by position and by name", nn.Linear, 1, 2, {in_features = 3})
tap.raises("element 2 is a number", "a container of something else", nn.Sequential, {nn.ReLU(), 7})
tap.raises("element 2 is a nil", "a hole in a container", nn.Sequential, {nn.ReLU(), nil, nn.Tanh()})
tap.raises("element 1 is a loss", "a loss is no layer", nn.Sequential, {nn.MSELoss()})
tap.raises('found the name "layer"', "a name in a list of layers", nn.Sequential, {layer = nn.ReLU()})
tap.raises('found the name "0"', "a list that starts at 0", nn.Sequential, {[0] = nn.ReLU(), nn.Tanh()})
tap.raises('found the name "-1"', "or below", nn.Sequential, {[-1] = nn.ReLU()})
text = select(2, pcall(function() return optim.Adam{lr = -1} end))
tap.has(text, tap.line(-1) .. " Adam: lr must not be negative, found -1",
  "an optimizer's values are checked where it is made")
tap.raises("(lr, momentum, dampening, weight_decay, nesterov), and by name clip_norm, found 6",
  "what PyTorch has not stands by name", optim.SGD, 0.1, 0, 0, 0, false, 1)
tap.raises("RMSprop: alpha must not be negative, found -0.5", "a mean that grows", optim.RMSprop, {alpha = -0.5})
tap.raises("Adafactor: beta2_decay must not be above 0", "a share that grows", optim.Adafactor, {beta2_decay = 0.1})
tap.raises("Adafactor: d must be at least 1, found 0.5", "a threshold below 1", optim.Adafactor, {d = 0.5})
tap.raises("Adafactor: eps must not be negative, found 0 and -1", "an eps of two", optim.Adafactor, {eps = {0, -1}})
tap.raises("AdamW8bit: block_size must be from 1 to 2048, found 4096", "a block that is too large", optim.AdamW8bit,
  {block_size = 4096})
tap.raises("AdamW8bit takes at most 5 arguments", "a block size in place", optim.AdamW8bit, 0.1, {0.8, 0.9}, 1e-6, 0,
  false, 128)
tap.raises('unknown option "betas"', "another optimizer's option", optim.RMSprop, {betas = {0.9, 0.99}})
tap.raises("SGD: nesterov", "nesterov without momentum", optim.SGD, {nesterov = true})
tap.raises("AdamW: betas", "betas that are none", optim.AdamW, {betas = {1, 2}})
tap.raises('did you mean "Conv2d"?', "a layer that does not exist", function() return nn.Conv2D(1, 2, 3) end)
tap.raises("there are Adadelta, Adafactor, Adagrad", "or which there are", function() return optim.LBFGS() end)
tap.raises("element 2 is a function, not a layer: a call makes one, as nn.Flatten()", "a layer that was not called",
  nn.Sequential, {nn.ReLU(), function() end})
tap.raises('did you mean "AdamW"?', "an optimizer that does not exist", function() return optim.Adamw() end)
tap.raises("CrossEntropyLoss is called: there is no tensor type; mt.trainer", "a loss of tensors",
  function() return nn.CrossEntropyLoss()({}, {}) end)
tap.raises("MSELoss has no backward: mt.trainer", "a backward pass", function() return nn.MSELoss():backward() end)
tap.raises("a model is run by a trainer", "a model that is called", function() return nn.Linear(1, 2)({1}) end)

local function wrapped(forward)
  return nn.Graph{c = nn.Linear(4, 4), d = nn.Linear(4, 2), shortcut = false, forward = forward}
end
local function names(of)
  local list = {}
  for i, p in ipairs(assert(require "memtide.core".network(of, nn.CrossEntropyLoss(), {2, 4})):params()) do list[i] = p.name end
  return table.concat(list, " ")
end
tap.is(names(wrapped(function(self, x)
  local y = nn.Checkpoint(self.c)(x)
  if self.shortcut then y = self.shortcut(y) end
  return self.d(y)
end)), "c.weight c.bias d.weight d.bias", "nn.Checkpoint(self.c)(x): the parameters are c's")
tap.raises("for `if self.bypass then`: bypass = false", "a name that the table lacks", wrapped,
  function(self, x) return self.bypass and x or self.d(self.c(x)) end)
tap.raises("undefined variable", "an undefined global", function() return undefined_name end) -- luacheck: ignore
tap.raises('did you mean "print"?', "the nearest global", function() return primt end) -- luacheck: ignore

tap.done()
