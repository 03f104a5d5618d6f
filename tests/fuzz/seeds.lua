-- memtide tests/fuzz/seeds.lua FOLDER: FOLDER/TARGET/NAME, small files as they should be, for every target.
local core = require "memtide.core"
local wire = require "memtide.sweep.wire"
local root = arg[1]
local targets = dofile((arg[0]:match "^(.*/)" or "") .. "targets.lua")

local function put(target, name, bytes)
  assert(core.make_folder(root) and core.make_folder(root .. "/" .. target))
  local file = assert(io.open(("%s/%s/%s"):format(root, target, name), "wb"))
  assert(file:write(bytes))
  assert(file:close())
end

local function gzip(bytes, level)
  local path = os.tmpname()
  local file = assert(io.open(path, "wb"))
  assert(file:write(bytes))
  assert(file:close())
  local pipe = assert(io.popen(("gzip -%d -nc '%s'"):format(level, path)))
  local out = pipe:read "a"
  pipe:close()
  os.remove(path)
  return out
end

local function pair(a, b) return ("<s2"):pack(a) .. b end

-- ---- images
local function idx(sizes, bytes) return "\0\0\8" .. string.char(#sizes) .. (">I4"):rep(#sizes):pack(table.unpack(sizes))
  .. bytes end
local pixels = ("\1\2\250\0\7\9"):rep(4)
local images, labels = idx({4, 3, 2}, pixels), idx({4}, "\1\2\3\4")
put("idx", "images", pair(images, labels))
put("idx", "channels", pair(idx({4, 1, 3, 2}, pixels), labels))
put("idx", "one", pair(idx({1, 1, 1}, "x"), idx({1}, "\0")))
put("gz", "images", gzip(images, 6))
put("gz", "stored", gzip(images, 1))
put("gz", "two", gzip(images:sub(1, 10), 6) .. gzip(images:sub(11), 6))
put("gz", "junk", gzip(images, 6) .. "junk")
put("gz", "plain", images)
local record = "\3" .. ("\0"):rep(3072)
put("cifar", "two", record .. record)
put("cifar", "gz", gzip(record, 6))

-- ---- text
put("text", "plain", "hello world, hello")
put("text", "gz", gzip("hello world", 6))

-- ---- npy
local function npy(descr, shape, bytes, version, order)
  local header = ("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }"):format(descr, order or "False", shape)
  header = header .. (" "):rep(63 - (10 + #header) % 64) .. "\n"
  local length = (version or 1) == 1 and ("<s2"):pack(header) or ("<s4"):pack(header)
  return "\x93NUMPY" .. string.char(version or 1, 0) .. length .. bytes
end
local x = npy("<f4", "(4, 2)", ("\0\0\128\63"):rep(8))
put("npy", "f4", x)
put("npy", "f8", npy("<f8", "(4,)", ("<d"):pack(1.5):rep(4)))
put("npy", "u1", npy("|u1", "(4, 1, 2, 3)", pixels))
put("npy", "i4", npy("<i4", "(2, 2)", ("<i4"):pack(7):rep(4)))
put("npy", "i8", npy("<i8", "(2, 2)", ("<i8"):pack(7):rep(4), 2))
put("npy", "fortran", npy("<f4", "(4, 2)", ("\0"):rep(32), 1, "True"))
put("npy", "big", npy(">f4", "(4, 2)", ("\0"):rep(32)))
put("npy_pair", "i8", pair(x, npy("<i8", "(4,)", ("<i8"):pack(1):rep(4))))
put("npy_pair", "u1", pair(x, npy("|u1", "(4,)", "\0\1\2\3")))
put("npy_pair", "f4", pair(x, x))

-- ---- tar
local function member(name, bytes, type, fields)
  fields = fields or {}
  local size = fields.size or ("%011o\0"):format(#bytes)
  local head = ("c100c8c8c8c12c12"):pack(name:sub(1, 100), "0000644", "0000000", "0000000", size, "00000000000")
  local tail = (type or "0") .. ("c100"):pack "" .. (fields.magic or "ustar\00000") .. ("\0"):rep(80)
    .. ("c155"):pack(fields.prefix or "") .. ("\0"):rep(12)
  local sum = 8 * 32
  for _, text in ipairs{head, tail} do for i = 1, #text do sum = sum + text:byte(i) end end
  return head .. ("%06o\0 "):format(sum) .. tail .. bytes .. ("\0"):rep(-#bytes % 512)
end
local function archive(...) return table.concat{...} .. ("\0"):rep(1024) end
local small = npy("|u1", "(2, 3)", "\1\2\3\4\5\6")
local long = ("d/"):rep(60) .. "a.npy"
local function pax(text) return ("%d %s\n"):format(#text + 4, text) end -- of two digits
put("tar", "two", archive(member("a.npy", small), member("a.cls", "3"), member("b.npy", small), member("b.cls", "12\n")))
put("tar", "alone", archive(member("dir/", "", "5"), member("dir/a.npy", small), member("dir/b.npy", small)))
put("tar", "gnu", archive(member("././@LongLink", long .. "\0", "L"), member(long:sub(1, 100), small)))
put("tar", "pax", archive(member("pax", pax "mtime=1.5" .. pax "path=k.npy", "x"), member("x", small)))
put("tar", "pax_size", archive(member("pax", pax(("size=%05d"):format(#small)), "x"), member("k.npy", small)))
put("tar", "global", archive(member("pax", pax "comment=x", "g"), member("k.npy", small, "7", {prefix = "p/q"})))
put("tar", "base256", archive(member("k.npy", small, "0", {size = "\x80" .. (">I11"):pack(#small)})))
put("tar", "link", archive(member("k.npy", "", "2")))
put("tar", "jpeg", archive(member("k.jpg", "JFIF"), member("k.cls", "1")))

-- ---- safetensors
local function tensors(header, bytes) return ("<s8"):pack(header) .. (bytes or "") end
put("safetensors", "two", tensors('{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"I64",'
  .. '"shape":[2],"data_offsets":[24,40]},"__metadata__":{"format":"pt","k":"v\\u00e9\\n"}}', ("\0"):rep(40)))
put("safetensors", "types", tensors('{"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]},"b":{"dtype":"BF16",'
  .. '"shape":[4],"data_offsets":[8,16]},"c":{"dtype":"BOOL","shape":[8],"data_offsets":[16,24]},"d":{"dtype":"F4",'
  .. '"shape":[4],"data_offsets":[24,26]},"e":{"dtype":"F64","shape":[1],"data_offsets":[26,34]}}', ("\1"):rep(34)))
put("safetensors", "empty", tensors "{}")
put("safetensors", "scalars", tensors('{"z":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},"s":{"dtype":"F32",'
  .. '"shape":[],"data_offsets":[0,4]}}', ("\0"):rep(4)))
put("safetensors", "escapes", tensors('{"\\u00e9\\ud83d\\ude00\\n":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  ',
  ("\0"):rep(4)))

-- ---- what torch.save writes
do
  local torch_save = dofile((arg[0]:match "^(.*/)" or "") .. "../torch_save.lua")
  local storages = {{"data/0", torch_save.floats(9, 9, 1, 2, 3, 4, 5, 6)}, {"data/1", ("<dd"):pack(7, 8)}, {"byteorder", "little"}}
  local weight = {type = "FloatStorage", key = "0", count = 8, offset = 2, shape = {2, 3}, stride = {3, 1}}
  local bias = {type = "DoubleStorage", key = "1", count = 2, shape = {2}, stride = {1}}
  local items = {{"weight", torch_save.tensor(weight)}, {"bias", torch_save.tensor(bias)}}
  put("state_dict", "two", torch_save.archive(items, storages))
  put("state_dict", "one", torch_save.archive({items[1]}, {storages[1]}))
  put("state_dict", "none", torch_save.archive({}, {}))
end

-- ---- a saved run, with checksums and without
do
  local trainer, loader = targets.new_run()
  assert(core.make_folder(root) and core.make_folder(root .. "/state"))
  local path = root .. "/state/run.safetensors"
  assert(trainer:save_state(path, {loader = loader}))
  local file = assert(io.open(path, "rb"))
  local header, at = ("<s8"):unpack(file:read "a")
  file:seek("set", at - 1)
  header = header:gsub("memtide state 2", "memtide state 1"):gsub('"crc32":"[^"]*",', "")
  put("state", "older.safetensors", tensors(header, file:read "a"))
  file:close()
end

-- ---- pickles
do
  local pickle = dofile((arg[0]:match "^(.*/)" or "") .. "../pickle.lua")
  local frame = {name = "forward", filename = "model.py", line = 12}
  local values = {frames = {frame, frame}, sizes = {1, 300, 70000, 1 << 40, -5}, yes = true, nothing = pickle.none,
    pool = pickle.tuple{0, 0}, empty = pickle.dict{}}
  for _, protocol in ipairs{0, 2, 4} do put("pickle", "plain" .. protocol, pickle.dump(values, protocol)) end
  put("pickle", "long", pickle.dump{("x"):rep(300), 2.5})

  local function event(action, addr, size)
    return {action = action, addr = addr, size = size, stream = 0, time_us = 5, frames = {frame}}
  end
  local blocks = {{size = 512, requested_size = 500, state = "active_allocated"}, {size = 1024, state = "inactive"},
    {size = 512, state = "active_allocated", frames = {frame}}}
  local function segment(address, device)
    return {device = device, address = address, total_size = 2 << 20, stream = 0, segment_type = "small",
      blocks = blocks}
  end
  local snapshot = {segments = {segment(4096, 0), segment(1 << 22, 0)}, device_traces = {{
    event("segment_alloc", 1 << 22, 2 << 20), event("alloc", 1 << 22, 500), event("free_completed", 5000 - 392, 700),
    event("alloc", 5632, 512)}},
    allocator_settings = pickle.dict{PYTORCH_CUDA_ALLOC_CONF = "max_split_size_mb:32"}}
  for _, protocol in ipairs{0, 4} do put("snapshot", "small" .. protocol, pickle.dump(snapshot, protocol)) end
end

-- ---- results: the columns are the core's
do
  local row = core.row{"width"}
  for column, value in pairs{experiment = "e", case = "a,b", cell = "5f3a-1-2", ["repeat"] = 1, status = "ok",
    width = 8, reason = 'said "no"', loss_first = 2.5} do row:set(column, value) end
  local line = row:line()
  put("csv", "rows", row:header() .. line .. line:gsub("5f3a", "aaaa"))
  put("csv", "header", row:header())
  put("csv", "torn", row:header() .. line .. line:sub(1, 9))
  put("csv", "quote", row:header() .. line .. 'x,"open')
  put("csv", "crlf", (row:header() .. line):gsub("\n", "\r\n"))
end
put("list", "cells", "shard,experiment,case,cell,repeat,batch\n1,e,'=a,aa-b-c,1,8\n2,e,\"b,\"\"c\"\"\",aa-b-d,1,8\n")
put("list", "crlf", "shard,experiment,case,cell,repeat\r\n1,e,a,aa-b-c,1\r\n")

-- ---- a GPU
local file = assert(io.open((arg[0]:match "^(.*/)" or "") .. "../../kernels/cuda/devices/h200.json", "rb"))
put("describe", "h200", file:read "a")
file:close()
put("describe", "least", '{"deviceName": "G", "deviceVer": 900, "multiProcessorCount": 1, "l2CacheSize": 1, '
  .. '"totalGlobalMem": 1}')

-- ---- what workers say
for name, message in pairs{
  setup = {path = "s.lua", text = "return 1", args = {"a", "b"}, purpose = "run", options = {set = {{"batch", "8"}}}},
  ready = {word = "ready"}, refused = {word = "refused", text = "no", code = "script"}, go = {go = true},
  built = {word = "built", columns = {cell = "aa-b-c", ["repeat"] = 1, batch = 8, graph = true}},
  samples = {word = "samples", list = {{step = 1, seconds = 0.25, flag = ""}, {step = 2, seconds = 1 / 0}}},
  done = {word = "done", columns = {status = "error", reason = ("x"):rep(300), loss_first = 0 / 0}, unbuilt = false},
  devices = {word = "devices", names = {"cuda:0"}},
} do put("wire", name, wire.frame(message)) end
put("wire", "two", wire.frame{k = 1} .. wire.frame{k = 2})
