-- What a sweep costs beside the work of its cells: make overhead. Prints the figures, and holds them to what
-- docs/sweeps.md promises. LOAD: cells that are predicted, 10000 or a larger power of ten (memory grows until a thousand of them).
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local selection = require "memtide.sweep.selection"
local script = require "memtide.sweep.script"
local stats = require "memtide.results.stats"
local sweep = require "memtide.sweep.sweep"
local worker = require "memtide.sweep.worker"

local ROUNDS, CELLS = 5, 200
local MORE = 500e3 -- bytes: 8 for the place of each row, twice while the index grows, and what a collection leaves over
local LOAD = math.tointeger(tonumber(os.getenv "LOAD" or 10000))

-- With arguments: only the parent of such a sweep, see below.
local alone, count_asked, csv = ...
local folder
if not csv then -- in memory: how long a disk takes to flush a row is not memtide's
  folder = os.tmpname():gsub("^/tmp/", "/dev/shm/")
  os.remove(folder)
  assert(core.make_folder(folder))
  csv = folder .. "/x.csv"
end

local TEXT = [[
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local axes, digits = {}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
for i = 1, #"%s" do axes[i] = {("abcdefgh"):sub(i, i), digits} end
return mt.experiment{
  name = "overhead", input = {8}, classes = 4, batch = 4, steps = 2, warmup = 0, sweep = axes, repeats = %d,
  model = function(s)
    for i = 1, #axes do assert(s[("abcdefgh"):sub(i, i)]) end
    return nn.Sequential{nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)}
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1},
}]]

-- So many cells: of each power of ten the script has one axis more, and is otherwise the same.
local function load_cells(count)
  local repeats, zeros = tostring(count):match("^(%d-)(0*)$")
  local text = TEXT:format(zeros, tonumber(repeats))
  return script.load_experiment("overhead.lua", {}, text), {path = "overhead.lua", text = text, args = {}}
end

local function forget(path) for _, name in ipairs{path, path:gsub("csv$", "samples.csv")} do os.remove(name) end end

-- Seconds of a sweep of that many cells in a worker, with rows and samples in files
local function swept(purpose, count)
  local experiment, source = load_cells(count)
  local begun = core.clock()
  sweep.run(experiment, purpose, {csv = csv, set = {}, quiet = true, say = print, script = source})
  return core.clock() - begun
end

-- Seconds of the cells' own work: the same cells in this process, their rows told to nobody
local function worked(count)
  local cells = selection.new((load_cells(count)), "run", {set = {}})
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

-- The parent of a sweep, as a process of its own: the most bytes that it had in memory.
if alone then
  swept(alone, math.tointeger(tonumber(count_asked)))
  print(most_memory())
  return
end

-- Seconds of a process that predicts so many cells into the file, or resumes them, and its most bytes.
local function predicted(count)
  local begun = core.clock()
  local file <close> = assert(io.popen(("'%s' tests/bench/overhead.lua predict %d '%s'"):format(
    os.getenv "MEMTIDE" or "build/memtide", count, csv)))
  local bytes = tonumber((file:read("a")))
  return core.clock() - begun, bytes
end

-- Two sweeps of different length: what both have to begin with (a process, a script) drops out.
local over, own = {}, {}
swept("run", 10)
for i = 1, ROUNDS do
  forget(csv)
  local long = swept("run", CELLS + 50)
  forget(csv)
  local short = swept("run", 50)
  own[i] = worked(CELLS) / CELLS
  over[i] = (long - short) / CELLS - own[i]
end
local beyond = stats.median(over)
print(("# %d cells: %.2f ms each of their own work, %.2f ms beyond (%.2f to %.2f); load %s"):format(CELLS,
  stats.median(own) * 1e3, beyond * 1e3, stats.sorted(over)[1] * 1e3, stats.sorted(over)[ROUNDS] * 1e3,
  load_average()))
tap.ok(beyond < 2e-3, "a cell in a warm worker costs less than 2 ms beyond its own work")

local function rows_of(path)
  local rows = -1
  for _ in io.lines(path) do rows = rows + 1 end
  return rows
end

-- The parent keeps nothing of a cell but where its row lies: ten times the cells need little more memory.
local bytes, seconds = {}, {}
for i, count in ipairs{LOAD // 10, LOAD} do
  forget(csv)
  seconds[i], bytes[i] = predicted(count)
  tap.is(rows_of(csv), count, "each of " .. count .. " cells that are predicted has a row")
  seconds[i + 2], bytes[i + 2] = predicted(count)
  tap.is(rows_of(csv), count, "and no further one when they are resumed")
end
print(("# %d predicted cells: %.1f s, at most %.2f MB; a tenth of them %.2f MB; load %s"):format(LOAD, seconds[2],
  bytes[2] / 1e6, bytes[1] / 1e6, load_average()))
print(("# %d resumed cells: %.1f s, at most %.2f MB; a tenth of them %.2f MB"):format(LOAD, seconds[4],
  bytes[4] / 1e6, bytes[3] / 1e6))
tap.ok(seconds[2] < 20 * LOAD / 1e4, "10,000 predicted cells take less than 20 s")
tap.ok(bytes[2] - bytes[1] < MORE, "the parent's memory does not grow with the cells")
tap.ok(bytes[4] - bytes[3] < MORE, "nor with the rows of a file that it resumes")
os.execute(("rm -r '%s'"):format(folder))

-- The worker keeps nothing of shapes that are gone. The first cells are the warm-up: what a kind of kernel needs once.
local growth = dofile "tests/lua/growth.lua"
local WARM, MOST_GROWTH = 100, 4e6
for _, one in ipairs{{"predict", 100, 200}, {"run", 20, 200}} do
  local sizes, took = growth(table.unpack(one))
  local grown = sizes[#sizes] - sizes[WARM]
  print(("# %d cells of different shapes (%s): %.1f s; the worker had %.2f MB after %d of them and %.2f MB at the end")
    :format(#sizes, one[1], took, sizes[WARM] / 1e6, WARM, sizes[#sizes] / 1e6))
  tap.ok(#sizes == one[2] * one[3] and grown < MOST_GROWTH, "a worker grows by less than 4 MB")
end
tap.done()
