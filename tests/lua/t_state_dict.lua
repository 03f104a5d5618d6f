-- Files of torch.save: what is read, and what is refused.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local torch_save = dofile "tests/torch_save.lua"
local nn, optim = mt.nn, mt.optim

local path = os.tmpname()

local function write(bytes)
  local file <close> = assert(io.open(path, "wb"))
  file:write(bytes)
end

local zip, tensor, int, floats = torch_save.zip, torch_save.tensor, torch_save.int, torch_save.floats

local WEIGHT = {type = "FloatStorage", key = "0", count = 8, offset = 2, shape = {2, 3}, stride = {3, 1}}
local BIAS = {type = "DoubleStorage", key = "1", count = 2, shape = {2}, stride = {1}}
local STORAGES = {{"data/0", floats(9, 9, 1, 2, 3, 4, 5, 6)}, {"data/1", ("<dd"):pack(7, 8)}, {"byteorder", "little"}}

local function archive(items, storages, method) return torch_save.archive(items, storages or STORAGES, method) end

local function changed(t, more)
  local copy = {}
  for key, value in pairs(t) do copy[key] = value end
  for key, value in pairs(more) do copy[key] = value end
  return copy
end

-- ---- what is read

local good = archive{{"weight", tensor(WEIGHT)}, {"bias", tensor(BIAS)}}
local trainer <close> = assert(mt.trainer{model = nn.Linear(3, 2), input = {3}, batch = 1, loss = nn.MSELoss(),
  optimizer = optim.SGD{lr = 0.1}})
write(good)
tap.is(trainer:load(path) and table.concat(trainer:read "weight", " "), "1.0 2.0 3.0 4.0 5.0 6.0",
  "a part of a storage is the weight")
tap.is(table.concat(trainer:read "bias", " "), "7.0 8.0", "float64 becomes float32")
local parameter = "ctorch._utils\n_rebuild_parameter\n(" .. tensor(WEIGHT) .. "\x88}tR"
write(archive{{"weight", parameter}, {"bias", tensor(BIAS)}})
tap.ok(trainer:load(path), "parameters are tensors")
write(archive{{"bias", tensor(changed(WEIGHT, {shape = {2}, stride = {1}}))}})
tap.is(#trainer:load(path, {strict = false}).missing, 1, "a name that is missing is named")
tap.is(table.concat(trainer:read "bias", " "), "1.0 2.0", "two tensors may share a storage")
do
  local file <close> = assert(core.safetensors(path))
  tap.is(#file:list(), 1, "the tensors are listed")
  tap.is(next(file:metadata()), nil, "there is no metadata")
end

-- ---- what wrappers and training programs put around a state_dict

local function dict(...) -- of name, value, ...
  local parts = {...}
  for i = 1, #parts, 2 do parts[i] = "X" .. ("<s4"):pack(parts[i]) end
  return "}(" .. table.concat(parts) .. "u"
end

-- The weights after the file was loaded into zeros
local function loaded(bytes)
  trainer:write("weight", {0, 0, 0, 0, 0, 0})
  write(bytes)
  assert(trainer:load(path))
  return table.concat(trainer:read "weight", " ")
end

for _, prefix in ipairs{"_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."} do
  tap.is(loaded(archive{{prefix .. "weight", tensor(WEIGHT)}, {prefix .. "bias", tensor(BIAS)}}), "1.0 2.0 3.0 4.0 5.0 6.0",
    ("names that begin with %s"):format(prefix))
end
write(archive{{"weight", tensor(WEIGHT)}, {"bias", tensor(BIAS)}, {"module.other", tensor(BIAS)}})
tap.is(table.concat(trainer:load(path, {strict = false}).unexpected, " "), "module.other", "a name that is not known is named as in the file")
for _, key in ipairs{"model", "state_dict", "model_state_dict"} do
  tap.is(loaded(archive{{"optimizer", dict("state", "}")}, {key, dict("weight", tensor(WEIGHT), "bias", tensor(BIAS))}, {"step", int(3)}}),
    "1.0 2.0 3.0 4.0 5.0 6.0", ("a checkpoint that has the state_dict under %s"):format(key))
end
do
  local masked <close> = assert(mt.trainer{model = nn.Graph{proj = nn.Linear(4, 4), attn = nn.Graph{
    bias = nn.Mask(3, 3, 1, true, {made = "buffer", of = {5, 5}}),
    forward = function(self, x) return x:matmul(x:transpose(-2, -1)):masked_fill(self.bias, 0) end},
    forward = function(self, x) return self.attn(self.proj(x)) end},
    input = {3, 4}, batch = 1, loss = nn.MSELoss(), optimizer = optim.SGD{lr = 0.1}})
  local function file(mask)
    write(archive({{"_orig_mod.proj.weight", tensor{type = "FloatStorage", key = "0", count = 16, shape = {4, 4}, stride = {4, 1}}},
      {"_orig_mod.proj.bias", tensor{type = "FloatStorage", key = "0", count = 16, shape = {4}, stride = {1}}},
      {"_orig_mod." .. mask, tensor{type = "FloatStorage", key = "1", count = 25, shape = {1, 1, 5, 5}, stride = {25, 25, 5, 1}}}},
      {{"data/0", ("f"):rep(64)}, {"data/1", ("m"):rep(100)}}))
  end
  file "attn.bias"
  tap.is(#masked:load(path).unexpected, 0, "the buffer of a mask, which no memory holds here, is left out")
  file "bias"
  tap.has(tostring(select(2, pcall(masked.load, masked, path))), "unexpected: _orig_mod.bias", "... and no other")
end

-- ---- what is refused, and why

local function refused(bytes, expected, what)
  write(bytes)
  local found, message = core.safetensors(path)
  tap.ok(not found, what)
  tap.has(tostring(message), expected, what .. ": " .. tostring(message))
end

local function one(value) return archive{{"w", value}} end

refused(one "cos\nsystem\n(X\2\0\0\0lstR", "GLOBAL: refused: os system", "a pickle that would call something")
refused(one "ctorch.nn.modules.linear\nLinear\n)\x81", "torch.nn.modules.linear Linear", "a whole model")
refused(one(int(3)), '"w": expected a tensor, found a whole number', "a number beside tensors")
refused(one "}", '"w": expected a tensor, found a dict: a state_dict is read, or one under "model"', "a checkpoint with other names")
refused(archive{{"model", tensor(WEIGHT)}, {"step", int(3)}}, '"step": expected a tensor', "a tensor that is called model")
refused(zip{{"data.pkl", "\x80\2]."}}, "expected a state_dict, found a list", "a list")
refused(one(tensor(changed(WEIGHT, {stride = {1, 2}}))), "does not lie in order", "a transposed tensor")
refused(one(tensor(changed(WEIGHT, {offset = 3}))), "does not fit its storage", "a tensor beyond its storage")
refused(one(tensor(changed(WEIGHT, {offset = -1}))), "does not fit its storage", "a tensor before its storage")
refused(one(tensor(changed(WEIGHT, {key = "7"}))), "has no such storage", "a storage that is not there")
refused(one(tensor(changed(WEIGHT, {shape = {-2, 3}}))), "its shape is damaged", "a negative size")
refused(one(tensor(changed(WEIGHT, {type = "QInt8Storage"}))), "torch QInt8Storage", "a type that is not known")
refused(archive({{"w", tensor(WEIGHT)}, {"w", tensor(BIAS)}}), "expected once, found twice", "a name twice")
refused(archive({{"w", tensor(WEIGHT)}}, STORAGES, 8), "is compressed", "a compressed archive")
refused(archive({{"w", tensor(WEIGHT)}}, {STORAGES[1], {"byteorder", "big"}}), "big-endian", "another byte order")
refused(zip{{"other", ""}}, "expected data.pkl", "another archive")
refused("\x80\2\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "before 1.6", "the older format")

-- Cut off anywhere, or with a byte changed, a file gives an error or the tensors that still fit into it.
local quiet = true
for n = 0, #good - 1 do
  write(good:sub(1, n))
  quiet = quiet and not core.safetensors(path)
end
tap.ok(quiet, "a file that is cut off is refused")
local read = 0
for i = 1, #good do
  write(good:sub(1, i - 1) .. string.char(good:byte(i) ~ 0xff) .. good:sub(i + 1))
  local file = core.safetensors(path)
  if file then
    read = read + 1
    file:close()
  end
end
tap.ok(read < #good, ("a byte changed: %d of %d files are read"):format(read, #good))

os.remove(path)
tap.done()
