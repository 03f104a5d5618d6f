-- The number of threads changes no bit of a step of small networks: of ops that one thread does whatever there are, of those
-- that several share, and of products of few samples. With more threads than the machine has processors, too.
local core = require "memtide.core"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function mlp(inputs, hidden, act) return nn.Sequential{nn.Linear(inputs, hidden), act, nn.Linear(hidden, 10)} end

local NETWORKS = {
  {"mlp, SGD", mlp(784, 128, nn.ReLU()), {8, 784}, optim.SGD{lr = 0.1}},
  {"mlp, Adam", mlp(784, 128, nn.ReLU()), {8, 784}, optim.Adam{lr = 1e-3}},
  {"ragged, a norm that is clipped", mlp(1030, 77, nn.GELU()), {5, 1030}, optim.AdamW{lr = 1e-3, clip_norm = 0.1}},
  {"one sample", mlp(2048, 300, nn.Tanh()), {1, 2048}, optim.SGD{lr = 0.1, momentum = 0.9}},
  {"many samples", mlp(100, 256, nn.ReLU()), {200, 100}, optim.Adafactor()},
  {"states of 8 bits", mlp(784, 128, nn.ReLU()), {16, 784}, optim.Adam8bit{lr = 1e-3}},
  {"a small convolution", nn.Sequential{nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)},
    {2, 2, 6, 6}, optim.SGD{lr = 0.1}},
}

-- What three steps make of a network: losses and parameters
local function trained(one, device)
  local shape, x, t, all = one[3], {}, {}, {}
  local network = assert(core.network(one[2], nn.CrossEntropyLoss(), shape))
  local program = assert(core.compile(network, {optimizer = one[4]}, device))
  local runtime <close> = assert(core.runtime{programs = {program}, allocator = "planned", seed = 3})
  local count = 1
  for _, n in ipairs(shape) do count = count * n end
  for step = 1, 3 do
    for i = 1, count do x[i] = math.sin(0.377 * i + step) end
    for i = 1, shape[1] do t[i] = (i + step) % 10 end
    all[#all + 1] = ("%a"):format((assert(runtime:step(1, x, t))))
  end
  for _, param in ipairs(network:params()) do
    for _, value in ipairs(runtime:read(param.name, 1)) do all[#all + 1] = ("%a"):format(value) end
  end
  return all
end

-- Threads that this process has
local function threads_now()
  for line in io.lines "/proc/self/status" do
    local found = line:match "^Threads:%s*(%d+)"
    if found then return found end
  end
end

-- With an argument: prints of each network what was made of it, the one of small ops first, and how many threads there are then.
if ... then
  local device = assert(core.device "cpu")
  for i = #NETWORKS, 1, -1 do
    local all = trained(NETWORKS[i], device)
    print(NETWORKS[i][1], #all, core.hash(table.concat(all, " ")))
    io.stderr:write(threads_now(), "\n")
  end
  return
end

local tap = dofile "tests/tap.lua"
local program = os.getenv "MEMTIDE" or "build/memtide"

-- -> the lines of a process of that many threads; how many it had after the first network, and at the end
local function made_by(threads)
  local counts = os.tmpname()
  local pipe <close> = assert(io.popen(("OMP_NUM_THREADS=%d '%s' tests/lua/t_threads.lua train 2>%s"):format(threads, program, counts)))
  local lines, had = {}, {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  for line in io.lines(counts) do had[#had + 1] = math.tointeger(tonumber(line)) end
  os.remove(counts)
  return lines, had[1], had[#had]
end

local alone = made_by(1)
tap.is(#alone, #NETWORKS, "all networks were trained")
for threads = 2, 4 do
  local lines, first, last = made_by(threads)
  for i, line in ipairs(alone) do tap.is(lines[i], line, ("%s: %d threads"):format(line:match "^[^\t]*", threads)) end
  tap.is(first, 1, "small ops start no threads")
  tap.ok(last and last >= threads, ("others start %d"):format(threads))
end
tap.done()
