-- Axes: ranges, zips, conditions, filters, the command line's notation, options of the script's own, cell ids.
local tap = dofile "tests/tap.lua"
local axes = require "memtide.sweep.axes"
local cell = require "memtide.net.cell"
local script_options = require "memtide.sweep.script_options"
local mt = require "memtide"
local literal = require "memtide.base.literal"
local nn = mt.nn

-- A model for which every setting counts
local function model(s)
  for _ in pairs(s) do end
  return nn.Linear(4, 3)
end
local function declare(more)
  local options = {name = "test", model = model, input = {4}, loss = nn.CrossEntropyLoss(), batch = 2}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.experiment(options)
end
local function names(experiment)
  local list = {}
  for i, one in ipairs(experiment:cells()) do list[i] = one.name end
  return table.concat(list, "; ")
end
local function list_is(list, expected, what) tap.is(literal.of(list), expected, what) end
local function refused(part, what, more) tap.raises(part, what, declare, more) end

-- ---- lists of values
list_is(mt.range(8, 64, 8), "{8, 16, 24, 32, 40, 48, 56, 64}", "a range has both ends")
list_is(mt.range(1, 4), "{1, 2, 3, 4}", "its step is 1")
list_is(mt.range(3, 0, -2), "{3, 1}", "it may go down, and need not meet its end")
list_is(mt.range(0, 0.3, 0.1), "{0.0, 0.1, 0.2, 0.3}", "rounding neither shows nor costs a value")
list_is(mt.geometric(8, 512), "{8, 16, 32, 64, 128, 256, 512}", "a geometric range doubles")
list_is(mt.geometric(1000, 8, 0.5), "{1000, 500.0, 250.0, 125.0, 62.5, 31.25, 15.625}", "or goes by another factor")
list_is(mt.geometric(1e-4, 1e-1, 10), "{0.0001, 0.001, 0.01, 0.1}", "with an end that products round past")
tap.raises("t_axes.lua:", "a mistake has its line", function() return mt.range(8, 1), 0 end)
tap.raises("a step of 1 does not lead from 8 to 1", "a range of no values", mt.range, 8, 1)
tap.raises("range: argument 2: expected a number, found \"x\"", "no number", mt.range, 1, "x")
tap.raises("a factor of 1 does not lead", "a factor that goes nowhere", mt.geometric, 1, 8, 1)
tap.raises("expected at most 100000 values", "too many", mt.range, 1, 1e9)

for text, expected in pairs{["8..64:8"] = "{8, 16, 24, 32, 40, 48, 56, 64}", ["1,8..10"] = "{1, 8, 9, 10}",
  ["8..64*2"] = "{8, 16, 32, 64}", ["0.1..0.3:0.1"] = "{0.1, 0.2, 0.3}", ["1e-3..1e-1*10"] = "{0.001, 0.01, 0.1}",
  ["-2..2:2"] = "{-2, 0, 2}", ["../x..y"] = '{"../x..y"}', ["4,"] = '{4, ""}', ["max"] = '{"max"}',
  ["8..x"] = '{"8..x"}', ["8..16:"] = '{"8..16:"}', ["true"] = "{true}"} do
  list_is(axes.from_text("a", text), expected, "--set a=" .. text)
end
tap.raises("does not lead from 64 to 8", "a range of the command line that is none", axes.from_text, "a", "64..8:8")

-- ---- zips
local zipped = {mt.zip{{"batch", {64, 32}}, {"accumulate", {1, 2}}}, {"precision", {"fp32", "bf16"}}}
tap.is(names(declare{sweep = zipped}), "batch=64 accumulate=1 precision=fp32; batch=64 accumulate=1 precision=bf16; "
  .. "batch=32 accumulate=2 precision=fp32; batch=32 accumulate=2 precision=bf16", "a zip goes on together")
refused("sweep[1]: zip: expected lists of one length, found 2 values of batch and 1 of accumulate", "two lengths",
  {sweep = {mt.zip{{"batch", {64, 32}}, {"accumulate", {1}}}}})
refused("sweep[1] value 2: accumulate: expected a whole number", "a wrong value of a zip",
  {sweep = {mt.zip{{"batch", {64, 32}}, {"accumulate", {1, 0}}}}})
refused("sweep[1] value 2: batch=64 accumulate=1 is there already", "a place twice",
  {sweep = {mt.zip{{"batch", {64, 64}}, {"accumulate", {1, 1}}}}})
refused('sweep[2]: "accumulate" is an axis already, sweep[1]', "an axis inside a zip, again",
  {sweep = {mt.zip{{"batch", {64, 32}}, {"accumulate", {1, 2}}}, {"accumulate", {4}}}})
refused('cases[1]: "accumulate" is an axis of the sweep, too', "and in a case",
  {sweep = {mt.zip{{"batch", {64, 32}}, {"accumulate", {1, 2}}}}, cases = {{accumulate = 2}}})
refused("zip: expected at least two axes", "a zip of one", {sweep = {mt.zip{{"batch", {1}}}}})
local set = declare{sweep = {mt.zip{{"batch", {64, 32, 16}}, {"accumulate", {1, 2, 2}}}}}
set:set("batch", {8})
tap.is(names(set), "accumulate=1; accumulate=2", "--set takes a name out of its zip; what is then the same is one")
tap.is(set:cells()[1].values.batch, 8, "and sets it")

-- ---- conditions
local only = declare{sweep = {{"mode", {"train", "eval"}}, {"checkpoint", {"none", "all"}, only = {mode = "train"}}}}
tap.is(names(only), "mode=train checkpoint=none; mode=train checkpoint=all; mode=eval",
  "an axis may have no part in a cell")
tap.is(only:cells()[3].values.checkpoint, "none", "which has the default then")
tap.is(names(declare{cases = {{case = "a", batch = 2}, {case = "b", batch = 4}, {case = "c", batch = 8}},
  sweep = {{"accumulate", {1, 2}, only = {batch = {4, 8}, mode = "train"}}}}),
  "a; b accumulate=1; b accumulate=2; c accumulate=1; c accumulate=2", "conditions on what cases say, several values")
local repeated = {{"mode", {"train", "eval"}}, {"depth", {1, 2}, only = {mode = "eval"}}}
tap.is(#declare{repeats = 3, sweep = repeated}:cells(), 9, "and with repeats")
refused('sweep[1]: only: expected what is settled before it, found "mode", which is sweep[2]', "a later axis",
  {sweep = {{"checkpoint", {"none"}, only = {mode = "eval"}}, {"mode", {"eval", "train"}}}})
refused('sweep[1]: only: "moode" is neither a setting nor an axis', "a misspelt condition",
  {sweep = {{"checkpoint", {"none"}, only = {moode = "eval"}}}})
refused("only: expected {setting = value, ...}, found 5", "no condition",
  {sweep = {{"checkpoint", {"none"}, only = 5}}})
refused('expected {"axis", {value, ...}}', "another key",
  {sweep = {{"checkpoint", {"none"}, onyl = {mode = "eval"}}}})

-- ---- filters
local function small(s) return s.batch * s.accumulate <= 8 end
tap.is(names(declare{sweep = {{"batch", {2, 4, 8}}, {"accumulate", {1, 4}}}, where = small}),
  "batch=2 accumulate=1; batch=2 accumulate=4; batch=4 accumulate=1; batch=8 accumulate=1", "a filter")
local line = debug.getinfo(small, "S").linedefined
local none = ("there is no cell to run: where (tests/lua/t_axes.lua:%d) lets none of 2 pass"):format(line)
tap.raises(none, "none passes", function()
  return declare{sweep = {{"batch", {9, 10}}}, where = small}:cells()
end)
tap.raises("attempt to compare nil with number", "a filter that fails", function()
  return declare{sweep = {{"batch", {1, 2}}}, where = function(s) return s.classes < 3 end}:cells()
end)
tap.raises("(in where, for the cell batch=1)", "tells the cell", function()
  return declare{sweep = {{"batch", {1, 2}}}, where = function(s) return s.classes < 3 end}:cells()
end)
tap.raises("t_axes.lua:", "and its line", function()
  return declare{sweep = {{"batch", {1, 2}}}, where = function(s) return s.classes < 3 end}:cells()
end)
tap.is(#declare{sweep = {{"batch", {2, 16, "max"}}}, where = small}:cells(), 2,
  "a batch that is not known yet passes a filter that asks for it")
refused("where: expected a function", "no function", {where = 5})

-- ---- options
local wide = declare{options = {{"width", 8, "channels"}, {"rate", 0.5, "of learning"}, {"deep", false, "more layers"},
  {"name_of", "x", "a word"}}, where = function(s) return s.width > 0 end}
tap.is(wide:cells()[1].values.width, 8, "an option is a setting of every cell")
tap.is(literal.of(wide:own_axes()), '{"deep", "name_of", "rate", "width"}', "and a column")
local function take(name, value)
  local given = {word = "--" .. name, name = name, value = value}
  return literal.of(script_options.take(wide.options, script_options.find(wide.options, name), given).values)
end
tap.is(take("width", "8..16:4"), "{8, 12, 16}", "values of the command line")
tap.is(take("rate", "1"), "{1.0}", "of the default's type")
tap.is(take("deep"), "{true}", "a flag needs no value")
tap.is(take("name-of", "a,b"), '{"a,b"}', "a word may hold anything; - stands for _")
tap.raises('--width: expected a whole number, found "x"', "another type", take, "width", "x")
tap.raises("--width: N is missing", "no value", take, "width")
tap.raises('unknown option --widht (did you mean "width"?); the script\'s are --width, --rate', "a misspelt one", take,
  "widht", "1")
tap.raises('--set: width: expected a whole number, found "x"', "--set knows the type too", wide.set, wide, "width",
  {"x"})
refused('options[1]: "batch" has a meaning of its own already', "a setting", {options = {{"batch", 1, "x"}}})
refused('options[2]: "a" is there already', "twice", {options = {{"a", 1, "x"}, {"a", 1, "x"}}})
refused('options[1]: expected {"name", default, "what it is"}', "of another form", {options = {{"a", {}, "x"}}})

-- ---- many values, many cells
local many, begun = mt.range(1, 10000), os.clock()
local deep = declare{model = function(s) return nn.Linear(4, s.depth) end, sweep = {{"depth", many}}}
local took = os.clock() - begun
tap.ok(took < 1, ("10,000 values of an own axis take %.2f s: its name is looked at once"):format(took))
tap.is(deep:count(), 10000, "all are there")
refused("experiment: expected at most 1000000 cells, found 1000000000: 1000 of batch x 1000 of seed x 1000 of steps",
  "a thousand million cells", {sweep = {{"batch", mt.range(1, 1000)}, {"seed", mt.range(1, 1000)},
    {"steps", mt.range(1, 1000)}}})
refused("found 1e+25: 2 cases x 10000 of batch", "more than a whole number holds",
  {cases = {{case = "a"}, {case = "b"}}, repeats = 5, sweep = {{"batch", many}, {"seed", many}, {"steps", many},
    {"warmup", many}, {"accumulate", many}, {"workspace_limit", many}}})
tap.is(declare{repeats = 1000, sweep = {{"batch", mt.range(1, 1000)}}}:count(), 1000000, "a million are allowed")
tap.raises("--set: expected at most 1000000 cells, found 20000000: 10000 of batch x 2000 repeats", "by --set",
  function() declare{repeats = 2000}:set("batch", many) end)

-- ---- ids
local function id(more, k)
  local one = declare(more):cells()[k or 1]
  return cell.id(cell.build(one), "run")
end
local a, b = {"batch", {2, 4}}, {"accumulate", {1, 2}}
tap.is(id({sweep = {a, b}}, 2), id({sweep = {b, a}}, 3), "the order of axes makes no other cell")
tap.is(id({sweep = {{"cfg", {{x = 1, y = 2, z = 3}}}}}), id({sweep = {{"cfg", {{z = 3, y = 2, x = 1}}}}}),
  "nor that of keys")
tap.is(id{batch = 4}, id({sweep = {a}}, 2), "nor whether a setting is swept")
local function differ(x, y) return table.concat(cell.differences(x, y), " ") end
tap.is(differ(id(), id{seed = 3}), "settings", "a seed is a setting")
tap.is(differ(id(), id{model = nn.Sequential{nn.Linear(4, 3), nn.ReLU()}}), "network", "an id tells a changed network")
tap.is(differ(id(), id{data = mt.data.random{count = 8, shape = {4}, classes = 3}}), "data", "and changed data")
tap.ok(id({sweep = {{"model", {nn.Linear(4, 3), nn.Linear(4, 3)}}}}, 1)
  ~= id({sweep = {{"model", {nn.Linear(4, 3), nn.Linear(4, 3)}}}}, 2), "equal networks of one axis are two cells")
tap.done()
