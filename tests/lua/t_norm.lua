-- What batch normalisation keeps beside its parameters, networks that read indices, and texts as data.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn = mt.nn
local PATH = os.tmpname()

local function sgd() return mt.optim.SGD{lr = 0} end

-- ---- RMSNorm's epsilon is that of the type: inputs whose squares are as small

for precision, epsilon in pairs{fp32 = 2.0 ^ -23, bf16 = 2.0 ^ -7, fp16 = 2.0 ^ -10, amp_bf16 = 2.0 ^ -23} do
  local t <close> = assert(mt.trainer{model = nn.RMSNorm(4), input = {4}, batch = 1, classes = 4,
    loss = nn.CrossEntropyLoss(), precision = precision})
  local x = math.sqrt(epsilon)
  local y = assert(t:predict{x, -x, x, -x})
  tap.near(y[1], 1 / math.sqrt(2), 0.01, precision .. ": half of the mean square")
end

-- ---- running statistics: two channels, values known

-- Channel 0 of the input is 1, 2, 3, ..., channel 1 twice that.
local function input(batch)
  local x = {}
  for n = 0, batch - 1 do
    x[2 * n + 1], x[2 * n + 2] = n + 1, 2 * (n + 1)
  end
  return x
end

local function trainer(options, more)
  local settings = {model = nn.BatchNorm1d(2, options), input = {2}, batch = 4, loss = nn.MSELoss(), optimizer = sgd()}
  for key, value in pairs(more or {}) do settings[key] = value end
  return assert(mt.trainer(settings))
end

local zero = {0, 0, 0, 0, 0, 0, 0, 0}
local function pair(t, name) return table.unpack((t:read(name)), 1, 2) end

do -- the mean of 1..4 is 2.5, the unbiased variance 5/3
  local t <close> = trainer()
  assert(t:step(input(4), zero))
  local a, b = pair(t, "running_mean")
  tap.near(a, 0.25, 1e-6, "a tenth of the batch's mean")
  tap.near(b, 0.5, 1e-6, "by channel")
  a, b = pair(t, "running_var")
  tap.near(a, 0.9 + 0.1 * 5 / 3, 1e-6, "nine tenths of 1 and a tenth of the unbiased variance")
  tap.near(b, 0.9 + 0.1 * 20 / 3, 1e-6, "by channel")
  assert(t:step(input(4), zero))
  tap.is(t:read("num_batches_tracked")[1], 2, "batches are counted, in whole numbers")
  local y = assert(t:predict(input(4)))
  local mean, var = t:read("running_mean")[1], t:read("running_var")[1]
  tap.near(y[1], (1 - mean) / math.sqrt(var + 1e-5), 1e-5, "evaluation uses them")
  tap.is(t:read("num_batches_tracked")[1], 2, "and leaves them as they are")
  assert(t:save(PATH))
  t:write("num_batches_tracked", {9})
  t:write("running_mean", {7, 7})
  tap.is(#assert(t:load(PATH)).missing, 0, "saved weights have them all")
  tap.is(t:read("num_batches_tracked")[1], 2, "the count is loaded")
  tap.near(t:read("running_mean")[1], mean, 0, "and the mean")
  tap.is(#t.network:params(), 2, "they are no parameters")
  tap.is(#t.network:buffers(), 3, "but buffers")
  tap.is(t.network:parameters(), 4, "and do not count")
end

-- A smaller batch is filled with zeros, which would be part of the mean. Where batch normalisation keeps none, it is right.
do
  local few, labels = {1, 2, 3, 4, 5, 6}, {0, 1, 0}
  local function judge(model) return trainer(nil, {model = model, loss = nn.CrossEntropyLoss()}) end
  local t <close> = judge(nn.Sequential{{"head", nn.Linear(2, 2)}, {"bn", nn.BatchNorm1d(2)}})
  local text = 'a batch is incomplete (3 of 4 samples), and batch normalisation "bn" takes the mean of a whole one: open the loader with '
  tap.raises(text .. "drop_last = true", "a smaller batch is no batch of normalisation", t.step, t, few, labels)
  local loader = mt.data.loader{mt.data.random{count = 7, shape = {2}, classes = 2}, batch = 4}:epoch()
  tap.ok(t:step(loader()), "a whole batch of a loader")
  tap.raises(text, "its last one", t.step, t, loader())
  tap.is(t:read("bn.num_batches_tracked")[1], 1, "which has changed nothing")
  tap.ok(t:evaluate(few, labels) and #t:predict(few), "evaluation takes what the running statistics say")
  local bare <close> = judge(nn.Sequential{{"bn", nn.BatchNorm1d(2, {track_running_stats = false})}})
  tap.raises(text, "without them it is the batch's, too", bare.predict, bare, few)
  local layer <close> = judge(nn.LayerNorm(2))
  tap.ok(layer:step(few, labels), "of each sample by itself: a smaller batch is one")
end

do
  local t <close> = trainer({momentum = "none"})
  assert(t:step(input(4), zero))
  assert(t:step({2, 4, 4, 8, 6, 12, 8, 16}, zero))
  tap.near(t:read("running_mean")[1], (2.5 + 5) / 2, 1e-6, "without a momentum: the mean over all batches")
end

do
  local t <close> = trainer(nil, {batch = 2, accumulate = 3})
  local x = {}
  for i = 1, 12 do x[i] = i end
  assert(t:step(x, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}))
  tap.is(t:read("num_batches_tracked")[1], 3, "every micro-batch is one")
end

do -- PyTorch's recomputation runs the layer again
  local model = nn.Sequential{nn.Linear(2, 2), nn.Checkpoint(nn.Sequential{nn.BatchNorm1d(2), nn.Tanh()})}
  local t <close> = assert(mt.trainer{model = model, input = {2}, batch = 4, loss = nn.MSELoss(), optimizer = sgd(),
    checkpoint = "marked"})
  assert(t:step(input(4), zero))
  tap.is(t:read("1.0.num_batches_tracked")[1], 2, "and so does a recomputation under checkpointing")
end

do
  local t <close> = trainer({track_running_stats = false})
  tap.is(#t.network:buffers(), 0, "without tracking there are none")
  local y = assert(t:predict(input(4)))
  tap.near(y[1], -1.5 / math.sqrt(1.25 + 1e-5), 1e-5, "and evaluation uses the batch's own")
end

tap.raises("more than 1 value per channel", "one value has no variance", trainer, nil, {batch = 1})
tap.raises("expected 3 features, found 2", "another number of channels", mt.trainer,
  {model = nn.BatchNorm1d(3), input = {2}, batch = 4, loss = nn.MSELoss(), optimizer = sgd()})

-- ---- (N, C, L): each channel of a batch, each group of a sample

local N, C, L = 3, 4, 5
local function signal() -- channels and samples that differ
  local x = {}
  for i = 0, N * C * L - 1 do x[i + 1] = math.sin(i) * (1 + i // L % C) + i // (C * L) end
  return x
end

-- y by definition, where value i (from 0) belongs to part(i)
local function normalised(x, part)
  local n, mean, var, y = {}, {}, {}, {}
  for i, value in ipairs(x) do
    local k = part(i - 1)
    n[k], mean[k] = (n[k] or 0) + 1, (mean[k] or 0) + value
  end
  for i, value in ipairs(x) do
    local k = part(i - 1)
    var[k] = (var[k] or 0) + (value - mean[k] / n[k]) ^ 2 / n[k]
  end
  for i, value in ipairs(x) do
    local k = part(i - 1)
    y[i] = (value - mean[k] / n[k]) / math.sqrt(var[k] + 1e-5)
  end
  return y
end

for _, case in ipairs{
  {"BatchNorm1d", nn.BatchNorm1d(C, {track_running_stats = false}), function(i) return i // L % C end},
  {"GroupNorm", nn.GroupNorm(2, C), function(i) return i // (C * L) * 2 + i // L % C // 2 end},
} do
  local name, model, part = table.unpack(case)
  local t <close> = assert(mt.trainer{model = model, input = {C, L}, batch = N, loss = nn.MSELoss(), optimizer = sgd()})
  local found, shape = t:predict(signal())
  local worst = 0
  for i, y in ipairs(normalised(signal(), part)) do worst = math.max(worst, math.abs(y - found[i])) end
  tap.ok(#found == N * C * L and worst < 2e-6, ("%s of (N, C, L), off by %g"):format(name, worst))
  tap.is(table.concat(shape, " "), "3 4 5", "has its shape")
end

-- ---- indices

local function words(model, shape)
  return mt.trainer{model = model, input = shape or {3}, batch = 2, loss = nn.CrossEntropyLoss(), optimizer = sgd()}
end

do
  local t <close> = assert(words(nn.Sequential{nn.Embedding(5, 4, {padding_idx = 1}), nn.Flatten(), nn.Linear(12, 2)}))
  local table_ = t:read("0.weight")
  for i = 5, 8 do tap.is(table_[i], 0, "the padding's row starts at zero") end
  tap.is(t.network:inputs()[1].indices, 5, "a network says what it reads")
  local _, text = pcall(t.step, t, {0, 1, 2, 3, 4, 5}, {0, 1})
  tap.has(text, "input 5 is 5: expected an index below 5", "an index that has no row")
  _, text = pcall(t.step, t, {0, 1, 2, 3, 4, 1.5}, {0, 1})
  tap.has(text, "input 5 is 1.5", "and one that is no whole number")
  _, text = pcall(t.step, t, {0, 1, 2, 3, 4, -1}, {0, 1})
  tap.has(text, "input 5 is -1: expected an index below 5", "nor is one counted from the end")
  assert(t:step({0, 1, 2, 3, 4, 4}, {0, 1}))
end

tap.raises("reads indices: expected the network's input", "indices come from outside", words,
  nn.Sequential{nn.Linear(3, 3), nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2)})
tap.raises("holds indices, which only nn.Embedding reads", "nothing else reads them", words,
  nn.Concat{nn.Sequential{nn.Embedding(5, 4), nn.Flatten()}, nn.ReLU()})

-- ---- a text

local text = mt.data.text{text = "abcabdabe", window = 3, stride = 2}
local info = text:info()
tap.is(info.count, 3, "windows that have a byte after them")
tap.is(info.alphabet, "abcde", "tokens are the bytes that occur, in order")
tap.is(info.tokens, 5, "and as many")
local loader = mt.data.loader{text, batch = 3}
for x, y in loader:epoch() do
  tap.is(table.concat(x:values(), " "):gsub("%.0", ""), "0 1 2 2 0 1 1 3 0", "samples are windows")
  tap.is(table.concat(y:values(), " "), "1 2 0 0 1 3 3 0 1", "labels are what comes next")
end
loader:close()
local file = assert(io.open(PATH, "w"))
file:write "abcabdabe"
file:close()
tap.is(mt.data.text{file = PATH, window = 3, stride = 2}:info().text, info.text, "from a file alike")
tap.raises("expected more than the 9 bytes of a window", "a window as long as the text", mt.data.text,
  {text = "abcabdabe", window = 9})
tap.raises("expected either file or text", "neither", mt.data.text, {window = 3})

do -- logits for each token, labels for each token
  local model = nn.Sequential{nn.Embedding(5, 8), nn.Flatten(0, 1), nn.Linear(8, 5)}
  local t <close> = assert(mt.trainer{model = model, input = {3}, batch = 3, loss = nn.CrossEntropyLoss(),
    optimizer = mt.optim.Adam{lr = 0.1}})
  local loss
  for _ = 1, 60 do
    for x, y in mt.data.loader{text, batch = 3}:epoch() do loss = assert(t:step(x, y)) end
  end
  tap.ok(loss < 0.7, "a table of what comes next learns what it can of it")
end

local drawn = mt.data.random{count = 4, shape = {6}, tokens = 3, classes = 5, target = {6}}
for x, y in mt.data.loader{drawn, batch = 4}:epoch() do
  local most, labels = 0, y:values()
  for _, token in ipairs(x:values()) do
    most = math.max(most, token)
    if token ~= token // 1 or token < 0 then most = math.huge end
  end
  tap.ok(most <= 2, "random tokens are whole numbers below their number")
  tap.is(#labels, 24, "with a label for each")
end

os.remove(PATH)
tap.done()
