-- mt.data: datasets and loaders. All functions raise if an argument is wrong or a file cannot be read.
local core = require "memtide.core"
local util = require "memtide.base.util"

local data = {}

-- random{count =, shape =, classes = or target = shape, seed =}: random samples, each drawn when it is asked for. With
-- classes and target, target is the shape of a sample's labels. tokens = n: samples are indices below n.
function data.random(options)
  util.check_keys("data.random", options, {"count", "shape", "tokens", "classes", "target", "seed"})
  if options.count == nil or options.shape == nil then
    util.fail('data.random: "%s" is missing', options.count == nil and "count" or "shape")
  end
  return util.must(core.dataset_random(options))
end

-- text{file = path or text = string, window =, stride = window}: windows of bytes as tokens. Labels are the same window
-- one byte further on; info().alphabet has the byte of each token.
function data.text(options)
  util.check_keys("data.text", options, {"file", "text", "window", "stride"})
  return util.must(core.dataset_text(options))
end

-- Paths of IDX files; of .npy files, labels may be nil: see core/io/data.h.
function data.idx(images, labels) return util.must(core.dataset_idx(images, labels)) end
function data.npy(x, y) return util.must(core.dataset_npy(x, y)) end

-- tar{path, ...}: shards as WebDataset has them: plain tar archives with KEY.npy and KEY.cls for each sample
function data.tar(files)
  util.check_type("data.tar: files", files, "table")
  return util.must(core.dataset_tar(files))
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
  if type(from) == "table" then return util.must(core.dataset_cifar10(from)) end
  util.check_type("data.cifar10: folder", from, "string")
  if part ~= nil and part ~= "train" and part ~= "test" then
    util.fail('data.cifar10: expected "train" or "test", found "%s"', tostring(part))
  end
  local files = part == "test" and {from .. "/test_batch.bin"} or {}
  for i = 1, part == "test" and 0 or 5 do files[i] = ("%s/data_batch_%d.bin"):format(from, i) end
  return util.must(core.dataset_cifar10(files))
end

local Loader = {__name = "memtide.loader"}
Loader.__index = Loader

-- loader{dataset, batch =, shuffle =, drop_last =, prefetch =, seed =}. prefetch: batches that a second thread fills
-- ahead; true is 1.
function data.loader(options)
  util.check_keys("data.loader", options, {1, "batch", "shuffle", "drop_last", "prefetch", "seed"})
  local dataset = options[1]
  if type(dataset) ~= "userdata" then
    util.fail("data.loader: expected {dataset, batch = ...}, found a %s", type(dataset))
  end
  local opened = util.must(core.loader(dataset, options))
  local text = ("%s batch=%d shuffle=%s drop_last=%s seed=%d"):format(dataset:info().text, options.batch or 1,
    options.shuffle and "true" or "false", options.drop_last and "true" or "false", options.seed or 0)
  return setmetatable({core = opened, text = text, epochs = 0, first = 0}, Loader)
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
