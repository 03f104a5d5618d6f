-- Data that stay bytes until the device (dataset:keep_bytes, nn.FromBytes): the same losses as where the reader makes
-- numbers of them, a quarter of the bytes in host memory and in what is sent, predicted to the byte; and what is refused.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local path = os.tmpname()
local function npy(file, descr, shape, content)
  local header = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }\n"):format(descr, shape)
  local out <close> = assert(io.open(file, "wb"))
  assert(out:write("\x93NUMPY\1\0" .. ("<s2"):pack(header) .. content))
end

local COUNT = 10
local function bytes_of(n)
  local bytes = {}
  for i = 1, n do bytes[i] = string.char((i * 37 + i // 7) % 256) end
  return table.concat(bytes)
end
local function write(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  npy(path .. ".x", "|u1", COUNT .. ", " .. table.concat(shape, ", "), bytes_of(COUNT * n))
  npy(path .. ".y", "|u1", COUNT, ("\0\1\2"):rep(COUNT):sub(1, COUNT))
  return n
end
local function dataset() return mt.data.npy(path .. ".x", path .. ".y") end

local MEAN, STD = {120.5, 100, 64.25}, {60, 70.5, 33}
local function last(shape) return #shape == 1 and {nn.Linear(shape[1], 3)} or
  #shape == 2 and {nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (shape[2] - 2), 3)} or
  {nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (shape[2] - 2) * (shape[3] - 2), 3)} end

local function run(data, model, options)
  local all = {name = "bytes", data = data, model = function() return nn.Sequential(model()) end, batch = 4, steps = 4,
    warmup = 0, shuffle = true, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.05}}
  for key, value in pairs(options or {}) do all[key] = value end
  local one = cell.compile(cell.build(mt.experiment(all):cells()[1]))
  local loader = cell.loader(one)
  local ahead = loader:info().bytes
  loader:close()
  local out = cell.run(one, function() end)
  out.predicted, out.ahead = one.prediction, ahead
  cell.release(one)
  return out
end
local function losses(out) return out.losses and table.concat(out.losses, " ") or tostring(out.reason) end

for _, shape in ipairs{{3, 8, 6}, {3, 12}, {3}} do
  local n = write(shape)
  for _, precision in ipairs{"fp32", "amp_bf16", "bf16"} do
    local what = ("%s, %s"):format(table.concat(shape, "x"), precision)
    local function plain() return last(shape) end
    local function with_bytes() return {nn.FromBytes{mean = MEAN, std = STD, divisor = 1}, table.unpack(last(shape))} end
    local options = {precision = precision, prefetch = 2}
    local host = run(dataset():normalize(MEAN, STD), plain, options)
    local device = run(dataset():keep_bytes(), with_bytes, options)
    tap.is(device.status, "ok", what .. ": measured as predicted")
    -- under bf16 the input is rounded before it is sent, or when the device has made it: to the same number
    tap.is(losses(device), losses(host), "... the losses are those of numbers")
    local order = COUNT * 8
    tap.is(host.ahead - order, 2 * 4 * (4 * n + 4), "... two batches ahead as numbers")
    tap.is(device.ahead - order, 2 * 4 * (n + 4), "... and as bytes")
  end
end

-- the network alone: the input's bytes, and those that the op makes of them
local shape = {3, 8, 6}
local n = write(shape)
local one = cell.compile(cell.build(mt.experiment{name = "b", data = dataset():keep_bytes(), batch = 4, steps = 2,
  model = nn.Sequential{nn.FromBytes(), nn.Flatten(), nn.Linear(n, 3)}, loss = nn.CrossEntropyLoss()}:cells()[1]))
local text = one.program:dump()
tap.has(text, ("input u8 (4, 3, 8, 6) nhwc input %d"):format(4 * n), "a byte for each element is the program's input")
tap.has(text, "from_bytes 0: 0.y = x:input divisor=255", "... which the op reads")
cell.release(one)

-- images of a reader that scales by 255; random data of that network; PyTorch's step
local folder = os.tmpname()
os.remove(folder)
assert(os.execute("mkdir " .. folder))
require "memtide.digits".write(folder, 20, 10, 1)
local function mnist() return mt.data.mnist(folder, "train") end
local function small() return {nn.Flatten(), nn.Linear(784, 10)} end
tap.is(losses(run(mnist():keep_bytes(), function() return {nn.FromBytes(), table.unpack(small())} end)), losses(run(mnist(), small)),
  "IDX: FromBytes() is what the reader does")
os.execute("rm -r " .. folder)
local drawn = run(nil, function() return {nn.FromBytes(), table.unpack(small())} end, {input = {1, 28, 28}, classes = 10, shuffle = false})
tap.is(drawn.status, "ok", "random bytes")
local function iterator() return function() return bytes_of(4 * 784), {1, 2, 3, 4} end end
for _, prefetch in ipairs{0, 2} do
  local out = run(iterator, function() return {nn.FromBytes(), table.unpack(small())} end,
    {input = {1, 28, 28}, classes = 10, shuffle = false, prefetch = prefetch})
  tap.is(out.status, "ok", "an iterator that gives strings of bytes")
  tap.is(out.ahead, prefetch * (4 * 784 + 4 * 4), "... which are held as they are")
end

-- a loop of one's own: strings, tables and a loader's batches of bytes
write{3, 2}
local trainer = assert(mt.trainer{model = nn.Sequential{nn.FromBytes{divisor = 1}, nn.Flatten(), nn.Linear(6, 3)},
  input = {3, 2}, batch = 4, loss = nn.CrossEntropyLoss(), mode = "eval"})
local bytes, table_of = bytes_of(24), {}
for i = 1, 24 do table_of[i] = bytes:byte(i) end
local loss = trainer:evaluate(bytes, {0, 1, 2, 0})
tap.is(trainer:evaluate(table_of, {0, 1, 2, 0}), loss, "a table of bytes is a string of them")
local x, y = mt.data.loader{dataset():keep_bytes(), batch = 4}:epoch()()
local same = true
for i, value in ipairs(x:values()) do same = same and value == table_of[i] end
tap.ok(same and #x:values() == 24, "a loader's batch has whole numbers")
tap.is(trainer:evaluate(x, y), loss, "... which a trainer takes")
for _, wrong in ipairs{-1, 256, 0.5} do
  table_of[3] = wrong
  tap.raises(("expected bytes, whole numbers from 0 to 255, found %s at 3"):format(wrong + 0.0), "no byte: " .. wrong, trainer.evaluate,
    trainer, table_of, {0, 1, 2, 0})
end
trainer:close()

-- ---- what does not fit
tap.raises("keep_bytes: these data are normalised: nn.FromBytes takes mean and std instead", "normalised before",
  function() dataset():normalize({1}, {2}):keep_bytes() end)
tap.raises("normalize: samples stay bytes (keep_bytes): nn.FromBytes takes mean and std instead", "normalised after",
  function() dataset():keep_bytes():normalize({1}, {2}) end)
tap.raises("keep_bytes: expected data of bytes", "numbers", function()
  mt.data.random{count = 4, shape = {2}, classes = 2}:keep_bytes()
end)
local function flat() return {nn.Flatten(), nn.Linear(6, 3)} end
tap.raises("the data are bytes (keep_bytes), which a network reads by nn.FromBytes", "a network of numbers", run,
  dataset():keep_bytes(), flat)
tap.raises("nn.FromBytes reads bytes, the data are numbers: dataset:keep_bytes() leaves them bytes", "data of numbers", run, dataset(),
  function() return {nn.FromBytes(), table.unpack(flat())} end)
tap.raises("the network's input holds bytes, which only nn.FromBytes reads", "another layer reads them, too", run,
  dataset():keep_bytes(), function() return {nn.Concat{nn.FromBytes(), nn.Identity()}, nn.Flatten(), nn.Linear(12, 3)} end)
for _, suffix in ipairs{"", ".x", ".y"} do os.remove(path .. suffix) end
tap.done()
