-- The plain loop: steps, evaluation, prediction, memory as in torch.cuda, loaders.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function open(more)
  local options = {model = nn.Sequential{nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)}, input = {3}, batch = 4,
    loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.5}, seed = 5}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.trainer(options)
end

local x = {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1}
local y = {0, 1, 0, 1}

-- ---- learning
tap.is(mt.memory.allocated(), 0, "nothing is allocated before")
local trainer = open()
tap.ok(mt.memory.allocated() > 0 and mt.memory.reserved() >= mt.memory.allocated(), "parameters are, then")
local first, last = trainer:step(x, y), 0
for _ = 1, 60 do last = trainer:step(x, y) end
tap.ok(last < first / 4, "the loss falls")
local loss, outputs, shape = trainer:evaluate(x, y)
tap.ok(loss < first, "evaluation gives the loss")
tap.is(#outputs == 8 and table.concat(shape, " "), "4 2", "and the outputs")
tap.is(trainer:correct(x, y), 4, "all labels are learnt")
local predicted = trainer:predict(x)
tap.near(predicted[1], outputs[1], 0, "prediction gives the same outputs")
tap.is(select(2, trainer:parameters()), 3 * 8 + 8 + 8 * 2 + 2, "parameters are counted")
tap.ok(mt.memory.max_allocated() >= mt.memory.allocated(), "the peak is not below the present")
mt.memory.reset_peak()
tap.is(mt.memory.max_reserved(), mt.memory.reserved(), "after a reset the peak is the present")

-- ---- an incomplete batch is the batch of its size
local weights = trainer:read("0.weight")
local three = open{batch = 3}
for _, name in ipairs{"0.weight", "0.bias", "2.weight", "2.bias"} do three:write(name, (trainer:read(name))) end
tap.is(#weights, 24, "values are read")
local part = {table.unpack(x, 1, 9)}
tap.near(trainer:step(part, {0, 1, 0}), three:step(part, {0, 1, 0}), 1e-6, "3 samples of 4 give the loss of 3")
tap.near(trainer:read("0.weight")[1], three:read("0.weight")[1], 1e-6, "and the update of 3")
tap.raises(tap.line(1) .. " input: expected 1 x (4, 3) values, found 15", "more samples than the batch", function()
  trainer:step(table.move(x, 1, 12, 4, {1, 1, 1}), y) end)

-- ---- accumulation: one step over all micro-batches
local whole, parts = open{seed = 2}, open{seed = 2, batch = 2, accumulate = 2}
tap.near(whole:step(x, y), parts:step(x, y), 1e-6, "2 x 2 samples give the loss of 4")
tap.near(whole:read("2.weight")[3], parts:read("2.weight")[3], 1e-6, "and the update of 4")

-- ---- loaders
local dataset = mt.data.random{count = 10, shape = {3}, classes = 2, seed = 1}
local loader = mt.data.loader{dataset, batch = 4, shuffle = true, seed = 3}
local sizes, batches = {}, 0
for bx, by, n in loader:epoch() do
  sizes[#sizes + 1] = n
  tap.ok(trainer:step(bx, by) > 0, ("a batch of %d is taken"):format(n))
  batches = batches + 1
end
tap.is(table.concat(sizes, " "), "4 4 2", "the last batch is what is left")
tap.is(loader:batches(), batches, "batches of an epoch are counted")
loader:epoch()()
local count = 0
for _, _, n in loader:epoch() do count = count + n end
tap.is(count, 10, "an epoch begins at its beginning, also after a break")
tap.is(dataset:info().count, 10, "a dataset tells its size")
tap.raises("unknown key", "a misspelt option", mt.data.loader, {dataset, btach = 3})
for _, case in ipairs{{0, 0}, {1, 1}, {4, 4}, {true, 1}, {false, 0}} do
  local info = mt.data.loader{dataset, batch = 4, prefetch = case[1]}:info()
  tap.ok(info.prefetch == case[2] and info.bytes == case[2] * 4 * (3 * 4 + 4), ("prefetch = %s: %d batches ahead, %d bytes")
    :format(case[1], info.prefetch, info.bytes))
end
for _, value in ipairs{-1, 1025, 1.5, "yes"} do
  tap.raises("prefetch: expected a number of batches from 0 to 1024, true or false, found", "prefetch = " .. value,
    mt.data.loader, {dataset, batch = 4, prefetch = value})
end
local good, failure = pcall(mt.data.idx, "no-such-file", "nor-this")
tap.ok(not good and failure.code == "file", "a missing file is told by its code")

-- ---- closing
for _, t in ipairs{trainer, three, whole, parts} do t:close() end
tap.is(mt.memory.allocated(), 0, "nothing is left after close")
tap.is(trainer:close(), true, "close twice")
local none, message, code = open{memory = 64}
tap.is(none, nil, "no trainer without memory")
tap.has(message, "out of memory", "but a message")
tap.is(code, "oom", "and a code")
tap.raises('unknown key "optimiser"', "an unknown key", open, {optimiser = optim.SGD()})
-- ---- misuse is a mistake of the script: told at its line, with what was expected and found
local function wrong(text, what, f, ...)
  local good_call, problem = pcall(f, ...)
  tap.ok(not good_call and not tostring(problem):find("^memtide/"), what .. " is no bug of memtide")
  tap.has(tostring(problem), text, "... " .. text)
end
local data, one = mt.data, open()
wrong("data.mnist: folder: expected a string, found nil", "mnist()", data.mnist)
wrong('data.mnist: expected "train" or "test", found "tset"', "another part", data.mnist, ".", "tset")
wrong("data.random: expected a table, found nil", "random()", data.random)
wrong('data.random: "count" is missing', "random{}", data.random, {})
wrong('data.random: "shape" is missing', "random{count =}", data.random, {count = 3})
wrong("expected a shape such as {3, 32, 32}, found 7", "a shape that is a number", data.random, {count = 3, shape = 7})
wrong('count: expected a whole number, found "x"', "a count that is a word", data.random, {count = "x", shape = {3}})
wrong("data.idx: images: expected a string, found", "idx()", data.idx)
wrong("data.npy: inputs: expected a string, found", "npy()", data.npy)
wrong("data.cifar10: files: expected a list of 1 to 4096 files, found 0", "cifar10{}", data.cifar10, {})
wrong("data.cifar10: files: expected a string, found 7", "cifar10{7}", data.cifar10, {7})
wrong("data.cifar10: folder: expected a string, found nil", "cifar10()", data.cifar10)
wrong("data.loader: expected a table, found nil", "loader()", data.loader)
wrong("expected a Dataset, found", "a loader of a file", data.loader, {io.stdout, batch = 1})
wrong("normalize: expected a list of numbers", "normalize()", dataset.normalize, dataset)
wrong('normalize: expected a number, found "x" at 1', "normalize{'x'}", dataset.normalize, dataset, {"x"}, {1})
local digits = require "memtide.digits"
wrong("digits.write: folder: expected a string, found nil", "digits of no folder", digits.write)
wrong("count_train: expected a whole number of at least 1, found x", "a count of digits", digits.write, "/nowhere", "x")
wrong("seed: expected a whole number, found x", "a seed of digits", digits.write, "/nowhere", 1, 1, "x")
wrong("expected labels as a batch or a table, found a string", "correct of packed labels", one.correct, one, x, "abcd")
wrong("expected a batch, a table of numbers or a string of packed ones, found nil", "no labels", one.step, one, x)
wrong("read: name: expected a string, found nil", "read(nil)", one.read, one, nil)
wrong('0.weight: expected a table of numbers or a function, found "x"', "write(name, 'x')", one.write, one, "0.weight",
  "x")
wrong('0.bias: expected a number, found "a" at 1', "write(name, {'a'})", one.write, one, "0.bias",
  {"a", 0, 0, 0, 0, 0, 0, 0})
wrong("trainer.step: expected a trainer as self, found a table: call it with a colon", "step with a dot", one.step, {})
wrong("trainer.close: expected a trainer as self, found nil", "close without self", one.close)
wrong("loader.epoch: expected a loader as self", "epoch with a dot", loader.epoch, {})
wrong("input: expected a batch, a table of numbers", "step()", one.step, one)
for found, label in pairs{["1.5"] = 1.5, ['"a"'] = "a", ["1099511627776"] = 1 << 40, ["-2147483649"] = -(1 << 31) - 1,
  ["inf"] = math.huge, ['"1"'] = "1"} do
  wrong(("target: expected a class label (a whole number of 32 bits), found %s at 3"):format(found),
    "the label " .. found, one.step, one, x, {0, 1, label, 1})
end
wrong('input: expected a number, found "a" at 2', "an input that is a word", one.step, one, {1, "a", 0, 0, 0, 0, 0, 0,
  0, 0, 0, 0}, y)
tap.ok(one:step(x, {0.0, 1.0, 0, 1}) > 0, "a whole number may be a float")
one:close()
wrong('"memory": expected bytes, at least 1, or a size such as "512MiB", found 0', "no memory", open, {memory = 0})
wrong('"seed": expected a whole number of at least 0, found -1', "a negative seed", open, {seed = -1})
wrong('"classes": expected a whole number of at least 1, found 0', "no classes", open, {classes = 0})
wrong("there are 3 classes, but the network has 2 outputs", "more classes than outputs", open, {classes = 3})

-- ---- memory over several trainers: the most at one instant
mt.memory.reset_peak()
tap.is(mt.memory.max_allocated(), 0, "after closing and a reset the peak is nothing")
local big = open{batch = 64}
local held = mt.memory.allocated()
local big_x, big_y = table.move(x, 1, 12, 1, {}), {}
for i = 1, 64 do big_y[i] = i % 2 end
for i = 13, 192 do big_x[i] = x[(i - 1) % 12 + 1] end
big:step(big_x, big_y)
local alone = mt.memory.max_allocated()
tap.is(alone, big:memory().peak.used, "of one trainer, the peak of its step")
tap.ok(alone > held, "which is more than what is held between steps")
local small = open{batch = 1}
local own = mt.memory.allocated() - big:memory().used
small:step({1, 0, 0}, {1})
tap.ok(small:memory().peak.used + big:memory().used < alone, "a small step beside it is below the peak so far")
tap.is(mt.memory.max_allocated(), alone, "peaks of different instants do not add up")
big:step(big_x, big_y)
tap.is(mt.memory.max_allocated(), alone + own, "in a step the others hold what they hold")
big:predict(big_x)
tap.is(big:memory().peak.used, alone, "a trainer keeps the peak over all its calls")
local reserved = mt.memory.max_reserved()
big:close()
small:close()
tap.is(mt.memory.max_allocated() - own, alone, "a closed trainer's peak is not forgotten")
tap.is(mt.memory.max_reserved(), reserved, "nor what was reserved")
mt.memory.reset_peak()
tap.is(mt.memory.max_reserved(), 0, "until a reset")

tap.raises('expected one of "planned"', "a wrong allocator", open, {allocator = "arena"})
tap.raises('trainer: framework: expected "memtide", found "pytorch"', "PyTorch's step, which no trainer runs", open, {framework = "pytorch"})
tap.raises("a loader reads ahead", "batches ahead, which the script's loop takes itself", open, {prefetch = 2})
tap.raises("trainer:gradient_exponents(x, y)", "exponents, which are a call", open, {gradient_exponents = true})

tap.done()
