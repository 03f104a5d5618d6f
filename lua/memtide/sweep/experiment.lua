-- mt.experiment{...}: checks what a script declares and makes its cells, one for each row of the results.
local axes = require "memtide.sweep.axes"
local claims = require "memtide.sweep.claims"
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local countings = require "memtide.net.countings"
local data = require "memtide.net.data"
local inputs = require "memtide.net.inputs"
local script_options = require "memtide.sweep.script_options"
local measure = require "memtide.results.measure"
local nn = require "memtide.net.nn"
local literal = require "memtide.base.literal"
local optim = require "memtide.net.optim"
local reads = require "memtide.sweep.reads"
local lr_schedule = require "memtide.net.lr_schedule"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"

local experiment = {}
local Experiment = {__name = "memtide.sweep.experiment"}
Experiment.__index = Experiment
local names = setmetatable({}, {__mode = "k"}) -- {[experiment] = name}, kept where no script can change it
local declarations = setmetatable({}, {__mode = "k"}) -- {[experiment] = what the script gave}

-- Keys of the whole experiment and of a case, apart from the settings.
local COMMON = {"trainings", "round", "model", "model_name", "input", "classes", "target", "loss", "data", "test_data",
  "weights", "steps", "warmup", "epochs", "seed", "schedule"}
local WHOLE = {"name", "sweep", "cases", "claims", "where", "options", "monotone", "repeats", "shuffle", "drop_last",
  "predict_only", "counting", table.unpack(measure.names)}
local MOST = 1000000 -- cells of a sweep; to look at each of them takes 10 s
local PARTS = {sweep = true, cases = true, claims = true, options = true} -- checked by functions of their own
local NOT_OF_CELLS = {where = true, monotone = true}

local function joined(...)
  local all = {}
  for _, list in ipairs{...} do for _, item in ipairs(list) do all[#all + 1] = item end end
  return all
end
local TOP = joined(WHOLE, COMMON, settings.names)
local CASE = joined({"case"}, COMMON, settings.names)

experiment.keys = {experiment = TOP, case = CASE}

local is_common = {}
for _, key in ipairs(COMMON) do is_common[key] = true end

-- ---- checks

local function rule(test, expected)
  return function(value)
    if test(value) then return value end
    return nil, expected
  end
end

local function is_input(value) return inputs.is(value) or type(value) == "function" end

local function is_model(value) return nn.is_layer(value) or type(value) == "function" end

local function is_trainings(value)
  if type(value) == "function" then return true end
  if not literal.is_table(value) or next(value) == nil then return false end
  for name, one in pairs(value) do if type(name) ~= "string" or not literal.is_table(one) then return false end end
  return true
end

-- A dataset, or several by name
local function is_data(value)
  if data.is_dataset(value) then return true end
  if not literal.is_table(value) or next(value) == nil then return false end
  for name, one in pairs(value) do if type(name) ~= "string" or not data.is_dataset(one) then return false end end
  return true
end

local function is_names(value)
  if literal.is_table(value) then
    for _, name in ipairs(value) do if type(name) ~= "string" then return false end end
    return true
  end
  return type(value) == "string" or value == false
end

-- File names begin with it, so it must not lead to another folder or hold what a list of cells cannot.
local a_file_name = rule(function(value)
  return type(value) == "string" and value ~= "" and not value:find("[/%c]")
end, "a name without slashes and control characters: it begins the names of files (their folder: --csv, --output)")
local a_name = rule(function(value) return type(value) == "string" and value ~= "" end, "a name")
-- A path, or trainer:load's path and options
local function is_weights(value)
  if type(value) == "string" then return value ~= "" end
  if not literal.is_table(value) or type(value[1]) ~= "string" then return false end
  for key in pairs(value) do if key ~= 1 and key ~= "strict" and key ~= "skip" then return false end end
  return true
end

local flag = rule(function(value) return type(value) == "boolean" end, "true or false")
local function number(least, most)
  return rule(function(value) return math.type(value) and value >= least and value <= most end,
    ("a number from %g to %g"):format(least, most))
end
local at_least_1 = settings.whole(1, settings.MOST)

-- Checks as in settings.lua: each returns the value, or nil and what was expected.
local RULES = {
  name = a_file_name, case = a_name, model_name = a_name, shuffle = flag, drop_last = flag, predict_only = flag,
  counting = rule(function(value) return type(value) == "string" and countings.list[value] ~= nil end,
    "one of " .. table.concat(countings.names, ", ")),
  model = rule(is_model, "a layer, or a function of the settings that returns one"),
  trainings = rule(is_trainings, "trainings by name, {generator = {model = ..., input = ..., loss = ...}, ...}; or a function of " ..
    "the settings that returns them"),
  round = rule(function(value) return type(value) == "function" end, "a function of the trainings: round(t, draw, s)"),
  input = rule(is_input, inputs.EXPECTED .. "; or a function of the settings that returns it"),
  target = rule(inputs.is_shape, "the shape of one target, one to three whole numbers"),
  classes = at_least_1, steps = at_least_1, epochs = at_least_1, repeats = at_least_1,
  warmup = settings.whole(0, settings.MOST), seed = settings.whole(0, math.maxinteger),
  rounds = settings.whole(1, 100), confidence = number(0.0001, 1), time_limit = number(0.001, 1e6),
  schedule = rule(lr_schedule.is, "a schedule such as optim.StepLR(30)"),
  where = rule(function(value) return type(value) == "function" end, "a function of a cell's settings"),
  monotone = rule(is_names, "the name of an axis, a list of names, or false"),
  loss = rule(nn.is_loss, "a loss such as nn.CrossEntropyLoss(), of several outputs a sum of losses"),
  data = rule(function(value) return is_data(value) or type(value) == "function" end,
    "an open dataset of mt.data, or a function of the settings that returns one, or an iterator; with trainings datasets by name"),
  test_data = rule(data.is_dataset, "an open dataset of mt.data"),
  weights = rule(is_weights, 'the path of safetensors that parameters start from, or {path, strict = false, ' ..
    'skip = {names}} as trainer:load takes them'),
}
local own = rule(function(value) return value ~= "" and literal.has_text(value) end,
  "a word, a number, true, false or a table of them")

local function is_settable(key) return settings.known[key] or is_common[key] end

-- Words that other programs use -> the setting that is meant
local INSTEAD = {dtype = '"precision"', amp = '"precision"', autocast = '"precision"', eval = '"mode"',
  grad_accum = '"accumulate"', gradient_accumulation_steps = '"accumulate"', accumulation_steps = '"accumulate"'}
for _, name in ipairs{"lr", "learning_rate", "momentum", "weight_decay", "betas", "eps"} do
  INSTEAD[name] = '{"optimizer", {optim.Adam{...}, ...}}'
end

-- The setting that may be meant by a name that nothing reads, for example batch by batch_size; nil: none. An axis or key that
-- memtide does not know is the script's own where a function reads it, however near it is to a setting.
local function meant(name)
  if INSTEAD[name] then return INSTEAD[name] end
  local best = util.nearest(name, CASE)
  for _, key in ipairs(best and {} or CASE) do
    local inside = #key >= 4 and name:lower():find(key, 1, true) or #name >= 4 and key:find(name:lower(), 1, true)
    if inside and (not best or #key > #best) then best = key end
  end
  return best and '"' .. best .. '"'
end

-- Raises if the key belongs to the whole experiment, so that it cannot differ between cells.
local function check_of_cells(where, place, key)
  if RULES[key] and not is_settable(key) then
    util.fail_at(where, '%s: "%s" is said of the whole experiment, not of its cells', place, key)
  end
end

-- The value of a key as memtide uses it; raises at `where` (nil: the experiment's line) if it is wrong.
function Experiment:check_value(place, key, value, where)
  where = where or self.where
  if key == "batch" and value == "max" then return value end -- the largest that fits: see max_batch.lua
  if settings.known[key] then return settings.check(where, place, key, value) end
  local checked, expected = (RULES[key] or self.options[key] and self.options[key].check or own)(value)
  if checked == nil then
    util.fail_at(where, "%s: %s: expected %s, found %s", place, key, expected, literal.of(value))
  end
  return checked
end

-- What an experiment that declares no options says about that value of a key; nil: it takes the value.
function experiment.problem(key, value)
  local good, problem = pcall(Experiment.check_value, {where = "", options = {}}, "experiment", key, value)
  return not good and problem or nil
end

-- The function that axes.lua calls for each value. It checks a name only once. several: is this really an axis? One
-- value is a setting of all cells.
function Experiment:axis_check(several)
  local seen = {}
  return function(where, place, key, value)
    local axis = place:match("^sweep%[%d+%]") or place
    if several and not seen[key] then check_of_cells(where, axis, key) end
    seen[key] = true
    return self:check_value(place, key, value, where)
  end
end

function Experiment:check_case(case, i, seen)
  local where, place, out = self.where, ("cases[%d]"):format(i), {}
  if not literal.is_table(case) then
    util.fail_at(where, '%s: expected {case = "name", setting = value, ...}, found %s', place, literal.of(case))
  end
  for key, value in pairs(case) do
    if type(key) ~= "string" then util.fail_at(where, "%s: expected names, found %s", place, tostring(key)) end
    if key ~= "case" then check_of_cells(where, place, key) end
    out[key] = self:check_value(place, key, value)
  end
  out.case = out.case or ("case %d"):format(i)
  if seen[out.case] then
    util.fail_at(where, '%s: the name "%s" is taken already, by cases[%d]', place, out.case, seen[out.case])
  end
  seen[out.case] = i
  return out
end

local function check_each(self, place, list, expected, check)
  local out, seen = {}, {}
  for i, item in ipairs(axes.check_list(self.where, place, list or {}, expected)) do out[i] = check(item, i, seen) end
  return out
end

-- Raises if a case gives a setting that an axis gives to every cell: the case's value would never be used.
function Experiment:check_overlap()
  for i, case in ipairs(self.cases) do
    for _, axis in ipairs(self.axes) do
      for _, name in ipairs(axis.names) do
        if case[name] ~= nil then
          util.fail_at(self.where, 'cases[%d]: "%s" is an axis of the sweep, too', i, name)
        end
      end
    end
  end
end

-- Raises if there are more than MOST combinations. Their number is a float, because it may be beyond any integer.
function Experiment:check_combinations(where, place)
  local n, words = 1.0, {}
  local function times(count, what)
    n = n * count
    if count > 1 then words[#words + 1] = ("%d %s"):format(count, what) end
  end
  times(math.max(#self.cases, 1), "cases")
  for _, axis in ipairs(self.axes) do times(#axis.rows, "of " .. table.concat(axis.names, " and ")) end
  times(self.base.repeats or 1, "repeats")
  if n > MOST then
    util.fail_at(where, "%s: expected at most %d cells, found %.15g: %s", place, MOST, n, table.concat(words, " x "))
  end
end

-- Is this name a setting, or an axis or key of the script's own?
function Experiment:knows(name)
  if settings.known[name] or RULES[name] then return true end
  for _, key in ipairs(self:own_keys()) do if key == name then return true end end
  return false
end

local function is_taken(name) return settings.known[name] ~= nil or RULES[name] ~= nil or PARTS[name] ~= nil end

function Experiment:check_axes(sweep, cases)
  self.axes = check_each(self, "sweep", sweep, 'a list of axes {{"axis", {value, ...}}, ...}',
    function(axis, i, seen) return axes.declare(self.where, axis, i, seen, self:axis_check(true)) end)
  self.cases = check_each(self, "cases", cases, 'a list of cases {{case = "name", ...}, ...}',
    function(case, i, seen) return self:check_case(case, i, seen) end)
  axes.check_order(self.where, self.axes, function(name) return self:knows(name) end)
  self:check_overlap()
end

-- mt.experiment{name =, model =, input =, loss =, ...}; raises at the script's line if anything is wrong.
function experiment.new(options)
  if type(options) ~= "table" then util.fail("experiment: expected a table, found a %s", type(options)) end
  util.check_keys("experiment", options, TOP)
  local self = setmetatable({where = core.where(), base = {}}, Experiment)
  self.options = script_options.check(self.where, options.options, is_taken)
  for _, option in ipairs(self.options) do self.base[option.name] = option.default end
  for key, value in pairs(options) do
    if not PARTS[key] then self.base[key] = self:check_value("experiment", key, value) end
  end
  for _, key in ipairs{"name", not self.base.trainings and "loss" or nil} do
    if self.base[key] == nil then util.fail_at(self.where, 'experiment: "%s" is missing', key) end
  end
  self:check_axes(options.sweep, options.cases)
  self:check_combinations(self.where, "experiment")
  self:watch_reads()
  self.name, names[self], declarations[self] = self.base.name, self.base.name, options
  self.claims = claims.check(self, options.claims, axes.check_list)
  return self
end

-- The script's own axes and keys of cases, with their places: {{name =, place =}, ...}; without those that a condition
-- of an axis reads
local function own_names(self)
  local list, seen = {}, {}
  local function add(name, place)
    if seen[name] or settings.known[name] or RULES[name] then return end
    seen[name], list[#list + 1] = true, {name = name, place = place}
  end
  for _, axis in ipairs(self.axes) do
    for _, condition in ipairs(axis.only or {}) do seen[condition[1]] = true end
  end
  for i, axis in ipairs(self.axes) do
    for _, name in ipairs(axis.names) do add(name, ("sweep[%d]"):format(i)) end
  end
  for i, case in ipairs(self.cases) do
    for _, name in ipairs(util.sorted_keys(case)) do add(name, ("cases[%d]"):format(i)) end
  end
  return list
end

-- Does the experiment have a function of its cells' settings (model, input, data or where)?
local function has_functions(self)
  local function among(values)
    for _, key in ipairs{"model", "input", "data", "trainings", "round"} do
      if type(values[key]) == "function" then return true end
    end
    return false
  end
  local found = among(self.base) or self.base.where ~= nil
  for _, case in ipairs(self.cases) do found = found or among(case) end
  for _, axis in ipairs(self.axes) do
    for k, name in ipairs(axis.names) do
      for _, row in ipairs(axis.rows) do found = found or among{[name] = row[k]} end
    end
  end
  return found
end

-- An experiment like this one in which `changes` stand in place of the keys of their names; false: without that key.
--   local article = require "article"
--   return article:with{name = "wide", sweep = {{"batch", {64, 128}}}}
function Experiment:with(changes)
  if type(changes) ~= "table" then util.fail("experiment:with: expected a table, found a %s", type(changes)) end
  local options = {}
  for key, value in pairs(declarations[self]) do options[key] = value end
  for key, value in pairs(changes) do
    if value == false and key ~= "monotone" then options[key] = nil else options[key] = value end
  end
  return experiment.new(options)
end

-- Sets self.reads, which notes what functions of the settings read, and raises if it is certain already that nothing
-- reads an axis. Sets self.declared: the experiment as the script declares it, without changes of the command line.
function Experiment:watch_reads()
  self.reads = reads.new(self.where, joined(TOP, CASE, self:own_keys()), own_names(self), meant)
  if not has_functions(self) then self.reads:check_none() end
  self.declared = setmetatable({where = self.where, name = self.base.name, reads = self.reads,
    base = literal.copy(self.base), cases = literal.copy(self.cases),
    axes = table.move(self.axes, 1, #self.axes, 1, {})}, Experiment)
end

function experiment.is(value) return getmetatable(value) == Experiment end

-- The name that its files begin with: as it was checked, even if the script has changed the table since.
function experiment.file_name(self) return names[self] end

-- Raises unless the command line may change this key.
local function check_settable(self, key)
  local known = joined(settings.names, {"seed", "steps", "warmup", "epochs", "repeats"}, measure.names,
    self:own_keys())
  for _, settable in ipairs(known) do if settable == key then return end end
  local nearest = not RULES[key] and util.nearest(key, known)
  util.fail_at("", '--set: unknown setting "%s"%s', key, nearest and ('; did you mean "%s"?'):format(nearest)
    or "; what can be set: " .. table.concat(known, ", "))
end

-- `--set axis=v1,v2`: one value becomes a setting of every cell, several become an axis, none removes the setting.
function Experiment:set(key, values)
  check_settable(self, key)
  local axis = #values > 0 and axes.new("", "--set", key, values, self:axis_check(#values > 1))
  for _, case in ipairs(self.cases) do case[key] = nil end
  if #values == 1 then self.base[key] = axis.rows[1][1] else self.base[key] = nil end
  axes.replace(self.axes, key, #values > 1 and axis or nil)
  self:check_combinations("", "--set")
end

-- ---- cells

local function has_column(name) return settings.known[name] and not settings.known[name].own or RULES[name] end

-- The names of axes, keys of cases and settings that do not have a column in every file
function Experiment:own_keys()
  local keys, seen = {}, {}
  local function add(name)
    if has_column(name) or seen[name] then return end
    seen[name], keys[#keys + 1] = true, name
  end
  for _, axis in ipairs(self.axes) do for _, name in ipairs(axis.names) do add(name) end end
  for _, case in ipairs(self.cases) do for _, key in ipairs(util.sorted_keys(case)) do add(key) end end
  for _, key in ipairs(util.sorted_keys(self.base)) do add(key) end
  return keys
end

-- Does the script, or the command line, give the setting anywhere?
function Experiment:says(name)
  for _, key in ipairs(self:own_keys()) do if key == name then return true end end
  return false
end

-- Does a paged optimizer stand anywhere? One that a function of the settings makes cannot be seen.
local function pages(self)
  if optim.is_paged(self.base.optimizer) then return true end
  for _, case in ipairs(self.cases) do if optim.is_paged(case.optimizer) then return true end end
  for _, axis in ipairs(self.axes) do
    local column = axes.column(axis, "optimizer")
    for _, row in ipairs(column and axis.rows or {}) do if optim.is_paged(row[column]) then return true end end
  end
  local trainings = type(self.base.trainings) == "table" and self.base.trainings or {}
  for _, one in pairs(trainings) do if optim.is_paged(one.optimizer) then return true end end
  return false
end

-- The columns that only this script's files have, in an order that does not depend on the order of the axes
function Experiment:own_axes()
  local keys, given, results = self:own_keys(), {test_data = self.base.test_data ~= nil, host = pages(self)}, {}
  table.sort(keys)
  for _, key in ipairs(keys) do given[key] = true end
  given.host = given.host or given.offload
  for _, column in ipairs(columns.list) do
    if given[column.with] and column.name ~= column.with then results[#results + 1] = column.name end
  end
  return joined(keys, results)
end

-- The cell of a case and of the places chosen[i] on axis i. Second value: does the cell count? If an axis's conditions
-- do not hold, only its first place counts.
local function new_cell(self, case, chosen)
  local values, words, places, counts = {}, {case.case}, {}, true
  for key, value in pairs(self.base) do if not NOT_OF_CELLS[key] then values[key] = value end end
  for key, value in pairs(case) do values[key] = value end
  for _, setting in ipairs(settings.list) do
    if values[setting.name] == nil then values[setting.name] = setting.default end
  end
  for i, axis in ipairs(self.axes) do
    if axes.active(axis, values) then
      for k, name in ipairs(axis.names) do values[name] = axis.rows[chosen[i]][k] end
      for k, text in ipairs(axis.texts[chosen[i]]) do
        words[#words + 1] = text
        if is_model(axis.rows[chosen[i]][k]) then places[#places + 1] = text end
      end
    elseif chosen[i] > 1 then counts = false end
  end
  local name = #words > 0 and table.concat(words, " ") or self.name
  -- places: part of the cell's id, because two models on an axis may be equal
  return {experiment = self, values = values, name = name, places = places}, counts
end

-- The names of axes along which cells need ever more memory
function Experiment:monotone_axes()
  local given = self.base.monotone
  if given == nil then return {"batch"} end
  return given and (type(given) == "table" and given or {given}) or {}
end

-- The number of positions: cases times combinations of the axes times repeats. Some positions may have no cell.
function Experiment:count()
  local n = math.max(#self.cases, 1) * (self.base.repeats or 1)
  for _, axis in ipairs(self.axes) do n = n * #axis.rows end
  return n
end

-- The cell at a position, 1 to count(), in the order in which cases and axes are written; repeats run fastest, then the
-- last axis. Second value: does it count, by the conditions of the axes?
function Experiment:cell(position)
  local rest, chosen = position - 1, {}
  local function digit(base)
    local found = rest % base + 1
    rest = rest // base
    return found
  end
  local repeat_number = digit(self.base.repeats or 1)
  for i = #self.axes, 1, -1 do chosen[i] = digit(#self.axes[i].rows) end
  assert(position >= 1 and rest < math.max(#self.cases, 1))
  local cell, counts = new_cell(self, self.cases[rest + 1] or {}, chosen)
  cell.repeat_number = repeat_number
  return cell, counts
end

-- Does the script's filter accept the cell? A cell whose batch is not known yet passes if the filter needs the batch.
function Experiment:passes(cell)
  local filter = self.base.where
  if not filter then return true end
  local good, found = util.try(filter, nil, self.reads:hand_out(cell.values))
  if good then return found end
  if util.is_failure(found) then error(found, 0) end
  if cell.values.batch == "max" and found ~= self.reads.wrong then return true end
  error(("%s (in where, for the cell %s)"):format(util.text_of(found), cell.name), 0)
end

local function is_regular(self)
  for _, axis in ipairs(self.axes) do if axis.only then return false end end
  return not self.base.where
end

-- The list of positions that have a cell; nil: all have one.
function Experiment:positions()
  if is_regular(self) then return nil end
  local list, filter = {}, self.base.where and debug.getinfo(self.base.where, "S")
  for position = 1, self:count() do
    local cell, counts = self:cell(position)
    if counts and self:passes(cell) then list[#list + 1] = position end
  end
  if #list == 0 then
    util.fail_at(self.where, "experiment: there is no cell to run: where (%s:%d) lets none of %d pass",
      filter.short_src, filter.linedefined, self:count())
  end
  return list
end

function Experiment:cells()
  local cells, positions = {}, self:positions()
  for i = 1, positions and #positions or self:count() do cells[i] = self:cell(positions and positions[i] or i) end
  return cells
end

return experiment
