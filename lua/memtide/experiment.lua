-- What a script declares: mt.experiment{...} checks it and spreads it into cells, one for each row of the results.
local claims = require "memtide.claims"
local core = require "memtide.core"
local measure = require "memtide.measure"
local nn = require "memtide.nn"
local plain = require "memtide.plain"
local schedule = require "memtide.schedule"
local settings = require "memtide.settings"
local util = require "memtide.util"

local experiment = {}
local Experiment = {__name = "memtide.experiment"}
Experiment.__index = Experiment

-- What can be said of the whole experiment and of one case alike, beside the settings.
local COMMON = {"model", "model_name", "input", "classes", "target", "loss", "data", "test_data",
  "steps", "warmup", "epochs", "seed", "schedule"}
local WHOLE = {"name", "sweep", "cases", "claims", "repeats", "shuffle", "drop_last", "predict_only",
  table.unpack(measure.names)}

local LISTS = {sweep = true, cases = true, claims = true} -- each checked in its own way

local function joined(...)
  local all = {}
  for _, list in ipairs{...} do for _, item in ipairs(list) do all[#all + 1] = item end end
  return all
end
local TOP = joined(WHOLE, COMMON, settings.names)
local CASE = joined({"case"}, COMMON, settings.names)

local is_common = {}
for _, key in ipairs(COMMON) do is_common[key] = true end

-- ---- checks

local function rule(test, expected)
  return function(value)
    if test(value) then return value end
    return nil, expected
  end
end

local function is_shape(value)
  if not plain.is_table(value) or #value < 1 or #value > 3 then return false end
  for _, n in ipairs(value) do if math.type(n) ~= "integer" or n < 1 then return false end end
  return true
end

local function is_model(value) return nn.is_layer(value) or type(value) == "function" end

local a_name = rule(function(value) return type(value) == "string" and value ~= "" end, "a name")
local flag = rule(function(value) return type(value) == "boolean" end, "true or false")
local dataset = rule(function(value)
  return type(value) == "userdata" and tostring(value) == "memtide.Dataset (open)"
end, "an open dataset of mt.data")
local function number(least, most)
  return rule(function(value) return math.type(value) and value >= least and value <= most end,
    ("a number from %g to %g"):format(least, most))
end
local at_least_1 = settings.whole(1, settings.MOST)

-- As settings' checks: the value, or nil and what was expected.
local RULES = {
  name = a_name, case = a_name, model_name = a_name, shuffle = flag, drop_last = flag, predict_only = flag,
  model = rule(is_model, "a layer, or a function of the settings that returns one"),
  input = rule(is_shape, "the shape of one sample, one to three whole numbers such as {3, 32, 32}"),
  target = rule(is_shape, "the shape of one target, one to three whole numbers"),
  classes = at_least_1, steps = at_least_1, epochs = at_least_1, repeats = at_least_1,
  warmup = settings.whole(0, settings.MOST), seed = settings.whole(0, math.maxinteger),
  rounds = settings.whole(1, 100), confidence = number(0.0001, 1), time_limit = number(0.001, 1e6),
  schedule = rule(schedule.is, "a schedule such as optim.StepLR(30)"),
  loss = rule(nn.is_loss, "a loss such as nn.CrossEntropyLoss()"), data = dataset, test_data = dataset,
}
local own = rule(function(value) return value ~= "" and plain.has_text(value) end,
  "a word, a number, true, false or a table of them")

local function check_value(where, place, key, value)
  if settings.known[key] then return settings.check(where, place, key, value) end
  local checked, expected = (RULES[key] or own)(value)
  if checked == nil then
    util.fail_at(where, "%s: %s: expected %s, found %s", place, key, expected, plain.literal(value))
  end
  return checked
end

-- An axis or key that memtide does not know is the script's own, unless it looks like a slip of the finger.
local function check_own(where, place, key)
  local nearest = util.nearest(key, CASE)
  if nearest then util.fail_at(where, '%s: unknown setting "%s"; did you mean "%s"?', place, key, nearest) end
end

-- Passes a list: no names, no holes.
local function check_list(where, place, value, expected)
  local count = 0
  for _ in pairs(type(value) == "table" and value or {}) do count = count + 1 end
  local good = plain.is_table(value)
  for i = 1, count do good = good and value[i] ~= nil end
  if not good then util.fail_at(where, "%s: expected %s, found %s", place, expected, plain.literal(value)) end
  return value
end

-- How the value is told from the others of its axis, in the names of cells: a model has no short text.
local function shown(value, position)
  if is_model(value) then return tostring(position) end
  if schedule.is(value) then return value.text end
  if type(value) == "userdata" then return value:info().text end
  return settings.text(value)
end

-- {"axis", {value, ...}} as {name =, values =, texts =}, the values checked and different; `place` may hold a %d.
local function make_axis(where, place, axis, list)
  local out, seen = {name = axis, values = {}, texts = {}}, {}
  for k, value in ipairs(list) do
    local at = place:format(k)
    local checked = check_value(where, at, axis, value)
    local text = shown(checked, k)
    if seen[text] then util.fail_at(where, "%s: %s: %s is there already, as value %d", at, axis, text, seen[text]) end
    seen[text], out.values[k], out.texts[k] = k, checked, text
  end
  return out
end

local function check_axis(where, axis, i, seen)
  local place, expected = ("sweep[%d]"):format(i), '{"axis", {value, ...}}'
  check_list(where, place, axis, expected)
  local axis_name, list = axis[1], axis[2]
  if type(axis_name) ~= "string" or #axis ~= 2 then
    util.fail_at(where, "%s: expected %s, found %s", place, expected, plain.literal(axis))
  end
  if not settings.known[axis_name] and not is_common[axis_name] then check_own(where, place, axis_name) end
  if seen[axis_name] then
    util.fail_at(where, '%s: "%s" is an axis already, sweep[%d]', place, axis_name, seen[axis_name])
  end
  seen[axis_name] = i
  if #check_list(where, ("%s: %s"):format(place, axis_name), list, "a list of values") == 0 then
    util.fail_at(where, "%s: %s: expected a list of values, found none", place, axis_name)
  end
  return make_axis(where, place .. " value %d", axis_name, list)
end

local function check_case(where, case, i, seen)
  local place, out = ("cases[%d]"):format(i), {}
  if not plain.is_table(case) then
    util.fail_at(where, '%s: expected {case = "name", setting = value, ...}, found %s', place, plain.literal(case))
  end
  for key, value in pairs(case) do
    if type(key) ~= "string" then util.fail_at(where, "%s: expected names, found %s", place, tostring(key)) end
    if key ~= "case" and not settings.known[key] and not is_common[key] then check_own(where, place, key) end
    out[key] = check_value(where, place, key, value)
  end
  out.case = out.case or ("case %d"):format(i)
  if seen[out.case] then
    util.fail_at(where, '%s: the name "%s" is taken already, by cases[%d]', place, out.case, seen[out.case])
  end
  seen[out.case] = i
  return out
end

local function check_each(where, place, list, expected, check)
  local out, seen = {}, {}
  for i, item in ipairs(check_list(where, place, list or {}, expected)) do out[i] = check(where, item, i, seen) end
  return out
end

-- An axis gives a setting to every cell: a case that gives it too would be overruled in silence.
function Experiment:check_overlap()
  for i, case in ipairs(self.cases) do
    for _, axis in ipairs(self.axes) do
      if case[axis.name] ~= nil then
        util.fail_at(self.where, 'cases[%d]: "%s" is an axis of the sweep, too', i, axis.name)
      end
    end
  end
end

-- mt.experiment{name =, model =, input =, loss =, ...}
function experiment.new(options)
  if type(options) ~= "table" then util.fail("experiment: expected a table, found a %s", type(options)) end
  util.check_keys("experiment", options, TOP)
  local where = core.where()
  local self = setmetatable({where = where, base = {}}, Experiment)
  for key, value in pairs(options) do
    if not LISTS[key] then self.base[key] = check_value(where, "experiment", key, value) end
  end
  for _, key in ipairs{"name", "loss"} do
    if self.base[key] == nil then util.fail_at(where, 'experiment: "%s" is missing', key) end
  end
  self.axes = check_each(where, "sweep", options.sweep, 'a list of axes {{"axis", {value, ...}}, ...}', check_axis)
  self.cases = check_each(where, "cases", options.cases, 'a list of cases {{case = "name", ...}, ...}', check_case)
  self:check_overlap()
  self.name = self.base.name
  self.claims = claims.check(self, options.claims, check_list)
  return self
end

function experiment.is(value) return getmetatable(value) == Experiment end

-- Keeps the place of an axis that is there already.
local function replace_axis(axes, name, axis)
  for i, old in ipairs(axes) do
    if old.name == name then
      if axis then axes[i] = axis else table.remove(axes, i) end
      return
    end
  end
  axes[#axes + 1] = axis
end

-- What the command line may change: the rest is what the script is about.
local function check_settable(self, key)
  local known = joined(settings.names, {"seed", "steps", "warmup", "epochs", "repeats"}, measure.names,
    self:own_keys())
  for _, settable in ipairs(known) do if settable == key then return end end
  local nearest = not RULES[key] and util.nearest(key, known)
  util.fail_at("", '--set: unknown setting "%s"%s', key, nearest and ('; did you mean "%s"?'):format(nearest)
    or "; what can be set: " .. table.concat(known, ", "))
end

-- `--set axis=v1,v2`: one value is a setting of every cell, more are an axis, none takes the setting away.
function Experiment:set(key, values)
  check_settable(self, key)
  local axis = make_axis("", "--set", key, values)
  for _, case in ipairs(self.cases) do case[key] = nil end
  if #values == 1 then self.base[key] = axis.values[1] else self.base[key] = nil end
  replace_axis(self.axes, key, #values > 1 and axis or nil)
end

-- ---- cells

-- Axes and keys of cases that memtide does not know.
function Experiment:own_keys()
  local names, seen = {}, {}
  local function add(name)
    if settings.known[name] or RULES[name] or seen[name] then return end
    seen[name], names[#names + 1] = true, name
  end
  for _, axis in ipairs(self.axes) do add(axis.name) end
  for _, case in ipairs(self.cases) do for _, key in ipairs(util.sorted_keys(case)) do add(key) end end
  for _, key in ipairs(util.sorted_keys(self.base)) do add(key) end
  return names
end

-- The columns of the script's own.
function Experiment:own_axes()
  return joined(self:own_keys(), self.base.test_data and {"test_accuracy"} or {})
end

local function new_cell(self, case, chosen)
  local cell = {experiment = self, values = {}}
  for key, value in pairs(self.base) do cell.values[key] = value end
  for key, value in pairs(case) do cell.values[key] = value end
  local words = {case.case}
  for i, axis in ipairs(self.axes) do
    cell.values[axis.name] = axis.values[chosen[i]]
    words[#words + 1] = ("%s=%s"):format(axis.name, axis.texts[chosen[i]])
  end
  for _, setting in ipairs(settings.list) do
    if cell.values[setting.name] == nil then cell.values[setting.name] = setting.default end
  end
  cell.name = #words > 0 and table.concat(words, " ") or self.name
  return cell
end

-- How many cells there are: every case times every combination of the axes times the repeats.
function Experiment:count()
  local n = math.max(#self.cases, 1) * (self.base.repeats or 1)
  for _, axis in ipairs(self.axes) do n = n * #axis.values end
  return n
end

-- The cell at a position from 1, in the order in which cases and axes are written; repeats run fastest, then the last
-- axis.
function Experiment:cell(position)
  local rest, chosen = position - 1, {}
  local function digit(base)
    local found = rest % base + 1
    rest = rest // base
    return found
  end
  local repeat_number = digit(self.base.repeats or 1)
  for i = #self.axes, 1, -1 do chosen[i] = digit(#self.axes[i].values) end
  local cell = new_cell(self, self.cases[rest + 1] or {}, chosen)
  cell.repeat_number = repeat_number
  return cell
end

function Experiment:cells()
  local cells = {}
  for position = 1, self:count() do cells[position] = self:cell(position) end
  return cells
end

return experiment
