-- What fits: the largest batch, what lacks, where memory ends along an axis; estimates of time; what an earlier file
-- has.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local estimate = require "memtide.sweep.estimate"
local screen = require "memtide.sweep.screen"
local max_batch = require "memtide.sweep.max_batch"
local frontier = require "memtide.sweep.frontier"
local mt = require "memtide"
local pace = require "memtide.sweep.pace"
local status = require "memtide.sweep.status"
local fit = require "memtide.cli.fit"
local util = require "memtide.base.util"
local nn = mt.nn

local folder = os.tmpname()
os.remove(folder)
assert(core.make_folder(folder))

local function small(more)
  local options = {name = "small", input = {3, 8, 8}, loss = nn.CrossEntropyLoss(), batch = "max",
    model = nn.Sequential{nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)}}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.experiment(options)
end

-- Does the cell with that batch fit into that room? Into several: into each of them. Its programs are the same for every room.
local function fits(one, batch, ...)
  local values = {}
  for key, value in pairs(one.values) do values[key] = value end
  values.batch = batch
  local probe, found = {experiment = one.experiment, values = values, name = "", places = {}}, {}
  cell.compile(cell.build(probe))
  for i, room in ipairs{...} do found[i] = cell.predict(probe, room).fits end
  cell.release(probe)
  return table.unpack(found)
end

-- ---- the largest batch
local wrong = 0
for _, one in ipairs(small{sweep = {{"precision", {"fp32", "amp_bf16"}}, {"checkpoint", {"none", "sqrt"}},
  {"accumulate", {1, 3}}, {"allocator", {"planned", "direct"}}}}:cells()) do
  cell.build(one)
  local rooms, most = {20000, 65536, 300000}, {0, 0, 0}
  for batch = 1, 250 do
    for i, good in ipairs{fits(one, batch, table.unpack(rooms))} do if good then most[i] = batch end end
  end
  for i, room in ipairs(rooms) do
    local best = most[i]
    local found, more = max_batch.largest(one, room)
    local bounds = (best == 0 or found.bytes <= room) and more.bytes > room
    if found.batch ~= best or more.batch ~= best + 1 or not bounds then
      wrong = wrong + 1
      print(("# %s in %d: %d, found %d"):format(one.name, room, best, found.batch))
    end
  end
end
tap.is(wrong, 0, "the largest batch is the one that trying all of them finds, in 48 cases")

-- a product that is computed in another way needs less workspace: with AVX2 from 49 or 128 samples on
local needed, falls = {}, 0
wrong = 0
for _, case in ipairs{{49, 32, nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4)}, {128, 1024, nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)}} do
  local from, features = table.remove(case, 1), table.remove(case, 1)
  local vectors = small{input = {features}, model = nn.Sequential(case)}
  local product = cell.build(vectors:cells()[1])
  local first, last = from - 8, from + 24
  for batch = first, last do
    local at = vectors:cells()[1]
    at.values.batch = batch
    needed[batch] = cell.needs(cell.compile(cell.build(at)).prediction)
    if batch > first and needed[batch] < needed[batch - 1] then falls = falls + 1 end
  end
  for batch = first, last - 8 do
    local best = batch
    for larger = batch + 1, last do if needed[larger] <= needed[batch] then best = larger end end
    local found, more = max_batch.largest(product, needed[batch])
    if found.batch ~= best or more.batch ~= best + 1 then
      wrong = wrong + 1
      print(("# from %d: %d bytes: %d, found %d"):format(from, needed[batch], best, found.batch))
    end
  end
end
tap.is(wrong, 0, ("a larger batch that fits again is found (%d fall%s)"):format(falls, falls == 1 and "" or "s"))

-- Images of which no number is a divisor are cut into pieces, too: pieces of channels would be copies of whole images.
for _, batch in ipairs{67, 127, 254} do
  local function needs(b)
    local layers = nn.Sequential{nn.Conv2d(3, 64, 1), nn.ReLU(), nn.Conv2d(64, 128, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128 * 256, 4)}
    local images = small{input = {3, 16, 16}, model = layers}:cells()[1]
    images.values.batch = b
    return cell.needs(cell.compile(cell.build(images)).prediction)
  end
  tap.ok(needs(batch) < needs(batch + 1), ("%d images need less than %d"):format(batch, batch + 1))
end

local one = cell.build(small():cells()[1])
tap.is(max_batch.largest(one, 100).batch, 0, "nothing fits into 100 bytes")
local caching = cell.build(small{allocator = "caching"}:cells()[1])
local found = max_batch.largest(caching, 100 << 20)
tap.ok(fits(caching, found.batch, 100 << 20) and not fits(caching, found.batch + 1, 100 << 20),
  "under the caching allocator it fits, and the next one does not")
local few = cell.build(small{data = mt.data.random{count = 7, shape = {3, 8, 8}, classes = 4}}:cells()[1])
tap.is(max_batch.largest(few, 1 << 30).batch, 7, "no batch is larger than the data")

-- of a batch of 1 batch normalisation of vectors knows no variance: the search begins with 2
local vectors = {input = {4}, model = nn.Sequential{nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)}}
for _, more in ipairs{{}, {framework = "pytorch", device = "pytorch:t4"}} do
  for key, value in pairs(vectors) do more[key] = value end
  local step, at_two = cell.build(small(more):cells()[1]), small(more):cells()[1]
  at_two.values.batch = 2
  local needs = cell.needs(cell.compile(cell.build(at_two)).prediction)
  local room = more.framework and needs or 1 << 20
  local most, next_one = max_batch.largest(step, room)
  tap.ok(most.batch > 1 and fits(step, most.batch, room) and not fits(step, next_one.batch, room), "the largest batch with batch normalisation")
  local none, least = max_batch.largest(step, needs - 1)
  tap.ok(none.batch == 0 and none.least == 2 and least.batch == 2 and least.bytes == needs, "nothing fits where 2 do not")
  step.memory = needs - 1
  max_batch.settle(step)
  tap.is(step.values.batch, 2, "and the row is of the smallest batch that there is")
  at_two.values.batch = 1
  tap.raises("tests/lua/t_fit.lua", "a batch of 1 is refused, with the layer's line", function() cell.compile(cell.build(at_two)) end)
end

one.memory = 65536
max_batch.settle(one)
tap.ok(one.values.batch > 1 and fits(one, one.values.batch, 65536), 'batch = "max" becomes a number')
cell.compile(one)
tap.is(max_batch.shortfall(one), nil, "a cell that fits lacks nothing")
local room = one.prediction.peak.bytes - 1
one.memory = room
cell.compile(one)
tap.is(max_batch.shortfall(one), ("needs %d bytes, 1 more than the %d of --memory"):format(room + 1, room),
  "one byte too few is told")
one.memory = nil
cell.compile(one)
tap.is(max_batch.shortfall(one), nil, "without --memory the device has what it has")
tap.raises('experiment: batch: expected a whole number', "other words are no batch", small, {batch = "most"})
tap.raises('trainer: batch: expected a whole number', "nor is max where there is nothing to look for", mt.trainer,
  {model = nn.ReLU(), input = {3}, loss = nn.MSELoss(), batch = "max"})

-- ---- memtide fit of the article's network and VGG16: one size above and one below each answer. What was measured here
-- before, in results or in the user's cache, has no part in it.
local load_rows, new_rates = status.load, estimate.new
status.load, estimate.new = function() end, function() return new_rates(false) end
for _, name in ipairs{"article", "vgg16_memory"} do
  for _, gib in ipairs{8, 16, 24} do
    local experiment = assert(loadfile("experiments/" .. name .. ".lua"))()
    local names = fit.spread(experiment)
    local lines = fit.solve(experiment, {memory = gib << 30}, names)
    local cells, bad = experiment:cells(), 0
    for _, line in ipairs(lines) do
      local at = cells[line.order]
      if not fits(at, line.batch, gib << 30) or fits(at, line.batch + 1, gib << 30) or line.bytes > gib << 30 then
        bad = bad + 1
      end
    end
    tap.ok(#lines == #cells and bad == 0,
      ("%s in %d GiB: %d answers, each the last that fits"):format(name, gib, #lines))
    local sorted = true
    for i = 2, #lines do sorted = sorted and lines[i].effective_batch <= lines[i - 1].effective_batch end
    tap.ok(sorted and lines[1].best, "the largest effective batch is first, and nothing surpasses it")
  end
end

-- ---- what was said, and axes of the script's own
local function solved(experiment, set)
  for _, said in ipairs(set) do experiment:set(said[1], {said[2]}) end
  local names = fit.spread(experiment, set)
  return fit.solve(experiment, {memory = 1 << 20}, names)
end
local function values_of(lines, name)
  local words = {}
  for _, line in ipairs(lines) do words[tostring(line[name])] = true end
  return table.concat(util.sorted_keys(words), " ")
end
local swept = {sweep = {{"precision", {"fp32", "bf16"}}}}
local lines = solved(small(swept), {{"precision", "fp32"}, {"accumulate", 2}})
tap.is(values_of(lines, "precision") .. ", " .. values_of(lines, "accumulate"), "fp32, 2", "what --set says is not tried otherwise")
tap.is(values_of(lines, "checkpoint"), "all none selective sqrt", "the rest is")
lines = solved(small(swept), {})
tap.is(values_of(lines, "precision") .. ", " .. values_of(lines, "accumulate"), "bf16 fp32, 1 4", "nor what the script sweeps")
lines = solved(small{sweep = {{"p", {0.5, 0.25}}}, model = function(s)
  return nn.Sequential{nn.Flatten(), nn.Dropout(s.p), nn.Linear(192, 4)}
end}, {})
local busy = {}
for _, line in ipairs(lines) do if not line.idle then busy[line.p] = (busy[line.p] or 0) + 1 end end
tap.ok(busy[0.5] and busy[0.5] == busy[0.25], "a value of the script's own axis that needs the same memory is a line of its own")
status.load, estimate.new = load_rows, new_rates

-- ---- where memory ends along an axis
local front = frontier.new{"batch"}
local model = nn.ReLU()
local function at(batch, more)
  local values = {batch = batch, precision = "fp32", model = model}
  for key, value in pairs(more or {}) do values[key] = value end
  return values
end
front:note(at(8), "ok", "eight")
tap.is(front:implied(at(64)), nil, "nothing is implied by what fits")
front:note(at(32), "oom", "thirty-two")
tap.is(front:implied(at(33)), "implied: a smaller cell ran out of memory: thirty-two", "nor does a larger batch fit")
tap.is(front:implied(at(32)), nil, "the same batch is no larger one")
tap.is(front:implied(at(64, {precision = "bf16"})), nil, "other settings are another thing")
tap.is(front:implied(at(64, {model = nn.ReLU()})), nil, "another model, too")
tap.is(front:implied(at("max")), nil, "the largest batch is looked for")
front:note(at(16), "oom", "sixteen")
tap.has(front:implied(at(64)), "sixteen", "the least that did not fit is the witness")
tap.is(front:implied(at(64), "cuda:1"), nil, "another device may have more memory")
front:note(at(48), "oom", "forty-eight", "cuda:1")
tap.has(front:implied(at(64), "cuda:1"), "forty-eight", "until it has shown that it has not")
local two = frontier.new{"batch", "width"}
two:note(at(8, {width = 4}), "oom", "wide")
tap.has(two:implied(at(8, {width = 5})), "wide", "several axes")
tap.is(two:implied(at(9, {width = 5})), nil, "one at a time")
tap.is(#small{monotone = false}:monotone_axes(), 0, "no axis")
tap.is(small():monotone_axes()[1], "batch", "batch, when nothing is said")

-- ---- the floor of a step: of each op the larger of the time that its operations and its bytes take
cell.compile(one)
do
  local flops, traffic = one.program:cost()
  tap.near(one.program:floor(1e9, 1e30) * 1e9 / flops, 1, 1e-9, "operations alone")
  tap.near(one.program:floor(1e30, 1e9) * 1e9 / traffic, 1, 1e-9, "bytes alone")
  local both = one.program:floor(1e9, 1e9) * 1e9
  tap.ok(both > flops and both > traffic and both < flops + traffic, "the larger of both for each op")
end

-- ---- estimates
local path = folder .. "/deep/rates.txt"
local function cost(flops, traffic) return {key = "a device", flops = flops, traffic = traffic, steps = 10} end
local rates = estimate.new(path)
tap.is(rates:step(cost(1e9, 1e8)), nil, "of an unknown device nothing is known")
tap.is(rates:cell(cost(1e9, 1e8)), nil, "nor of a cell")
local least = cost(1e9, 1e8)
least.floor = 0.25
least = rates:cell(least)
tap.is(("%s %g %g"):format(least.source, least.seconds, least.low), "floor 2.5 2.5", "but that it takes what it must")
tap.ok(not least.learnt and least.high > least.seconds, "which is no estimate")
for i = 1, 9 do rates:learn(cost(i * 1e9, 1e9 / i), i * 1e9 * 3e-12 + 1e9 / i * 5e-11) end
tap.near(rates:step(cost(5e9, 7e9)).seconds, 5e9 * 3e-12 + 7e9 * 5e-11, 1e-6, "two rates are found back")
tap.near(rates:cell(cost(5e9, 7e9)).seconds, 10 * (5e9 * 3e-12 + 7e9 * 5e-11), 1e-5, "of all steps of a cell")
tap.ok(rates:step(cost(5e9, 7e9)).learnt, "that was learnt")
tap.is(rates:step(cost(5e9, 7e9)).source, "estimated", "as is told")
tap.is(rates:step{key = "another", flops = 1e9, traffic = 1e9}, nil, "of that device alone")
local other = estimate.new(false)
for i = 1, 3 do other:learn({key = "cpu, 2 threads, fp32", flops = i * 1e9, traffic = 0, steps = 1}, i) end
local near = other:step{key = "cpu, 2 threads, bf16", flops = 5e9, traffic = 0, steps = 1}
tap.near(near.seconds, 5, 1e-9, "what it does in another precision is the first guess")
tap.ok(not near.learnt and near.high > 30 and near.source == "guessed", "and no more")
rates:save()
tap.near(estimate.new(path):step(cost(5e9, 7e9)).seconds, 0.365, 1e-6, "a file keeps it, in a folder that is made")
local same = estimate.new(false)
for i = 1, 5 do same:learn(cost(i * 1e9, i * 2e9), i * 1e-2 * (i % 2 == 0 and 1.2 or 0.9)) end
local spread = same:step(cost(3e9, 6e9))
tap.ok(spread.low < 3e-2 and 3e-2 < spread.high and spread.high / spread.low < 3,
  "cells that only grow leave one rate, and errors a range around it")
local file = assert(io.open(path, "w"))
file:write("a device\t1 2 x\nhalf a li\nb\t1 1 1 1 nan 1\nc\t2 2 2 2 2 2\n")
file:close()
tap.is(estimate.new(path):step(cost(1, 1)), nil, "lines that are damaged are left out")
tap.ok(estimate.new(path):step{key = "c", flops = 1, traffic = 1, steps = 1}.learnt, "and only these")
tap.is(estimate.show(0.0000125) .. ", " .. estimate.show(0.25) .. ", " .. estimate.show(75) .. ", "
  .. estimate.show(5400), "12.5 us, 250 ms, 1 min 15 s, 1 h 30 min", "seconds as people read them")

-- ---- when a sweep will end
local cells = {}
for i = 1, 20 do cells[i] = {values = {model = model, batch = i, accumulate = 1, steps = 8, warmup = 2}} end
local plan = {count = function() return #cells end, cell = function(_, k) return cells[k] end}
local left = pace.new(nil, plan, 2)
tap.is(left:remaining(), nil, "nothing is known before a cell has ended")
local function ended(k, seconds)
  left:learn(k, cells[k].values, seconds)
  left:done(k, cells[k].values)
end
for k = 1, 10 do ended(k, k * 10) end
local seconds, low, high = left:remaining()
tap.near(seconds, (11 + 20) * 5 * 10 / 2, 1e-9, "what grows with the batch is known to grow, over two workers")
tap.ok(low < seconds and seconds < high and high / low < 1.2, "the range is narrow where cells were as expected")
local five = os.time{year = 2026, month = 1, day = 1, hour = 5, min = 0}
tap.is(screen.ends(left:range(five), five), "12 min 55 s left, ends 05:12-05:13", "told as the clock shows it")
tap.is(screen.ends(left:range(five), five + 60), "11 min 55 s left, ends 05:12-05:13", "also a minute later")
for k = 11, 16 do ended(k, k * 10 * (k % 2 == 0 and 3 or 0.3)) end
low, high = select(2, left:remaining())
tap.ok(high / low > 2, "and wide where they were not")
for k = 17, 20 do left:done(k, cells[k].values) end
tap.is(left:range(0), nil, "nothing is left")

-- A sweep of cells {values, row = what comes of it, visits = how often it is visited, seconds = each visit's}
local function sweep_of(list, base, workers)
  local whole = {purpose = "run", count = function() return #list end, cell = function(_, k) return list[k] end}
  local self = {left = pace.new(nil, whole, workers or 1, base)}
  function self.visit(k, took) self.left:learn(k, list[k].values, took) end
  function self.done(k) self.left:done(k, list[k].values, list[k].row) end
  return self
end
local function sized(batch, more)
  local made = {values = {model = model, batch = batch, accumulate = 1, steps = 8, warmup = 2, precision = "fp32"},
    row = {batch = batch, predicted_peak_bytes = 1000 + 100 * batch, activations_bytes = 60 * batch,
      activation_gradients_bytes = 30 * batch, input_bytes = 10 * batch, cost = {room = 8000}}}
  for key, value in pairs(more or {}) do made.values[key] = value end
  return made
end

-- ---- cells that will be skipped are not counted
local growing = {sized(10), sized(20), sized(70), sized(71), sized(1000000), sized(1000000, {precision = "bf16"}),
  sized(100, {precision = "bf16"}), sized(400, {precision = "bf16"})}
local skips = sweep_of(growing)
skips.visit(1, 10)
skips.done(1)
tap.near(skips.left:remaining(), 20 + 70 + 100, 1e-9, "of one row it is known which larger batches will not fit")
growing[2].row = {status = "crashed"}
skips.visit(2, 20)
skips.done(2)
tap.near(skips.left:remaining(), 70 + 100, 1e-9, "a row without a prediction shows nothing")
skips.done(5)
tap.near(skips.left:remaining(), 70 + 100, 1e-9, "what was not counted is not taken off")
local tried = sweep_of(growing)
tried.left.selection.try_oom = true
tried.visit(1, 10)
tried.done(1)
tap.near(tried.left:remaining(), 20 + 70 + 71 + 1e6 + 1e6 + 100 + 400, 1e-3, "with --try-oom all are run")

-- ---- cells of which nothing is known
local strange = sweep_of{sized(10), sized(20), sized(10, {model = nn.ReLU()}), sized(10, {model = nn.ReLU()}),
  sized(1, {batch = "max"})}
strange.visit(1, 600)
strange.done(1)
local some, _, _, unknown = strange.left:remaining()
tap.is(("%g %d"):format(some, unknown), "1200 3", "unknown: another network's cells, and the largest batch")
tap.is(screen.ends(strange.left:range(five), five), "20 min 0 s and 3 cells of unknown time left", "which is told")
strange.done(2)
tap.is(screen.ends(strange.left:range(five), five), "3 cells of unknown time left", "also where nothing else is left")
strange.done(3)
strange.done(4)
tap.is(screen.ends(strange.left:range(five), five), "1 cell of unknown time left", "of one, too")

-- ---- rounds
local function nine(base)
  local list = {}
  for k = 1, 9 do list[k] = sized(10) end
  return sweep_of(list, base)
end
local thrice = nine{rounds = 3}
thrice.visit(1, 10)
tap.near(thrice.left:remaining(), 10 * (2 + 8 * 3), 1e-9, "each cell is visited as often as there are rounds")
for k = 2, 9 do thrice.visit(k, 10) end
tap.near(thrice.left:remaining(), 10 * 9 * 2, 1e-9, "and less often from then on")
-- the article's sweep: 9 cells of 2 s, at least 6 rounds, 30 s for each; it took 216 s
local article = nine{rounds = 6, confidence = 0.02, time_limit = 30}
article.visit(1, 2)
local likely, least_seconds, most_seconds = article.left:remaining()
tap.ok(least_seconds < 9 * 6 * 2 and likely > 100 and likely < 270 and most_seconds >= 260,
  ("until it is sure enough: %.0f s, %.0f to %.0f"):format(likely, least_seconds, most_seconds))
for k = 1, 3 do
  for _ = 1, k == 1 and 11 or 12 do article.visit(k, 2) end
  article.done(k)
end
tap.near(article.left:remaining(), 6 * 2 * 12, 1e-6, "cells that have ended tell how often the others are visited")
local short = nine{rounds = 6, time_limit = 30}
short.visit(1, 20)
tap.near(short.left:remaining(), 20 * (1 + 8 * 2), 1e-9, "a cell whose time is up needs no further round")

-- ---- many cells are looked at in pieces
local asked = 0
local crowd = {purpose = "run", count = function() return 1000000000 end}
function crowd.cell() asked = asked + 1 return cells[1] end
local large = pace.new(nil, crowd, 1)
large:learn(1, cells[1].values, 10)
tap.is(large:remaining(), nil, "a thousand million cells")
tap.ok(asked <= 1000, "are not looked at before the first row")
local list = {}
for k = 1, 3000 do list[k] = sized(10) end
local thousands = sweep_of(list)
thousands.visit(1, 1)
thousands.done(1)
for _ = 1, 2 do tap.is(thousands.left:remaining(), nil, "of 3,000 cells nothing is said before all were looked at") end
tap.near(thousands.left:remaining(), 2999, 1e-6, "and then what is left")
local days = {seconds = 90000, at = five, first = five + 80000, last = five + 100000}
tap.is(screen.ends(days, five), "25 h 0 min left, ends 2026-01-02 03:13 to 2026-01-02 08:46", "with its date")

-- ---- what a file has of a cell
local csv = folder .. "/x.csv"
file = assert(io.open(csv, "w"))
file:write("case,cell,repeat,status,version,batch,reason\n",
  ("a,s1-n1-d1,1,error,%s,2,first\n"):format(core.version), ("a,s1-n1-d1,1,ok,%s,2,\n"):format(core.version),
  ("b,s2-n1-d1,1,timeout,%s,4,too long\n"):format(core.version), "c,s3-n1-d1,1,ok,0.0.1,4,\n", "half a li")
file:close()
local rows = status.load(csv)
local function of(case, id, batch)
  local state = status.of_row({case = case, cell = id, ["repeat"] = 1, batch = batch}, rows, {"batch"})
  return ("%s %s: %s"):format(state.state, state.status, state.why)
end
tap.is(of("a", "s1-n1-d1", 2), "done ok: ", "of two rows the later counts")
tap.is(of("b", "s2-n1-d1", 4), "failed timeout: too long", "a failure")
tap.is(of("c", "s3-n1-d1", 4), "stale ok: version 0.0.1", "another version")
tap.is(of("z", "s1-n2-d1", 2), "stale ok: network changed", "another network")
tap.is(of("z", "s1-n2-d3", 2), "stale ok: network, data changed", "and other data")
tap.is(of("a", "s9-n1-d1", 8), "stale ok: batch changed", "another setting, by name where there is a column")
tap.is(of("a", "s9-n1-d1", 2), "stale ok: settings changed", "one that has none")
tap.is(of("d", "s4-n1-d1", 2), "missing : ", "nothing")
tap.is(status.load(folder .. "/none.csv"), nil, "there may be no file")
tap.ok(util.is_failure(select(2, pcall(status.load, folder))), "a folder is a failure")

os.execute(("rm -r '%s'"):format(folder))
tap.done()
