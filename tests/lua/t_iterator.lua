-- An experiment whose data are a script's iterator: the same batches as a dataset gives train the same network; what is
-- wrong with a batch is said with its number; nothing is asked for before a run.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"

local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local asked, made -- batches that were asked for, iterators that were made

local function declared(data, options)
  local all = {name = "iterated", input = {3}, classes = 4, data = data, batch = 2, steps = 5, warmup = 0,
    model = function() return nn.Sequential{nn.Linear(3, 4)} end, loss = nn.CrossEntropyLoss(),
    optimizer = optim.SGD{lr = 0.1}, precision = "fp32"}
  for key, value in pairs(options or {}) do all[key] = value ~= "none" and value or nil end
  return mt.experiment(all)
end

local function new_cell(...)
  local one = declared(...):cells()[1]
  asked, made = 0, 0
  return one
end

-- The cell's losses, and what it was; or the message of what it raised
local function run(...)
  local one = new_cell(...)
  cell.build(one)
  cell.compile(one)
  local asked_before = asked
  local out = cell.run(one, function() end)
  local id = cell.id(one, "run")
  cell.release(one)
  return out, asked_before, id
end

-- Batch i of n: 2 samples of 3 numbers
local function x_of(i) return {i, -i, 0.5, 1, 0.25 * i, -1} end
local function y_of(i) return {i % 4, (i + 1) % 4} end

-- n batches in a form that `pack` makes
local function batches(n, pack)
  return function()
    made = made + 1
    local i = 0
    return function()
      i = i + 1
      asked = asked + 1
      if i > n then return nil end
      return pack(x_of(i), y_of(i))
    end
  end
end

local function plain(x, y) return x, y end
local function packed(x, y) return ("<" .. ("f"):rep(#x)):pack(table.unpack(x)), ("<" .. ("i4"):rep(#y)):pack(table.unpack(y)) end

-- What a dataset with the same samples gives
local path = os.tmpname()
local function npy(file, descr, shape, content)
  local header = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }\n"):format(descr, shape)
  local out <close> = assert(io.open(file, "wb"))
  assert(out:write("\x93NUMPY\1\0" .. ("<s2"):pack(header) .. content))
end
local xs, ys = {}, {}
for i = 1, 3 do xs[i], ys[i] = packed(x_of(i), y_of(i)) end
npy(path .. ".x", "<f4", "6, 3", table.concat(xs))
npy(path .. ".y", "<i4", "6", table.concat(ys))
local of_dataset = run(function() return mt.data.npy(path .. ".x", path .. ".y") end, {input = "none", classes = "none"})
tap.is(of_dataset.status, "ok", "a dataset of three batches")
for _, suffix in ipairs{"", ".x", ".y"} do os.remove(path .. suffix) end

local function losses(out) return out.losses and table.concat(out.losses, " ") or tostring(out.reason) end

local id
for _, case in ipairs{
  {"tables of numbers", batches(3, plain)}, {"strings of packed values", batches(3, packed)},
  {"an object with next", function()
    local next_batch = batches(3, plain)()
    return setmetatable({}, {__index = {next = function(self) return next_batch(self) end}})
  end},
} do
  for _, prefetch in ipairs{0, 1, 4} do
    local out, before, name = run(case[2], {prefetch = prefetch})
    local what = ("%s, %d ahead"):format(case[1], prefetch)
    tap.is(losses(out), losses(of_dataset), what .. ": the losses of a dataset")
    tap.is(before, 0, "... no batch is asked for before the run")
    -- of three batches each; an end is asked for, too: 5 steps want 1 2 3 - 1 2, and those ahead
    tap.is(asked, (5 + prefetch) + (5 + prefetch - 1) // 3, "... as many as the steps take, and those ahead")
    tap.is(made, (5 + prefetch - 1) // 3 + 1, "... where it ends, another one is made")
    id = prefetch == 0 and (id or name) or id
    tap.is(prefetch > 0 or name == id, true, "... the cell's id has nothing of it")
  end
end
local random = new_cell(function() end)
random.values.data = nil
cell.build(random)
tap.ok(cell.id(random, "run") ~= id, "an iterator is not random data")
cell.release(random)

-- micro-batches, other targets, several inputs
local twice = run(batches(3, plain), {accumulate = 2, steps = 3})
tap.is(twice.status .. " " .. asked, "ok 7", "with two micro-batches a step takes two batches")
local numbers = run(function() return function() return x_of(1), {0.5, 1, 0, 0, 0.25, 1, 1, 1} end end,
  {loss = nn.MSELoss(), classes = "none"})
tap.is(numbers.status, "ok", "targets that are numbers")
tap.ok(numbers.losses[5] < numbers.losses[1], "... are learned")
local two = {input = {ids = {2, tokens = 9}, x = {3}}, model = function()
  return nn.Graph{table = nn.Embedding(9, 3), fc = nn.Linear(3, 4), forward = function(self, ids, x)
    return self.fc(self.table(ids):mean(1) + x)
  end}
end}
for _, prefetch in ipairs{0, 2} do
  two.prefetch = prefetch
  local both = run(function() return function() return {ids = {0, 8, 3, 4}, x = x_of(2)}, y_of(2) end end, two)
  tap.is(both.status, "ok", ("several inputs by name, %d ahead"):format(prefetch))
end

-- the batches ahead are counted
local counted = new_cell(batches(3, plain), {prefetch = 4})
cell.build(counted)
local loader = cell.loader(counted)
tap.is(loader:info().bytes, 4 * (2 * 3 + 2) * 4, "host memory of the batches ahead")
tap.is(loader:info().prefetch, 4, "... and how many they are")
loader:close()
cell.release(counted)

-- a prediction asks for nothing, and is that of other data
local predicted = new_cell(batches(3, plain))
cell.build(predicted)
cell.compile(predicted)
tap.is(asked, 0, "a prediction asks for no batch")
local other = new_cell(function() end)
other.values.data = nil
cell.build(other)
cell.compile(other)
tap.is(predicted.prediction.peak.bytes, other.prediction.peak.bytes, "... and is that of random data")
cell.release(predicted)
cell.release(other)

-- ---- what is wrong

local function gives(...)
  local values = table.pack(...)
  return function() return function() return table.unpack(values, 1, values.n) end end
end
for _, case in ipairs{
  {gives({1, 2, 3}, {0, 1}), "data: batch 1: input: expected the 6 values of (2, 3), found 3"},
  {gives(x_of(1), {0, 1, 2}), "data: batch 1: target: expected the 2 values of (2), found 3"},
  {gives(x_of(1)), "data: batch 1: target: expected a batch, a table of numbers or a string of packed ones, found nil"},
  {gives(x_of(1), {0, 0.5}), "data: batch 1: target: expected a class label (a whole number of 32 bits), found 0.5 at 2"},
  {gives(x_of(1), {0, 4}), "class"},
  {gives({1, 2, "3", 4, 5, 6}, {0, 1}), 'data: batch 1: input: expected a number, found "3" at 3'},
  {gives(7, {0, 1}), "data: batch 1: input: expected a batch, a table of numbers or a string of packed ones, found 7"},
  {gives("abc", {0, 1}), "data: batch 1: input: a string of packed values has 4 bytes for each"},
  {gives(nil), "data: expected at least one batch of a new iterator, found none"},
  {function() return function() error("the disk is gone", 0) end end, "the disk is gone"},
} do
  for _, prefetch in ipairs{0, 2} do
    tap.raises(case[2], ("prefetch %d: %s"):format(prefetch, case[2]), run, case[1], {prefetch = prefetch})
  end
end
local once
tap.raises("data: expected at least one batch of a new iterator, found none", "a function that gives the same iterator again", run,
  function()
    once = once or batches(2, plain)()
    return once
  end)
for _, prefetch in ipairs{0, 2} do
  two.prefetch = prefetch
  tap.raises("expected a table with a value for each of the network's inputs, such as {ids = ...}",
    "lists of numbers for two inputs", run, function() return function() return "1234", y_of(1) end end, two)
  tap.raises(prefetch == 0 and "there is no x" or "batch 1: x: expected a batch", "one of two inputs", run,
    function() return function() return {ids = {0, 8, 3, 4}}, y_of(2) end end, two)
end

for _, case in ipairs{
  {{epochs = 2, steps = "none"}, "epochs: the data are an iterator: how many batches it gives is not known: say steps"},
  {{shuffle = true}, "shuffle: the data are an iterator: it has an order of its own"},
  {{drop_last = true}, "drop_last: the data are an iterator: it gives whole batches"},
  {{input = "none"}, '"input" is missing'},
} do tap.raises(case[2], case[2], cell.build, new_cell(batches(3, plain), case[1])) end
for _, value in ipairs{7, {}, {next = 3}} do
  tap.raises("data: expected an open dataset of mt.data, or a function of the settings that returns one, or an iterator",
    "what is no iterator", cell.build, new_cell(function() return value end))
end
tap.done()
