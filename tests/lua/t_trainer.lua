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
tap.raises('expected one of "planned"', "a wrong allocator", open, {allocator = "arena"})

tap.done()
