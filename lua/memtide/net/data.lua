-- mt.data: datasets and loaders. All functions raise if an argument is wrong or a file cannot be read.
local core = require "memtide.core"
local util = require "memtide.base.util"

local data = {}

-- The keys of the table that a function takes; 1: the dataset
data.keys = {random = {"count", "shape", "tokens", "classes", "target", "seed"}, text = {"file", "text", "window", "stride"},
  packed = {"sequences", "window", "tokens", "strategy", "seed", "ignore_index", "pad"},
  loader = {1, "batch", "shuffle", "drop_last", "prefetch", "seed"}}

-- The dataset; raises with the script's line where it cannot be opened.
local function opened(dataset, message, code)
  return dataset or error(util.failure(core.where() .. message, code), 0)
end

-- random{count =, shape =, classes = or target = shape, seed =}: random samples, each drawn when it is asked for. With
-- classes and target, target is the shape of a sample's labels. tokens = n: samples are indices below n.
function data.random(options)
  util.check_keys("data.random", options, data.keys.random)
  if options.count == nil or options.shape == nil then
    util.fail('data.random: "%s" is missing', options.count == nil and "count" or "shape")
  end
  return opened(core.dataset_random(options))
end

-- text{file = path or text = string, window =, stride = window}: windows of bytes as tokens. Labels are the same window
-- one byte further on; info().alphabet has the byte of each token.
function data.text(options)
  util.check_keys("data.text", options, data.keys.text)
  return opened(core.dataset_text(options))
end

-- Paths of IDX files; of .npy files, labels may be nil: see core/io/data.h. ignore_index: a label that is no class.
function data.idx(images, labels) return opened(core.dataset_idx(images, labels)) end
function data.npy(x, y, options)
  util.check_keys("data.npy", options or {}, {"ignore_index"})
  local ignored = options and options.ignore_index or -100
  if math.type(ignored) ~= "integer" then
    util.fail("data.npy: ignore_index: expected a whole number, found %s", tostring(ignored))
  end
  return opened(core.dataset_npy(x, y, ignored))
end

-- tar{path, ...}: shards as WebDataset has them: plain tar archives with KEY.npy and KEY.cls for each sample
function data.tar(files)
  util.check_type("data.tar: files", files, "table")
  return opened(core.dataset_tar(files))
end

function data.exists(path)
  util.check_type("data.exists: path", path, "string")
  return core.can_read(path, "data.exists: path")
end

-- `path`, or `path`.gz if only that exists
local function present(path)
  return not data.exists(path) and data.exists(path .. ".gz") and path .. ".gz" or path
end

-- mnist(folder, "train" or "test"): the four IDX files under their usual names, plain or .gz
function data.mnist(folder, part)
  local prefixes = {train = "train", test = "t10k"}
  local prefix = prefixes[part or "train"]
  util.check_type("data.mnist: folder", folder, "string")
  if not prefix then util.fail('data.mnist: expected "train" or "test", found "%s"', tostring(part)) end
  local base = folder .. "/" .. prefix
  return data.idx(present(base .. "-images-idx3-ubyte"), present(base .. "-labels-idx1-ubyte"))
end

-- cifar10(folder, "train" or "test"), or cifar10{file, ...}
function data.cifar10(from, part)
  if type(from) == "table" then return opened(core.dataset_cifar10(from)) end
  util.check_type("data.cifar10: folder", from, "string")
  if part ~= nil and part ~= "train" and part ~= "test" then
    util.fail('data.cifar10: expected "train" or "test", found "%s"', tostring(part))
  end
  local files = part == "test" and {from .. "/test_batch.bin"} or {}
  for i = 1, part == "test" and 0 or 5 do files[i] = ("%s/data_batch_%d.bin"):format(from, i) end
  return opened(core.dataset_cifar10(files))
end

-- ---- several inputs: a dataset of each, whose samples belong together

local Zip = {__name = "memtide.zip"}
Zip.__index = Zip

function data.is_dataset(value)
  return getmetatable(value) == Zip or type(value) == "userdata" and tostring(value) == "memtide.Dataset (open)"
end

-- zip({name = dataset, ...}, first): samples with several inputs; `first` names the dataset that has the targets.
function data.zip(parts, first)
  util.check_type("data.zip: datasets", parts, "table")
  if not parts[first] then util.fail('data.zip: expected the name of the dataset with the targets, found %s', tostring(first)) end
  local count, texts, shape, tokens = nil, {}, {}, {}
  for i, name in ipairs(util.sorted_keys(parts)) do
    if not data.is_dataset(parts[name]) or getmetatable(parts[name]) == Zip then
      util.fail("data.zip: %s: expected an open dataset of mt.data", tostring(name))
    end
    local info = parts[name]:info()
    count = count or info.count
    if info.count ~= count then
      util.fail("data.zip: %s has %d samples, and the others have %d", name, info.count, count)
    end
    texts[i], shape[name], tokens[name] = name .. "=" .. info.text, info.shape, info.tokens
  end
  return setmetatable({parts = parts, first = first, texts = table.concat(texts, " "), shape = shape, tokens = tokens}, Zip)
end

-- packed{sequences = {{7, 1, 4}, ...}, window =, tokens =, strategy = "bfd" or "wrapped", seed =, ignore_index = -100, pad = 0}:
-- rows of `window` tokens, each of several sequences, as the inputs input_ids and position_ids of a model with packed = true. A
-- sequence is a list of tokens below `tokens`, or a string, whose bytes are tokens below 256. seed: shuffles the sequences
-- before they are packed. info().packing: what became of them.
local STRATEGIES = {bfd = false, wrapped = true}
function data.packed(options)
  util.check_keys("data.packed", options, data.keys.packed)
  local wrapped = STRATEGIES[options.strategy or "bfd"]
  if wrapped == nil then
    util.fail('data.packed: strategy: expected "bfd" or "wrapped", found %s', tostring(options.strategy))
  end
  for _, name in ipairs{"sequences", "window", "tokens"} do
    if options[name] == nil then util.fail('data.packed: "%s" is missing', name) end
  end
  local given = {wrapped = wrapped}
  for _, name in ipairs(data.keys.packed) do if name ~= "strategy" then given[name] = options[name] end end
  local ids, positions, packing = core.dataset_packed(given)
  if not ids then return opened(ids, positions, packing) end
  local zip = data.zip({input_ids = ids, position_ids = positions}, "input_ids")
  zip.packing = packing
  return zip
end

-- As a dataset's: shape and tokens by input; classes and target are those of the first one.
function Zip:info()
  local info = self.parts[self.first]:info()
  info.shape, info.tokens, info.text, info.packing = self.shape, self.tokens, self.texts, self.packing
  return info
end

-- Loaders of the parts, in step: all draw the same permutation from the same seed. The runtime takes them by the names of
-- the network's inputs.
local Loaders = {}
Loaders.__index = Loaders

-- If one part fails, all stay where they are.
function Loaders:next()
  local zip, x, epoch, batch = self[1], {}, self:place()
  local first, t, n = self[zip.first]:next()
  if not first then return first, t, n end
  for name in pairs(zip.parts) do
    local one, message, code = first, nil, nil
    if name ~= zip.first then one, message, code = self[name]:next() end
    if not one then
      self:seek(epoch, batch)
      return nil, message, code
    end
    x[name] = one
  end
  return x, t, n
end

function Loaders:seek(epoch, batch)
  for name in pairs(self[1].parts) do
    local done, message, code = self[name]:seek(epoch, batch)
    if not done then return done, message, code end
  end
  return true
end

function Loaders:place() return self[self[1].first]:place() end

function Loaders:info()
  local info = {prefetch = 0, bytes = 0}
  for name in pairs(self[1].parts) do
    local part = self[name]:info()
    info.prefetch, info.bytes = part.prefetch, info.bytes + part.bytes
  end
  return info
end

function Loaders:batches() return self[self[1].first]:batches() end
function Loaders:close()
  for name in pairs(self[1].parts) do self[name]:close() end
end
Loaders.__close = Loaders.close

-- What core.loader gives of a dataset, or the same of the parts of several inputs; nil, message, code
function data.open(dataset, options)
  if getmetatable(dataset) ~= Zip then return core.loader(dataset, options) end
  local all = setmetatable({dataset}, Loaders)
  for name, part in pairs(dataset.parts) do
    local loader, message, code = core.loader(part, options)
    if not loader then return nil, message, code end
    all[name] = loader
  end
  return all
end

-- ---- loaders

local Loader = {__name = "memtide.loader"}
Loader.__index = Loader

-- loader{dataset, batch =, shuffle =, drop_last =, prefetch =, seed =}. prefetch: batches that a second thread fills
-- ahead; true is 1.
function data.loader(options)
  util.check_keys("data.loader", options, data.keys.loader)
  local dataset = options[1]
  if getmetatable(dataset) ~= Zip and type(dataset) ~= "userdata" then
    util.fail("data.loader: expected {dataset, batch = ...}, found a %s", type(dataset))
  end
  local loader = util.must(data.open(dataset, options))
  local text = ("%s batch=%d shuffle=%s drop_last=%s seed=%d"):format(dataset:info().text, options.batch or 1,
    options.shuffle and "true" or "false", options.drop_last and "true" or "false", options.seed or 0)
  return setmetatable({core = loader, text = text, epochs = 0, first = 0}, Loader)
end

-- for x, y, n in loader:epoch() do ... end: one pass over the data; n samples in the batch
function Loader:epoch()
  util.must(self.core:seek(self.epochs, self.first))
  self.epochs, self.first = self.epochs + 1, 0
  return function() return util.must(self.core:next()) end
end

-- The next epoch and batch, from 0
function Loader:place() return self.core:place() end

-- The next epoch() begins at this batch of this epoch, and gives the rest of it.
function Loader:seek(epoch, batch)
  util.must(self.core:seek(epoch, batch or 0))
  self.epochs, self.first = epoch, batch or 0
end

-- Batches per epoch.
function Loader:batches() return self.core:batches() end

-- {prefetch = batches ahead, bytes = host memory that they, and the order of the samples if they are shuffled, take}
function Loader:info() return self.core:info() end

function Loader:close() return self.core:close() end

function data.is_loader(value) return getmetatable(value) == Loader end

util.guard_methods("loader", Loader)

return data
