-- What an experiment accepts, and the cells that come of it.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local mt = require "memtide"
local util = require "memtide.base.util"
local nn, optim = mt.nn, mt.optim

local function declare(more)
  local options = {name = "test", model = nn.Linear(4, 3), input = {4}, loss = nn.CrossEntropyLoss(), batch = 2}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.experiment(options)
end
local function names(experiment)
  local list = {}
  for i, one in ipairs(experiment:cells()) do list[i] = one.name end
  return table.concat(list, "; ")
end

-- ---- cells
tap.is(names(declare()), "test", "one cell without axes")
tap.is(names(declare{sweep = {{"batch", {1, 2}}, {"precision", {"fp32", "bf16"}}}}),
  "batch=1 precision=fp32; batch=1 precision=bf16; batch=2 precision=fp32; batch=2 precision=bf16",
  "axes are multiplied")
tap.is(names(declare{cases = {{case = "a"}, {batch = 4}}, sweep = {{"accumulate", {1, 2}}}}),
  "a accumulate=1; a accumulate=2; case 2 accumulate=1; case 2 accumulate=2", "cases times axes")
tap.is(#declare{repeats = 3}:cells(), 3, "repeats are cells")
local one = declare{cases = {{case = "a", batch = 7, optimizer = optim.SGD()}}}:cells()[1]
tap.is(one.values.batch .. one.values.optimizer.kind .. one.values.precision, "7SGDfp32",
  "cases override, defaults fill")
tap.is(declare{checkpoint = "1KiB"}:cells()[1].values.checkpoint, 1024, "sizes are read")

local deep = declare{sweep = {{"depth", {1, 2}}}, model = function(settings)
  local layers = {}
  for i = 1, settings.depth do layers[i] = nn.Linear(4, 4) end
  return nn.Sequential(layers)
end}
tap.is(deep:own_axes()[1], "depth", "an axis that memtide does not know is the script's own")
local built = cell.build(deep:cells()[2])
tap.is(built.network:parameters(), 40, "and is what the model function gets")

-- ---- offload: a setting whose columns are there where a script uses it
local function own(more) return table.concat(declare(more):own_axes(), " ") end
tap.is(own(), "", "no column without it")
for _, more in ipairs{{offload = "all"}, {cases = {{offload = "1MiB"}}}, {sweep = {{"offload", {"none", "all"}}}}} do
  tap.is(own(more), "offload host_bytes", "given anywhere, it has a column, and so has what it takes of the host")
end
local paged, plain = mt.optim.PagedAdam{}, mt.optim.Adam{}
for what, more in pairs{["by itself"] = {optimizer = paged}, ["in a case"] = {cases = {{optimizer = plain}, {optimizer = paged}}},
  ["on an axis"] = {sweep = {{"optimizer", {plain, paged}}}}} do
  tap.is(own(more), "host_bytes", "a paged optimizer takes of the host, too: " .. what)
end
tap.is(own{sweep = {{"optimizer", {plain, mt.optim.Lion{}}}}}, "", "others take nothing")
local changed_optimizer = declare()
changed_optimizer:set("optimizer", {mt.optim.PagedAdamW8bit{}})
tap.is(table.concat(changed_optimizer:own_axes(), " "), "host_bytes", "or by --set")
tap.is(declare{offload = "1MiB"}:cells()[1].values.offload, 1 << 20, "a budget is bytes")
tap.is(declare():cells()[1].values.offload, "none", "unless told, nothing goes")
local changed = declare()
changed:set("offload", {"all"})
tap.is(table.concat(changed:own_axes(), " "), "offload host_bytes", "--set is a way to give it")
local good, said = pcall(declare, {offload = "some"})
tap.ok(not good and said:find('expected one of "none", "all" or a number of bytes, found "some"', 1, true),
  "another word is refused", said)

-- ---- ids
local function id(more, purpose) return cell.id(cell.build(declare(more):cells()[1]), purpose or "run") end
tap.is(id(), id(), "the same cell has the same id")
tap.ok(id() ~= id{batch = 3}, "another setting, another id")
tap.ok(id() ~= id{model = nn.Sequential{nn.Linear(4, 3), nn.ReLU()}}, "another network, another id")
tap.ok(id() ~= id{seed = 9}, "another seed, another id")
tap.ok(id() ~= id{loss = nn.CrossEntropyLoss{label_smoothing = 0.1}}, "another loss, another id")
tap.ok(id() ~= id({}, "predict"), "a prediction is not a run")

-- ---- --set
local set = declare{sweep = {{"batch", {1, 2}}, {"accumulate", {1, 2}}}}
set:set("batch", {8, 9})
tap.is(names(set), "batch=8 accumulate=1; batch=8 accumulate=2; batch=9 accumulate=1; batch=9 accumulate=2",
  "values are replaced")
set:set("accumulate", {4})
tap.is(names(set), "batch=8; batch=9", "one value is no axis")
tap.is(set:cells()[1].values.accumulate, 4, "but a setting")
tap.raises('did you mean "batch"', "a misspelt axis", set.set, set, "bacth", {1})

tap.raises('--set: unknown setting "name"; what can be set: device, batch,', "what is no setting", set.set, set, "name",
  {"x"})
tap.raises("seed, steps, warmup, epochs, repeats, rounds, confidence, time_limit, depth",
  "the script's own axes can be", deep.set, deep, "cases", {1})
tap.raises('unknown setting "model"; what can be set', "also when it looks like one", set.set, set, "model", {"x"})
tap.raises("--set: batch: 4 is there already", "a value twice", set.set, set, "batch", {4, 4})
deep:set("depth", {3})
tap.is(deep:cells()[1].values.depth, 3, "an axis of the script's own is set")

-- ---- values of the script's own, and values that are objects
local function sized(settings) return nn.Sequential{nn.Linear(4, settings.cfg[1]), nn.Linear(settings.cfg[1], 3)} end
local function configured() return declare{sweep = {{"cfg", {{8, pad = 1, b = "x"}, {16}}}}, model = sized} end
tap.is(names(configured()), 'cfg={8, b = "x", pad = 1}; cfg={16}', "tables are text, their names in order")
tap.is(cell.id(cell.build(configured():cells()[1]), "run"), cell.id(cell.build(configured():cells()[1]), "run"),
  "and the same text in every run")
local keep = declare{sweep = {{"cfg", {{8}}}}, model = function(settings)
  settings.batch, settings.cfg[1] = 7, 9
  return nn.Linear(4, 3)
end}:cells()[1]
cell.build(keep)
tap.is(keep.values.batch .. " " .. keep.values.cfg[1], "2 8", "a model function cannot change the cell")
tap.is(names(declare{sweep = {{"model", {nn.Linear(4, 3), function() return nn.Linear(4, 3) end}}}}),
  "model=1; model=2", "models are told apart by their position")
tap.is(names(declare{sweep = {{"loss", {nn.MSELoss(), nn.MSELoss{reduction = "sum"}}}}}),
  "loss=MSELoss(); loss=MSELoss(reduction=sum)", "losses by what they are")
local data = mt.data.random{count = 4, shape = {4}, classes = 3}
tap.is(names(declare{sweep = {{"data", {data}}}}), "data=" .. data:info().text, "datasets by theirs")


-- ---- data as a function of the settings, and batches read ahead
local function drawn(seed) return mt.data.random{count = 8, shape = {4}, classes = 3, seed = seed} end
local made = {sweep = {{"kind", {1, 2}}}, data = function(settings) return drawn(settings.kind) end}
local both = declare(made):cells()
for kind = 1, 2 do
  cell.build(both[kind])
  tap.is(cell.id(both[kind], "run"):match "[^-]*$", id{data = drawn(kind)}:match "[^-]*$",
    "a dataset that a function makes is hashed as one that is given")
  local left = setmetatable({both[kind].values.data}, {__mode = "v"})
  cell.release(both[kind])
  tap.is(left[1], nil, "it is dropped with its cell")
  tap.is(both[kind].values.data, made.data, "and made again by the next one")
end
local held = drawn(1)
cell.release(cell.build(declare{data = function() return held end}:cells()[1]))
tap.is(tostring(held), "memtide.Dataset (open)", "unless the script holds on to it")
tap.raises("data: expected an open dataset of mt.data, or a function", "a function that returns a number", function()
  cell.build(declare{data = function() return 0 end}:cells()[1])
end)
made.epochs, made.drop_last, made.sweep[1] = 2, true, {"kind", {1}}
local counted = cell.build(declare(made):cells()[1])
tap.is(counted.steps, 8, "epochs are counted of what it returns")
made.epochs, made.accumulate = 3, 3
tap.is(cell.build(declare(made):cells()[1]).steps, 4, "a step of several batches may go on into the next epoch")
made.accumulate = nil
tap.is(names(declare{sweep = {{"data", {drawn(1), function() return drawn(2) end}}}}),
  "data=" .. drawn(1):info().text .. "; data=2", "functions on an axis are named by their places")
tap.is(own{prefetch = 4}, "prefetch", "prefetch has a column where a script uses it")
tap.raises("prefetch: expected a whole number from 0 to 1024, found 1025", "too many batches ahead", declare,
  {prefetch = 1025})
for _, name in ipairs{"cache", "normalize"} do
  local dataset = drawn(1)
  local reader = mt.data.loader{dataset, batch = 2}
  tap.raises(name .. ": a loader of this dataset is open", name .. " while a loader reads",
    function() dataset[name](dataset, {0}, {1}) end)
  reader:close()
end

-- ---- mistakes
local message = select(2, pcall(mt.experiment, {name = "x", moodel = nn.ReLU()}))
tap.has(message, tap.line(-1), "an unknown key is reported with the line")
tap.has(message, 'unknown key "moodel" (did you mean "model"?)', "and the nearest known one")
local function refused(part, what, more) tap.raises(part, what, declare, more) end
refused("sweep[1] value 2: batch: expected a whole number from 1 to 2147483647, found 0", "the place of a wrong value",
  {sweep = {{"batch", {1, 0}}}})
refused('cases[2]: precision: expected one of "fp32"', "in a case too", {cases = {{}, {precision = "half"}}})
refused('did you mean "precision"?', "a misspelt axis", {sweep = {{"precison", {"fp32"}}}})
refused('did you mean "batch"?', "a misspelt key of a case", {cases = {{bacth = 1}}})
refused('expected {"axis", {value, ...}}', "an axis of another form", {sweep = {{"batch"}}})
refused('sweep: expected a list of axes {{"axis", {value, ...}}, ...}, found 5', "a sweep that is no list", {sweep = 5})
refused("found {batch = {1, 2}}", "axes by name", {sweep = {batch = {1, 2}}})
refused('cases: expected a list of cases {{case = "name", ...}, ...}, found 5', "cases that are no list", {cases = 5})
refused("found {a = {batch = 2}}", "cases by name", {cases = {a = {batch = 2}}})
refused("sweep[1]: batch: expected a list of values, found {1, [3] = 3}", "a hole among values",
  {sweep = {{"batch", {1, nil, 3}}}})
refused("sweep[1]: batch: expected a list of values, found none", "no values", {sweep = {{"batch", {}}}})
refused("cases: expected a list", "a hole among cases", {cases = {{}, nil, {}}})
refused('sweep[2]: "batch" is an axis already, sweep[1]', "an axis twice", {sweep = {{"batch", {1}}, {"batch", {2}}}})
refused("sweep[1] value 3: batch: 4 is there already, as value 1", "a value twice", {sweep = {{"batch", {4, 8, 4}}}})
refused('cases[2]: the name "a" is taken already, by cases[1]', "a name twice",
  {cases = {{case = "a"}, {case = "a"}}})
refused('cases[2]: the name "case 2" is taken', "also the one that a case without gets",
  {cases = {{case = "case 2"}, {}}})
refused("sweep[1] value 1: cfg: expected a word, a number, true, false or a table of them, found a function",
  "a function as a value of the script's own", {sweep = {{"cfg", {function() end}}}})
refused("found {8, {f = a function}}", "also inside a table", {sweep = {{"cfg", {{8, {f = function() end}}}}}})
refused("cases[1]: from: expected a word", "a dataset under a name of the script's own",
  {cases = {{from = mt.data.random{count = 4, shape = {4}, classes = 3}}}})
local ring = {}
ring[1] = ring
refused("cfg: expected a word", "a table that holds itself", {sweep = {{"cfg", {ring}}}})
refused("found {3, 8, 8, 8}", "a shape of four", {input = {3, 8, 8, 8}})
refused("one to three whole numbers such as {3, 32, 32}, or such shapes by name", "a shape of none", {input = {}})
refused("found {4.0}", "a float in a shape", {input = {4.0}})
refused("data: expected an open dataset of mt.data, or a function of the settings that returns one, or an iterator; " ..
  "with trainings datasets by name, found file", "a file that is no dataset", {data = io.stdout})
refused("warmup: expected a whole number from 0 to 2147483647, found 2147483648", "a count that is too large",
  {warmup = 2147483648})
refused("input: expected the shape", "an input that is no shape", {input = 3})
refused("loss: expected a loss", "a loss that is a layer", {loss = nn.ReLU()})
refused("optimizer: expected an optimizer", "an optimizer that is a word", {optimizer = "Adam"})
refused("steps: expected a whole number", "steps", {steps = 0})
tap.raises('"name" is missing', "no name", mt.experiment, {model = nn.ReLU(), loss = nn.MSELoss()})
local function build(more) return cell.build(declare(more):cells()[1]) end
local tail = function() return nn.Linear(4, 3, {bia = true}) end
tap.raises(tap.line(-1) .. ' Linear: unknown option "bia"', "a mistake in what a model function returns has its line",
  coroutine.wrap(cell.build), declare{model = tail}:cells()[1])
tap.raises("there are 10 classes, but the network has 3 outputs", "more classes than outputs", build, {classes = 10})
tap.raises("MSELoss needs targets like the network's output, target = {3}, found classes = 10",
  "classes for a loss of targets", build, {loss = nn.MSELoss(), classes = 10})
tap.raises("MSELoss needs targets like the network's output, target = {3}, found target = {4}",
  "targets of another shape", build, {loss = nn.MSELoss(), target = {4}})
tap.raises("BCEWithLogitsLoss needs targets like the network's output, target = {3}, found classes = 3",
  "a dataset of classes for a loss of targets", build, {loss = nn.BCEWithLogitsLoss(), data = data})
tap.raises("CrossEntropyLoss needs classes, found target = {3}", "targets for a loss of classes", build, {target = {3}})
tap.is(build{loss = nn.MSELoss(), target = {3}}.data.target[1], 3, "targets for a loss of targets")
tap.raises("expected at most 2147483647 together, found 2147483648", "more steps than can be counted", build,
  {warmup = 1, steps = 2147483647})
tap.raises("expected a layer from its function, found a nil", "a model function that returns nothing", build,
  {model = function() end})
local function of_width(s) return {s.width} end
local wide = build{model = function(s) return nn.Linear(s.width, 3) end, input = of_width, sweep = {{"width", {6}}}}
tap.is(wide.network:parameters(), 21, "an input's shape may be a function of the settings")
tap.is(wide.data.shape[1], 6, "of which the data are")
tap.raises("input: expected the shape of one sample", "one that gives none", build, {input = function() end})
local shared, relu = nn.Linear(4, 4), nn.ReLU()
tap.is(build{model = nn.Sequential{shared, relu, shared, nn.Linear(4, 3)}}.network:parameters(), 35,
  "parameters in two places are counted once")
tap.is(build{model = nn.Sequential{nn.Frozen(nn.Linear(4, 4)), nn.Linear(4, 3)}, model_name = "Net"}.model_name,
  "Net (20 frozen)", "the model's column says how much is frozen")
tap.is(build{model = nn.Sequential{relu, nn.Linear(4, 3), relu}}.network:parameters(), 15,
  "a layer without may be reused")

-- ---- sizes and names
tap.is(util.bytes("512MiB"), 512 << 20, "MiB are powers of two")
tap.is(util.bytes("8GB"), 8000000000, "GB are powers of ten")
tap.is(util.bytes("12 apples"), nil, "12 apples are no size")
tap.is(util.show_bytes(1536), "1.5 KiB", "bytes as people read them")
tap.is(util.nearest("batc", {"mode", "batch"}), "batch", "the nearest name")
tap.is(util.nearest("bacth", {"mode", "batch"}), "batch", "a swap is one slip")
tap.is(util.nearest("sleep", {"steps"}), nil, "two changes of five letters are another word")
tap.is(util.nearest("frobnicate", {"mode", "batch"}), nil, "none is near")
tap.near(util.quantile({1, 2, 3, 10}, 0.5), 2.5, 0, "the median of an even count")

tap.raises("cases[1]: \"batch\" is an axis of the sweep, too", "a case may not give what an axis gives", function()
  return mt.experiment{name = "overlap", model = mt.nn.Linear(2, 2), input = {2}, loss = mt.nn.MSELoss(),
    sweep = {{"batch", {1, 2}}}, cases = {{batch = 4}}}
end)

-- ---- an experiment like another
do
  local first = mt.experiment{name = "first", model = mt.nn.Linear(4, 3), input = {4}, classes = 3, batch = 2, rounds = 3,
    loss = mt.nn.CrossEntropyLoss(), sweep = {{"accumulate", {1, 2}}}}
  local second = first:with{name = "second", batch = 8, rounds = false, sweep = {{"precision", {"fp32", "bf16"}}}}
  tap.is(#first:cells() .. " " .. first:cells()[1].values.batch, "2 2", "the first one stays what it is")
  tap.is(second.name .. " " .. second:cells()[2].values.batch .. " " .. second:cells()[2].values.precision, "second 8 bf16",
    "the other one has what was changed")
  tap.is(second.base.rounds, nil, "and lacks what is false")
  tap.raises(tap.line(1) .. ' experiment: unknown key "batsh"', "a mistake has the line of with", function()
    first:with{batsh = 8} end)
  tap.raises("experiment:with: expected a table, found a nil", "nothing", first.with, first)
end
tap.done()
