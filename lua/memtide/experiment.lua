-- What a script declares: mt.experiment{...} checks it and spreads it into cells, one for each row of the results.
local core = require "memtide.core"
local nn = require "memtide.nn"
local settings = require "memtide.settings"
local util = require "memtide.util"

local experiment = {}
local Experiment = {__name = "memtide.experiment"}
Experiment.__index = Experiment

-- What can be said of the whole experiment and of one case alike, beside the settings.
local COMMON = {"model", "model_name", "input", "classes", "target", "loss", "data", "test_data",
  "steps", "warmup", "epochs", "seed"}
local WHOLE = {"name", "sweep", "cases", "repeats", "shuffle", "drop_last", "predict_only"}

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

local function whole(least)
  return {function(v) return math.type(v) == "integer" and v >= least end, "a whole number of at least " .. least}
end

local function is_shape(value)
  if type(value) ~= "table" or #value < 1 or #value > 3 then return false end
  for _, n in ipairs(value) do if math.type(n) ~= "integer" or n < 1 then return false end end
  return true
end

local function is_model(value) return nn.is_layer(value) or type(value) == "function" end
local function is_dataset(value) return type(value) == "userdata" end
local function is_flag(value) return type(value) == "boolean" end
local function is_name(value) return type(value) == "string" and value ~= "" end

local RULES = {
  name = {is_name, "a name"}, case = {is_name, "a name"}, model_name = {is_name, "a name"},
  model = {is_model, "a layer, or a function of the settings that returns one"},
  input = {is_shape, "the shape of one sample, such as {3, 32, 32}"},
  target = {is_shape, "the shape of one target"},
  classes = whole(1), steps = whole(1), warmup = whole(0), epochs = whole(1), repeats = whole(1), seed = whole(0),
  loss = {nn.is_loss, "a loss such as nn.CrossEntropyLoss()"},
  data = {is_dataset, "a dataset of mt.data"}, test_data = {is_dataset, "a dataset of mt.data"},
  shuffle = {is_flag, "true or false"}, drop_last = {is_flag, "true or false"},
  predict_only = {is_flag, "true or false"},
}

local function check_value(where, place, key, value)
  local rule = RULES[key]
  if settings.known[key] then return settings.check(where, place, key, value) end
  if rule and not rule[1](value) then
    util.fail_at(where, "%s: %s: expected %s, found %s", place, key, rule[2], tostring(value))
  end
  return value
end

-- An axis or key that memtide does not know is the script's own, unless it looks like a slip of the finger.
local function check_own(where, place, key)
  local nearest = util.nearest(key, CASE)
  if nearest then util.fail_at(where, '%s: unknown setting "%s"; did you mean "%s"?', place, key, nearest) end
end

local function check_axis(where, axis, i)
  local place = ("sweep[%d]"):format(i)
  if type(axis) ~= "table" or type(axis[1]) ~= "string" or type(axis[2]) ~= "table" or #axis[2] == 0 or #axis > 2 then
    util.fail_at(where, '%s: expected {"axis", {value, ...}}', place)
  end
  local name, values = axis[1], {}
  if not settings.known[name] and not is_common[name] then check_own(where, place, name) end
  for k, value in ipairs(axis[2]) do values[k] = check_value(where, ("%s value %d"):format(place, k), name, value) end
  return {name = name, values = values}
end

local function check_case(where, case, i)
  local place, out = ("cases[%d]"):format(i), {}
  if type(case) ~= "table" then util.fail_at(where, '%s: expected {case = "name", setting = value, ...}', place) end
  for key, value in pairs(case) do
    if type(key) ~= "string" then util.fail_at(where, "%s: expected names, found %s", place, tostring(key)) end
    if key ~= "case" and not settings.known[key] and not is_common[key] then check_own(where, place, key) end
    out[key] = check_value(where, place, key, value)
  end
  return out
end

-- mt.experiment{name =, model =, input =, loss =, ...}
function experiment.new(options)
  if type(options) ~= "table" then util.fail("experiment: expected a table, found a %s", type(options)) end
  util.check_keys("experiment", options, TOP)
  local where = core.where()
  local self = setmetatable({where = where, base = {}, axes = {}, cases = {}}, Experiment)
  for key, value in pairs(options) do
    if key ~= "sweep" and key ~= "cases" then self.base[key] = check_value(where, "experiment", key, value) end
  end
  for _, key in ipairs{"name", "loss"} do
    if self.base[key] == nil then util.fail_at(where, 'experiment: "%s" is missing', key) end
  end
  for i, axis in ipairs(options.sweep or {}) do self.axes[i] = check_axis(where, axis, i) end
  for i, case in ipairs(options.cases or {}) do self.cases[i] = check_case(where, case, i) end
  self.name = self.base.name
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

-- `--set axis=v1,v2`: one value is a setting of every cell, more are an axis, none takes the setting away.
function Experiment:set(name, values)
  local checked = {}
  if not settings.known[name] and not RULES[name] then check_own("", "--set", name) end
  for i, value in ipairs(values) do checked[i] = check_value("", "--set", name, value) end
  for _, case in ipairs(self.cases) do case[name] = nil end
  if #checked == 1 then self.base[name] = checked[1] else self.base[name] = nil end
  replace_axis(self.axes, name, #checked > 1 and {name = name, values = checked} or nil)
end

-- ---- cells

local function product(axes, visit, at, chosen)
  at, chosen = at or 1, chosen or {}
  if at > #axes then return visit(chosen) end
  for _, value in ipairs(axes[at].values) do
    chosen[at] = value
    product(axes, visit, at + 1, chosen)
  end
end

-- The columns of the script's own: axes and keys of cases that memtide does not know.
function Experiment:own_axes()
  local names, seen = {}, {}
  local function add(name)
    if settings.known[name] or RULES[name] or seen[name] then return end
    seen[name], names[#names + 1] = true, name
  end
  for _, axis in ipairs(self.axes) do add(axis.name) end
  for _, case in ipairs(self.cases) do for _, key in ipairs(util.sorted_keys(case)) do add(key) end end
  for _, key in ipairs(util.sorted_keys(self.base)) do add(key) end
  if self.base.test_data then names[#names + 1] = "test_accuracy" end
  return names
end

local function shown(value)
  if nn.is_layer(value) or type(value) == "function" then return "model" end
  return type(value) == "table" and value.kind and settings.text("optimizer", value) or tostring(value)
end

local function new_cell(self, case, chosen, name)
  local cell = {experiment = self, values = {}}
  for key, value in pairs(self.base) do cell.values[key] = value end
  for key, value in pairs(case) do cell.values[key] = value end
  local words = {name or case.case}
  for i, axis in ipairs(self.axes) do
    cell.values[axis.name] = chosen[i]
    words[#words + 1] = ("%s=%s"):format(axis.name, shown(chosen[i]))
  end
  for _, setting in ipairs(settings.list) do
    if cell.values[setting.name] == nil then cell.values[setting.name] = setting.default end
  end
  cell.name = #words > 0 and table.concat(words, " ") or self.name
  return cell
end

-- Every case times every combination of the axes, in the order in which they are written.
function Experiment:cells()
  local cells = {}
  for i, case in ipairs(#self.cases > 0 and self.cases or {{}}) do
    local name = case.case or #self.cases > 0 and ("case %d"):format(i) or nil
    product(self.axes, function(chosen)
      for r = 1, self.base.repeats or 1 do
        local cell = new_cell(self, case, chosen, name)
        cell.repeat_number = r
        cells[#cells + 1] = cell
      end
    end)
  end
  return cells
end

return experiment
