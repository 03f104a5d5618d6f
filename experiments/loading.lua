-- Where samples come from: memory, a file that stays on disk, a compressed one, tar shards; and batches read ahead of
-- the step. The samples are the same. Compare, on the CPU, device_used_bytes: the memory of the
-- process; and the time of whole runs, as step_ms there is the step without its batch. docs/data.md has a table.
--   memtide run experiments/loading.lua -- MIB FOLDER    once, it writes as much random data (64) into FOLDER (loading)
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local mib, folder = math.tointeger(... or 64), select(2, ...) or "loading"
if not mib or mib < 1 then error("expected a number of MiB, found " .. tostring(...), 0) end
local SHAPE, BYTES, SHARDS, CLASSES = {3, 64, 64}, 3 * 64 * 64, 4, 10
local each = mib * (1 << 20) // BYTES // SHARDS -- samples of a shard
local base = ("%s/%d"):format(folder, mib)
local x, y, shards = base .. ".x.npy", base .. ".y.npy", {}
for k = 1, SHARDS do shards[k] = ("%s.%d.tar"):format(base, k) end

local function npy(shape, content)
  local header = ("{'descr': '|u1', 'fortran_order': False, 'shape': (%s,), }\n"):format(table.concat(shape, ", "))
  return "\x93NUMPY\1\0" .. ("<s2"):pack(header) .. content
end

-- A member of a tar archive: a header with the sum of its bytes, then the content in whole blocks
local function member(name, content)
  local before = ("c100c8c8c8c12c12"):pack(name, "0000644", "0000000", "0000000", ("%011o"):format(#content), "0")
  local after, sum = "0" .. ("\0"):rep(100) .. "ustar\00000" .. ("\0"):rep(247), 8 * (" "):byte()
  for byte in (before .. after):gmatch "." do sum = sum + byte:byte() end
  return before .. ("%06o\0 "):format(sum) .. after .. content .. ("\0"):rep(-#content % 512)
end

local function write(path, mode, content) assert(assert(assert(io.open(path, mode)):write(content)):close()) end

if not mt.data.exists(x .. ".gz") then -- the last that is written
  assert(os.execute(("mkdir -p '%s'"):format(folder)))
  math.randomseed(1)
  write(x, "wb", npy({each * SHARDS, table.unpack(SHAPE)}, ""))
  write(y, "wb", npy({each * SHARDS}, ("\0\1\2\3\4\5\6\7\8\9"):rep(each * SHARDS):sub(1, each * SHARDS)))
  for k = 1, SHARDS do
    local plain, members = {}, {}
    for i = 1, each do
      plain[i] = ("<i8i8i8"):pack(math.random(0), math.random(0), math.random(0)):rep(BYTES // 24)
      local name, label = ("%d"):format((k - 1) * each + i), ((k - 1) * each + i - 1) % CLASSES
      members[i] = member(name .. ".npy", npy(SHAPE, plain[i])) .. member(name .. ".cls", ("%d"):format(label))
    end
    write(x, "ab", table.concat(plain))
    write(shards[k], "wb", table.concat(members) .. ("\0"):rep(1024))
  end
  assert(os.execute(("gzip -1 -c '%s' >'%s.part' && mv '%s.part' '%s.gz'"):format(x, x, x, x)))
end

local sources = {
  memory = function() return mt.data.npy(x, y):cache() end, disk = function() return mt.data.npy(x, y) end,
  compressed = function() return mt.data.npy(x .. ".gz", y) end, shards = function() return mt.data.tar(shards) end,
}

return mt.experiment{name = "loading", model_name = "small CNN",
  model = nn.Sequential{nn.Conv2d(3, 8, 4, {stride = 4}), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, CLASSES)},
  data = function(settings) return sources[settings.source]():normalize({127.5}, {127.5}) end,
  batch = 64, shuffle = true, drop_last = true, steps = 80, warmup = 5,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.001},
  sweep = {{"source", {"memory", "disk", "compressed", "shards"}}, {"prefetch", {0, 1, 4}}}}
