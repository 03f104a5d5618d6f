-- Networks of several inputs, of tokens and of numbers: trainers, experiments, data.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local mt = require "memtide"
local nn, optim, data = mt.nn, mt.optim, mt.data

local BATCH, WORDS, SIZE = 4, 7, 6

-- Parameters stand in the order of first use: the images' first.
local function model()
  return nn.Graph{
    embed = nn.Embedding(11, 8), conv = nn.Conv2d(3, 4, 3), fc = nn.Linear(12, 5),
    forward = function(self, pixels, ids)
      local image = nn.relu(self.conv(pixels)):mean({2, 3})
      return self.fc(nn.cat({image, self.embed(ids):mean(1)}, 1))
    end,
  }
end
local INPUT = {ids = {WORDS, tokens = 11}, pixels = {3, SIZE, SIZE}}

local function batch(samples)
  local ids, pixels, y = {}, {}, {}
  for i = 1, samples * WORDS do ids[i] = (3 * i) % 11 end
  for i = 1, samples * 3 * SIZE * SIZE do pixels[i] = math.sin(i) end
  for i = 1, samples do y[i] = i % 5 end
  return {ids = ids, pixels = pixels}, y
end

local function new(options)
  local all = {model = model(), input = INPUT, batch = BATCH, loss = nn.CrossEntropyLoss(), seed = 3, optimizer = optim.SGD{lr = 0.5}}
  for key, value in pairs(options or {}) do all[key] = value end
  return assert(mt.trainer(all))
end

-- ---- a trainer, beside the same by hand

local function dot(w, row, width, x)
  local sum = 0
  for k = 1, width do sum = sum + w[(row - 1) * width + k] * x[k] end
  return sum
end

-- The output of a sample, from the trainer's parameters
local function by_hand(t, x, sample)
  local w, b, table_ = t:read "conv.weight", t:read "conv.bias", t:read "embed.weight"
  local features = {}
  local places = (SIZE - 2) ^ 2
  for c = 1, 4 do
    local mean = 0
    for i = 0, SIZE - 3 do
      for j = 0, SIZE - 3 do
        local sum = b[c]
        for ch = 0, 2 do
          for di = 0, 2 do
            for dj = 0, 2 do
              sum = sum + w[(c - 1) * 27 + ch * 9 + di * 3 + dj + 1] *
                x.pixels[(sample * 3 + ch) * SIZE * SIZE + (i + di) * SIZE + j + dj + 1]
            end
          end
        end
        mean = mean + math.max(sum, 0) / places
      end
    end
    features[c] = mean
  end
  for k = 1, 8 do
    local mean = 0
    for i = 1, WORDS do mean = mean + table_[x.ids[sample * WORDS + i] * 8 + k] / WORDS end
    features[4 + k] = mean
  end
  local out, fc, bias = {}, t:read "fc.weight", t:read "fc.bias"
  for row = 1, 5 do out[row] = bias[row] + dot(fc, row, 12, features) end
  return out
end

local trainer <close> = new()
local x, y = batch(BATCH)
local found, shape = trainer:predict(x)
tap.is(table.concat(shape, " "), ("%d 5"):format(BATCH), "the output's shape")
local worst = 0
for s = 0, BATCH - 1 do
  local expected = by_hand(trainer, x, s)
  for k = 1, 5 do worst = math.max(worst, math.abs(expected[k] - found[s * 5 + k])) end
end
tap.ok(worst < 1e-5, ("the output is that by hand: %.2g"):format(worst))
local first = trainer:step(x, y)
local last
for _ = 1, 20 do last = trainer:step(x, y) end
tap.ok(last < 0.5 * first, ("it learns: %.3f, %.3f"):format(first, last))
tap.is(trainer:memory().peak.bytes, trainer:predicted(3).peak.bytes, "its memory is the predicted one")

local whole <close> = new{batch = 2 * BATCH}
local parts <close> = new{accumulate = 2}
local x2, y2 = batch(2 * BATCH)
tap.ok(math.abs(whole:step(x2, y2) - parts:step(x2, y2)) < 1e-6, "two micro-batches take their share of each input")
tap.ok(math.abs(whole:step(x2, y2) - parts:step(x2, y2)) < 1e-5, "also in the next step")

-- ---- data

local ids = data.random{count = 10, shape = {WORDS}, tokens = 11, classes = 5, seed = 1}
local pixels = data.random{count = 10, shape = {3, SIZE, SIZE}, classes = 1, seed = 2}
local zip = data.zip({ids = ids, pixels = pixels}, "ids")
tap.is(zip:info().count, 10, "as many samples as each dataset")
tap.is(zip:info().classes, 5, "the classes are those of the dataset with the targets")
local loader = data.loader{zip, batch = BATCH, shuffle = true, seed = 7}
local of_ids = data.loader{ids, batch = BATCH, shuffle = true, seed = 7}
local of_pixels = data.loader{pixels, batch = BATCH, shuffle = true, seed = 7}
local one, two, same, counts = of_ids:epoch(), of_pixels:epoch(), true, {}
for bx, by, n in loader:epoch() do
  local ix, iy = one()
  local px = two()
  same = same and table.concat(bx.ids:values(), " ") == table.concat(ix:values(), " ") and
    table.concat(bx.pixels:values(), " ") == table.concat(px:values(), " ") and
    table.concat(by:values(), " ") == table.concat(iy:values(), " ")
  counts[#counts + 1] = n
end
tap.ok(same, "a batch has the samples that loaders of each draw with the same seed")
tap.is(table.concat(counts, " "), "4 4 2", "in as many batches")
for bx, by, n in loader:epoch() do if n == BATCH then tap.ok(trainer:step(bx, by), "a batch trains") end end
local mean, share, samples = trainer:evaluate(loader)
tap.ok(mean > 0 and share >= 0 and samples == 10, "a loader is evaluated")
loader:seek(1, 2)
tap.is(table.concat({loader:place()}, " "), "1 2", "a loader can be placed")
tap.is(loader:batches(), 3, "and has its number of batches")
loader:close()

-- ---- experiments

local function built_of(options)
  local all = {name = "two", model = model(), batch = BATCH, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1}}
  for key, value in pairs(options) do all[key] = value end
  return cell.build(mt.experiment(all):cells()[1])
end
local built = cell.compile(built_of{input = INPUT, classes = 5})
local runtime <close> = core.runtime{programs = {built.program}, seed = 1}
local random = assert(cell.loader(built))
local loss = runtime:step(1, random, true)
tap.ok(loss and loss > 0, "an experiment draws random data for each input")
tap.ok(runtime:step(1, random, false), "also ahead")
local given = built_of{data = zip}
tap.ok(given.network, "a dataset of several inputs gives the shapes")
tap.ok(cell.id(built, "run") ~= cell.id(given, "run"), "and another cell")
tap.ok(cell.loader(given):next(), "and its samples")

-- ---- what is wrong is said

tap.raises("the model's forward function takes pixels: there is no such input", "one is missing", new, {input = {ids = {WORDS}}})
tap.raises('takes no images', "an unknown one", new,
  {input = {ids = {WORDS}, pixels = {3, SIZE, SIZE}, images = {3}}})
tap.raises("are arguments of an nn.Graph's forward function, found the model Linear", "no graph", new,
  {model = nn.Linear(2, 2), input = {a = {2}, b = {2}}})
tap.raises("input pixels: tokens = 3, but no nn.Embedding reads it", "tokens of numbers", new,
  {input = {ids = {WORDS}, pixels = {3, SIZE, SIZE, tokens = 3}}})
tap.raises("input ids: tokens = 12, but an nn.Embedding that reads it has 11 rows", "too many tokens", new,
  {input = {ids = {WORDS, tokens = 12}, pixels = {3, SIZE, SIZE}}})
tap.raises("expected the shape of one sample", "tokens of a single input", new, {input = {WORDS, tokens = 3}})
tap.raises("expected the shape of one sample", "no shape", new, {input = {ids = {WORDS}, pixels = "large"}})
tap.raises("input: expected a table with a value for each of the network's inputs", "one value", trainer.step, trainer, "abcd", y)
tap.raises("input: there is no ids", "a value is missing", trainer.step, trainer, {pixels = x.pixels}, y)
tap.raises("input.ids: expected 4 samples, as input.pixels has, found 3", "another number of samples", function()
  local fewer = batch(3)
  trainer:step({ids = fewer.ids, pixels = x.pixels}, y)
end)
tap.raises("input.ids 0 is 11: expected an index below 11", "an index that is too large", function()
  local large = table.move(x.ids, 1, #x.ids, 1, {})
  large[1] = 11
  trainer:step({ids = large, pixels = x.pixels}, y)
end)
tap.raises("data.zip: pixels has 9 samples, and the others have 10", "datasets of different sizes", data.zip,
  {ids = ids, pixels = data.random{count = 9, shape = {3}, classes = 1}}, "ids")
tap.raises("data.zip: expected the name of the dataset with the targets", "no first", data.zip, {ids = ids})

-- ---- a part whose file can no longer be read
do
  local path = os.tmpname()
  local function write(count)
    local header = "{'descr': '|u1', 'fortran_order': False, 'shape': (10, 3), }\n"
    local file <close> = assert(io.open(path, "wb"))
    assert(file:write("\x93NUMPY\1\0" .. ("<s2"):pack(header) .. ("x"):rep(count)))
  end
  write(30)
  for _, prefetch in ipairs{0, 2} do
    local both = data.zip({ids = ids, pixels = data.npy(path)}, "ids")
    write(7)
    local reader = data.loader{both, batch = 2, prefetch = prefetch}
    local info = reader:info()
    tap.ok(info.prefetch == prefetch and (info.bytes > 0) == (prefetch > 0), "the batches ahead of all parts are counted")
    for _ = 1, 2 do
      local good, failure = pcall(reader:epoch())
      tap.ok(not good and tostring(failure):find(path, 1, true), ("prefetch %d: an error with its name"):format(prefetch),
        failure)
      local epoch, place = reader:place()
      tap.ok(epoch == 0 and place == 0, "and no part goes on without it")
      reader:seek(0)
    end
    reader:close()
    write(30)
  end
  os.remove(path)
end
tap.done()
