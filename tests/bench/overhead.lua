-- What a sweep costs beside the work of its cells: make overhead. Prints the figures, and holds them to what
-- docs/sweeps.md promises. LOAD: cells that are predicted (10000), a multiple of 100.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local plan = require "memtide.plan"
local script = require "memtide.script"
local stats = require "memtide.stats"
local sweep = require "memtide.sweep"
local worker = require "memtide.worker"

local ROUNDS, CELLS = 5, 200
local LOAD = math.tointeger(tonumber(os.getenv "LOAD" or 10000))
-- in memory: how long a disk takes to flush a row is not memtide's
local folder = os.tmpname():gsub("^/tmp/", "/dev/shm/")
os.remove(folder)
assert(core.make_folder(folder))
local csv = folder .. "/x.csv"

local TEXT = [[
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local function upto(n)
  local list = {}
  for i = 1, n do list[i] = i end
  return list
end
return mt.experiment{
  name = "overhead", input = {8}, classes = 4, batch = 4, steps = 2, warmup = 0,
  sweep = {{"a", upto(%d)}, {"b", upto(10)}},
  model = nn.Sequential{nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)},
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1},
}]]

local function load_cells(count)
  local text = TEXT:format(count // 10)
  return script.load_experiment("overhead.lua", {}, text), {path = "overhead.lua", text = text, args = {}}
end

local function forget(path) for _, name in ipairs{path, path:gsub("csv$", "samples.csv")} do os.remove(name) end end

-- Seconds of a sweep of that many cells in a worker, with rows and samples in files
local function swept(purpose, count)
  local experiment, source = load_cells(count)
  forget(csv)
  local begun = core.clock()
  sweep.run(experiment, purpose, {csv = csv, set = {}, quiet = true, say = print, script = source})
  return core.clock() - begun
end

-- Seconds of the cells' own work: the same cells in this process, their rows told to nobody
local function worked(count)
  local cells = plan.new((load_cells(count)), "run", {set = {}})
  local function nothing() end
  local tell = {note = nothing, built = function() return true end, skipped = nothing, columns = nothing,
    samples = nothing, done = nothing}
  local begun = core.clock()
  for k = 1, count do worker.run(cells, {k = k}, tell) end
  return core.clock() - begun
end

-- Most bytes that this process had in memory until now
local function most_memory()
  for line in io.lines "/proc/self/status" do
    local kib = line:match("^VmHWM:%s*(%d+)")
    if kib then return tonumber(kib) * 1024 end
  end
end

local function load_average()
  local file <close> = assert(io.open "/proc/loadavg")
  return file:read("a"):match("^(%S+)")
end

-- Two sweeps of different length: what both have to begin with (a process, a script) drops out.
local over, own = {}, {}
swept("run", 10)
for i = 1, ROUNDS do
  local long, short = swept("run", CELLS + 50), swept("run", 50)
  own[i] = worked(CELLS) / CELLS
  over[i] = (long - short) / CELLS - own[i]
end
local beyond = stats.median(over)
print(("# %d cells: %.2f ms each of their own work, %.2f ms beyond (%.2f to %.2f); load %s"):format(CELLS,
  stats.median(own) * 1e3, beyond * 1e3, stats.sorted(over)[1] * 1e3, stats.sorted(over)[ROUNDS] * 1e3,
  load_average()))
tap.ok(beyond < 2e-3, "a cell in a warm worker costs less than 2 ms beyond its own work")

swept("predict", LOAD // 10)
local before = most_memory()
local seconds = swept("predict", LOAD)
local after = most_memory()
print(("# %d predicted cells: %.1f s; at most %.1f MB, %.1f MB at a tenth of them; load %s"):format(LOAD, seconds,
  after / 1e6, before / 1e6, load_average()))
local rows = -1
for _ in io.lines(csv) do rows = rows + 1 end
tap.is(rows, LOAD, "each has a row")
tap.ok(seconds < 20 * LOAD / 1e4, "10,000 predicted cells take less than 20 s")
tap.ok(after - before < 200 * LOAD, "the parent's memory grows by less than 200 bytes a row: their index")
os.execute(("rm -r '%s'"):format(folder))
tap.done()
