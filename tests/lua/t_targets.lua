-- How many targets a step is given: as many as the network's output needs for the samples that were given, in a step,
-- in an evaluation, and in an experiment before it runs.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local mt = require "memtide"
local nn = mt.nn

local function numbers(n, value)
  local list = {}
  for i = 1, n do list[i] = value end
  return list
end

-- ---- one pooling too few: an article's network typed literally makes four rows of each sample
local function SimpleCNN(features)
  return nn.Graph{
    conv1 = nn.Conv2d(1, 16, 3, {padding = 1}), fc = nn.Linear(features, 10),
    forward = function(self, x)
      x = nn.max_pool2d(nn.relu(self.conv1(x)), 2, 2)
      return self.fc(x:view(-1, features))
    end,
  }
end
local BY = "the network's output is (128, 10), 128 rows of a batch of 32, by layer reshape#1 Reshape (t_targets.lua:20)"
local function same(message, expected, what) tap.has(tostring(message):gsub("tests/lua/", ""), expected, what) end

local wrong <close> = assert(mt.trainer{model = SimpleCNN(16 * 7 * 7), input = {1, 28, 28}, batch = 32,
  loss = nn.CrossEntropyLoss()})
local x = numbers(32 * 784, 0.5)
for _, method in ipairs{"step", "evaluate", "correct"} do
  local _, message = pcall(wrong[method], wrong, x, numbers(32, 1))
  same(message, "target: expected 128 labels for 32 samples, found 32: " .. BY, "32 labels for 128 rows: " .. method)
end
for _, n in ipairs{2, 8, 96, 127, 129} do
  tap.ok(not pcall(wrong.step, wrong, x, numbers(n, 1)), ("and so are %d"):format(n))
end
tap.ok(wrong:step(x, numbers(128, 1)), "128 labels are right, as in PyTorch")
tap.ok(wrong:step(numbers(8 * 784, 0.5), numbers(32, 1)), "of a smaller last batch, four for each sample")

-- ---- a label for each sample
local right <close> = assert(mt.trainer{model = SimpleCNN(16 * 14 * 14), input = {1, 28, 28}, batch = 32,
  loss = nn.CrossEntropyLoss()})
for _, n in ipairs{0, 2, 8, 31} do
  local _, message = pcall(right.step, right, x, numbers(n, 1))
  local expected = "target: expected 32 labels for 32 samples, found %d: the network's output is (32, 10), by layer fc"
  tap.has(message, expected:format(n), ("%d labels for 32 samples"):format(n))
  if n > 0 then
    local part = numbers(n * 784, 0.5)
    tap.ok(right:step(part, numbers(n, 1)), ("%d labels for %d samples"):format(n, n))
    tap.ok(not pcall(right.step, right, part, numbers(32, 1)), ("32 labels for %d samples"):format(n))
  end
end
local packed = string.pack(("i4"):rep(31), table.unpack(numbers(31, 1)))
tap.raises("expected 32 labels for 32 samples, found 31", "packed labels are counted", right.step, right, x, packed)
local data = mt.data.random{count = 40, shape = {1, 28, 28}, classes = 10, seed = 1}
for bx, by, n in mt.data.loader{data, batch = 32}:epoch() do
  tap.ok(right:step(bx, by), ("a loader's batch of %d is taken"):format(n))
end

-- ---- several micro-batches, of which the last may be smaller
local parts <close> = assert(mt.trainer{model = nn.Linear(3, 2), input = {3}, batch = 4, accumulate = 3,
  loss = nn.CrossEntropyLoss()})
tap.ok(parts:step(numbers(30, 1), numbers(10, 1)), "10 samples in micro-batches of 4")
tap.raises("target: expected 10 labels for 10 samples, found 12", "labels of all micro-batches", parts.step, parts,
  numbers(30, 1), numbers(12, 1))

-- ---- numbers as targets, and rows that belong to no sample
local mse <close> = assert(mt.trainer{model = nn.Linear(3, 2), input = {3}, batch = 4, loss = nn.MSELoss()})
tap.ok(mse:step(numbers(12, 1), numbers(8, 1)), "numbers like the output")
tap.raises("target: expected 8 numbers for 4 samples, found 4", "too few numbers", mse.step, mse, numbers(12, 1),
  numbers(4, 1))
local function rows(batch)
  return mt.trainer{model = nn.Sequential{nn.Reshape{-1, 6}}, input = {4}, batch = batch, loss = nn.CrossEntropyLoss()}
end
tap.raises("CrossEntropyLoss (tests/lua/t_targets.lua", "2 rows of 3 samples are nobody's", rows, 3)
tap.raises("expected as many labels for each of 3 samples, found 2 in all: the network's output is (2, 6), 2 rows of a "
  .. "batch of 3, by layer 0 Reshape", "and the layer is named", rows, 3)

local sequences <close> = assert(mt.trainer{model = nn.Linear(6, 7), input = {5, 6}, batch = 4, loss = nn.CrossEntropyLoss()})
tap.raises("in which dimension 1 is that of the classes: of (N, T, C) say x:flatten(0, 1)", "logits (N, T, C)",
  sequences.step, sequences, numbers(4 * 5 * 6, 1), numbers(4 * 5, 1))

-- ---- tokens and pixels
local gpt = mt.models.GPT{block_size = 8, vocab_size = 11, n_layer = 1, n_head = 2, n_embd = 8}
local tokens <close> = assert(mt.trainer{model = gpt, input = {8}, batch = 2, loss = nn.CrossEntropyLoss()})
tap.ok(tokens:step(numbers(16, 1), numbers(16, 2)), "a label for each token")
tap.raises("expected 16 labels for 2 samples, found 2", "and not for each text", tokens.step, tokens, numbers(16, 1),
  numbers(2, 1))
local pixels <close> = assert(mt.trainer{model = nn.Conv2d(3, 5, 1), input = {3, 4, 2}, batch = 2,
  loss = nn.CrossEntropyLoss()})
tap.ok(pixels:step(numbers(48, 1), numbers(16, 4)), "a label for each pixel")

-- ---- experiments: what the data have is compared before anything runs
local function build(more)
  local all = {name = "targets", input = not more.data and {1, 28, 28} or nil, batch = 32, loss = nn.CrossEntropyLoss(),
    model = SimpleCNN(16 * 7 * 7)}
  for key, value in pairs(more) do all[key] = value end
  return cell.build(mt.experiment(all):cells()[1])
end
local function refused(expected, what, more)
  local _, message = pcall(build, more)
  same(message, expected, what)
end
local four = "CrossEntropyLoss needs 4 labels for each sample, found 1 (classes = 10): " .. BY
refused(four .. "; if that is meant, say target = {4}", "random data of one label", {classes = 10})
refused(four .. "; if that is meant, say target = {4}", "and where nobody says it", {})
refused(four, "a dataset of one label", {data = data})
refused("experiment: test_data: CrossEntropyLoss needs 1 label for each sample, found 4 (target = {4})",
  "a test set of four labels", {model = SimpleCNN(16 * 14 * 14), data = data,
    test_data = mt.data.random{count = 8, shape = {1, 28, 28}, classes = 10, target = {4}}})
tap.is(build{classes = 10, target = {4}}.data.target[1], 4, "what is said is taken")
tap.is(build{model = gpt, input = {8}}.data.target[1], 8, "of tokens, each has a label")
refused("needs 8 labels for each sample, found 1 (classes = 11)", "but where classes of a sample are spoken of",
  {model = gpt, input = {8}, classes = 11})
local places = build{model = nn.Conv2d(1, 5, 1), classes = 5}
tap.is(places.data.target[1], 784, "of an image, each pixel has a label")
refused("needs 784 labels for each sample, found 1 (classes = 3)", "but not where channels are no classes",
  {model = nn.Conv2d(1, 5, 1), classes = 3})
tap.done()
