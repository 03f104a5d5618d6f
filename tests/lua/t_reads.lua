-- What functions of a script read of a cell's settings: names that are not there, and axes that nobody reads.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local mt = require "memtide"
local nn = mt.nn

local function declare(more)
  local options = {name = "reads", model = nn.Linear(4, 3), input = {4}, loss = nn.CrossEntropyLoss()}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.experiment(options)
end
local function refused(part, what, more) tap.raises(part, what, declare, more) end
local function first(more) return cell.build(declare(more):cells()[1]) end
local function wide(s) return nn.Linear(4, s.width) end

-- ---- nobody can read it: refused as it is declared
local line = tap.line(2):gsub("t_reads", "tests/lua/t_reads")
tap.raises(line .. ' sweep[1]: nothing reads "batch_size"', "with its line",
  function() declare{sweep = {{"batch_size", {1}}}} end)
local at = select(2, pcall(declare, {sweep = {{"batch_size", {1, 2}}}}))
tap.has(at, 'sweep[1]: nothing reads "batch_size": no model, input, data or where is a function of the settings; ' ..
  'did you mean "batch"?', "an axis beside a plain layer, with what may be meant")
for name, setting in pairs{dtype = '"precision"', checkpointing = '"checkpoint"', lr = '{"optimizer", {optim.Adam{...}',
  gradient_accumulation_steps = '"accumulate"', num_epochs = '"epochs"', Batch = '"batch"'} do
  tap.raises("did you mean " .. setting, name, declare, {sweep = {{name, {1, 2}}}})
end
tap.ok(not select(2, pcall(declare, {sweep = {{"xyz", {1}}}})):find "did you mean", "a name like no other: no advice")
refused('sweep[2]: nothing reads "depth"', "of several the first", {sweep = {{"batch", {1}}, {"depth", {1}}}})
refused('cases[2]: nothing reads "width"', "a key of a case", {cases = {{batch = 2}, {width = 8}}})
refused('sweep[1]: nothing reads "width"', "an option of the script's as an axis",
  {options = {{"width", 8, "channels"}}, sweep = {{"width", {1, 2}}}})
refused('sweep[1]: nothing reads "b"', "in a zip", {sweep = {mt.zip{{"batch", {1, 2}}, {"b", {1, 2}}}}})
tap.is(#declare{options = {{"width", 8, "channels"}}}:cells(), 1, "an option at its default may wait for a reader")
tap.is(#declare{sweep = {{"kind", {"a", "b"}}, {"batch", {1, 2}, only = {kind = "a"}}}}:cells(), 3,
  "the condition of an axis reads")
for _, name in ipairs{"shuffle", "repeats", "rounds", "name"} do
  refused(('sweep[1]: "%s" is said of the whole experiment, not of its cells'):format(name), name .. " as an axis",
    {sweep = {{name, {1, 2}}}})
end
refused('cases[1]: "time_limit" is said of the whole experiment', "or in a case", {cases = {{time_limit = 3}}})
tap.raises('--set: "repeats" is said of the whole experiment', "or by --set",
  function() declare():set("repeats", {1, 2}) end)

-- ---- somebody could read it: found when the first cell is built
local axis = {{"width", {3, 5}}, {"depth", {1, 2}}}
tap.raises('sweep[2]: nothing reads "depth", in none of 4 cells', "an axis that the model leaves out", first,
  {model = wide, sweep = axis})
tap.ok(first{model = wide, sweep = {{"width", {3, 5}}}}, "one that it reads")
tap.ok(first{sweep = {{"width", {4, 5}}}, model = function(s) return nn.Linear(s.width, 3) end,
  input = function(s) return {s.width} end}, "or the input's function")
tap.ok(first{model = wide, sweep = axis, where = function(s) return s.depth == 1 end}, "or the filter")
tap.ok(first{sweep = axis, model = function(s)
  local out = 0
  for name in pairs(s) do if name == "width" then out = s[name] end end
  return nn.Linear(4, out)
end}, "pairs reads all")
local calls = 0
local function sometimes(s)
  calls = calls + 1
  return nn.Linear(4, s.width == 5 and s.depth + 2 or 3)
end
local some = declare{model = sometimes, sweep = axis}
for _, one in ipairs(some:cells()) do cell.build(one) end
tap.ok(calls <= 4 + 4, "one that another cell reads is looked for once")
tap.ok(first{model = wide, cases = {{model = nn.Linear(4, 3)}, {width = 4}}}, "a case's own key, in its cell")
tap.raises('cases[2]: nothing reads "depth"', "one that no cell reads", first,
  {model = wide, cases = {{width = 4}, {width = 5, depth = 1}}})
local broken = declare{sweep = axis,
  model = function(s) return s.width == 5 and error "no" or nn.Linear(4, s.width) end}
tap.ok(cell.build(broken:cells()[1]), "where another cell's function fails, nobody knows what it reads")
local many = declare{model = wide, sweep = {{"width", mt.range(1, 3000)}, {"depth", {1, 2}}}}
tap.raises('nothing reads "depth", in none of 1000 cells', "of many cells some are looked at", cell.build, many:cell(1))
tap.raises('nothing reads "depth", in none of 1000 cells', "the next ones are told at once", cell.build, many:cell(2))
local rare = declare{sweep = {{"width", mt.range(1, 3000)}, {"depth", {1, 2, 3, 4, 5}}},
  model = function(s) return nn.Linear(4, s.width % 50 == 0 and s.depth or 3) end}
tap.ok(cell.build(rare:cell(1)), "one that a cell of 50 reads is found")
local changed = declare{model = wide, sweep = axis}
changed:set("depth", {1})
tap.raises('sweep[2]: nothing reads "depth"', "--set makes no reader", cell.build, changed:cells()[1])

-- ---- a name that is not there
local function model_of(name) return function(s) return nn.Linear(4, s[name] or 3) end end
tap.raises('settings: there is no "widht" (did you mean "width"?)', "a misspelt name", first,
  {model = model_of "widht", sweep = {{"width", {3, 5}}}})
line = tap.line(2):gsub("t_reads", "tests/lua/t_reads")
tap.raises(line .. ' settings: there is no "bacth"', "with the script's line", first,
  {model = function(s) return s.bacth end})
tap.raises('there is no "widht"', "in a filter, too", function()
  return declare{where = function(s) return s.widht > 1 end}:cells()
end)
tap.raises('there is no "widht"', "also of a batch that is not known yet", function()
  return declare{batch = "max", where = function(s) return s.widht * s.batch > 1 end}:cells()
end)
tap.raises('there is no "widht"', "and where the input is made", first, {input = function(s) return {s.widht} end})
for _, name in ipairs{"offload", "checkpoint", "steps", "test_data", "schedule", "classes", "case", "sweep", "where"} do
  tap.ok(first{model = model_of(name) and function(s)
    local _ = s[name]
    return nn.Linear(4, 3)
  end}, name .. " may be asked for")
end
tap.ok(first{cases = {{batch = 2}, {width = 3}}, model = model_of "width"}, "and what another case has")
tap.ok(first{options = {{"width", 3, "channels"}}, model = model_of "width"}, "and options")
tap.ok(first{model = model_of(1)}, "what is no name is nil")

-- ---- as a table
local seen
local nested = declare{sweep = {{"cfg", {{8, 2, inner = {1}}}}}, model = function(s)
  s.cfg.inner[1], s.extra, s.batch = 7, "mine", 99
  seen = {s.cfg.inner[1], s.extra, s.batch, rawequal(s.cfg, s.cfg)}
  for name, value in pairs(s) do seen[name] = value end
  return nn.Linear(4, 3)
end}
local one = cell.build(nested:cells()[1])
tap.is(table.concat({seen[1], seen[2], seen[3], tostring(seen[4])}, " "), "7 mine 99 true", "what it writes it reads")
tap.is(seen.extra .. seen.batch .. seen.precision, "mine99fp32", "also by pairs, beside the rest")
tap.is(one.values.cfg.inner[1] .. " " .. one.values.batch, "1 1", "and nobody else does")
tap.ok(not pcall(setmetatable, setmetatable({}, {__metatable = "memtide.net.settings"}), nil), "its metatable stays")
tap.done()
