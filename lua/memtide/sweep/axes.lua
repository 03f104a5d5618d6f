-- The axes of a sweep, as scripts and the command line write them. Both become
--   {names = {name, ...}, rows = {{value, ...}, ...}, texts = {{"name=value", ...}, ...}, only = conditions or nil}
-- with a row of values for each place on the axis; a row has a value for each name.
local core = require "memtide.core"
local nn = require "memtide.net.nn"
local literal = require "memtide.base.literal"
local lr_schedule = require "memtide.net.lr_schedule"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"

local axes = {}
local MOST = 100000 -- values of one range; more are a typing error
local EXPECTED = '{"axis", {value, ...}}'

-- ---- lists of values

-- A value without the rounding errors of many additions or products
local function tidy(x) return math.type(x) == "integer" and x or tonumber(("%.12g"):format(x)) + 0.0 end

local function check_numbers(what, ...)
  for i, x in ipairs{...} do
    if type(x) ~= "number" or x ~= x or x - x ~= 0 then
      util.fail("%s: argument %d: expected a number, found %s", what, i, literal.of(x))
    end
  end
end

local function check_count(what, count)
  if count > MOST then util.fail("%s: expected at most %d values, found %.0f", what, MOST, count) end
end

-- {first, first + step, ...} up to last, which is included if a step reaches it. step: 1 if nil. Raises if the step
-- does not lead to last, or for more than MOST values.
function axes.range(first, last, step)
  step = step or 1
  check_numbers("range", first, last, step)
  local count = step ~= 0 and (last - first) / step or -1
  if count < 0 then
    util.fail("range: a step of %s does not lead from %s to %s", core.number(step), core.number(first),
      core.number(last))
  end
  check_count("range", count)
  local list = {}
  for i = 0, math.floor(count + 1e-9) do list[i + 1] = tidy(first + i * step) end
  return list
end

-- {first, first * factor, first * factor^2, ...} up to last. factor: 2 if nil. Raises as range does.
function axes.geometric(first, last, factor)
  factor = factor or 2
  check_numbers("geometric", first, last, factor)
  local count = first * last > 0 and factor > 0 and factor ~= 1 and math.log(last / first) / math.log(factor) or -1
  if count < 0 then
    util.fail("geometric: a factor of %s does not lead from %s to %s", core.number(factor), core.number(first),
      core.number(last))
  end
  check_count("geometric", count)
  local list, value = {}, first
  for i = 0, math.floor(count + 1e-9) do list[i + 1], value = tidy(value), value * factor end
  return list
end

local RANGE = "^([+-]?[%d.]*%d[eE+-]*%d*)%.%.([^:*]+)([:*]?)(.*)$"
local MAKE = {[""] = axes.range, [":"] = axes.range, ["*"] = axes.geometric}

-- "8..64:8" -> the list of its values; nil: the word is no range
local function range_of(word)
  local first, last, sign, step = word:match(RANGE)
  if not first then return nil end
  local function number(text) return math.tointeger(tonumber(text)) or tonumber(text) end
  local a, b, by = number(first), number(last), number(step)
  if a and b and (by or sign .. step == "") then return MAKE[sign](a, b, by) end
  return nil
end

-- The list of values of `--set name=text`: v1,v2,... where each may be a range: 8..64, 8..64:8 or 8..512*2.
function axes.from_text(name, text)
  local values = {}
  for word in (text .. ","):gmatch("([^,]*),") do
    local list = range_of(word)
    if list then table.move(list, 1, #list, #values + 1, values)
    else values[#values + 1] = settings.from_text(name, word) end
  end
  return values
end

-- ---- axes

local Zip = {__name = "memtide.zip", __tostring = function() return "mt.zip{...}" end}

-- zip{{"batch", {64, 32}}, {"accumulate", {1, 2}}}: one axis whose places take one value of each list.
function axes.zip(list)
  util.check_type("zip", list, "table")
  return setmetatable({list = list, only = list.only}, Zip)
end

-- The text of a value in names of cells; a model has no short text, so its position on the axis stands for it.
local function shown(value, position)
  if nn.is_layer(value) or type(value) == "function" then return tostring(position) end
  if lr_schedule.is(value) then return value.text end
  if type(value) == "userdata" then return value:info().text end
  return settings.text(value)
end

-- Returns the value if it is a plain list without names and holes; raises otherwise.
function axes.check_list(where, place, value, expected)
  local count = 0
  for _ in pairs(type(value) == "table" and value or {}) do count = count + 1 end
  local good = literal.is_table(value)
  for i = 1, count do good = good and value[i] ~= nil end
  if not good then util.fail_at(where, "%s: expected %s, found %s", place, expected, literal.of(value)) end
  return value
end

-- Adds the places to the axis; raises if two are equal. lists: a list of values for each name; place: what messages
-- call the k-th place, a format with at most one %d.
local function fill(where, place, axis, lists, check)
  assert(#lists == #axis.names)
  local seen = {}
  for k = 1, #lists[1] do
    local at, row, words, texts = place:format(k), {}, {}, {}
    for i, name in ipairs(axis.names) do
      row[i] = check(where, at, name, lists[i][k])
      texts[i] = shown(row[i], k)
      words[i] = ("%s=%s"):format(name, texts[i])
    end
    local text = table.concat(words, " ")
    if seen[text] then
      local told = #texts == 1 and axis.names[1] .. ": " .. texts[1] or text
      util.fail_at(where, "%s: %s is there already, as value %d", at, told, seen[text])
    end
    seen[text], axis.rows[k], axis.texts[k] = k, row, words
  end
  return axis
end

-- An axis of one name. check(where, place, name, value) returns the value as memtide uses it, or raises.
function axes.new(where, place, name, list, check)
  return fill(where, place, {names = {name}, rows = {}, texts = {}}, {list}, check)
end

-- The conditions of an axis: {name = value or {value, ...}, ...} -> {{name, {[text] = true, ...}}, ...}
local function check_only(where, place, only)
  if only == nil then return nil end
  if not literal.is_table(only) or next(only) == nil or #only > 0 then
    util.fail_at(where, "%s: only: expected {setting = value, ...}, found %s", place, literal.of(only))
  end
  local out = {}
  for _, name in ipairs(util.sorted_keys(only)) do
    local texts = {}
    for _, value in ipairs(literal.is_table(only[name]) and only[name] or {only[name]}) do
      texts[settings.text(value)] = true
    end
    out[#out + 1] = {name, texts}
  end
  return out
end

local function members(where, place, given)
  if getmetatable(given) ~= Zip then return {given}, given end
  local list = table.move(given.list, 1, #given.list, 1, {})
  if #list < 2 then util.fail_at(where, "%s: zip: expected at least two axes, found %d", place, #list) end
  return list, given
end

local function check_member(where, place, member)
  local bare = literal.is_table(member) and {table.unpack(member)}
  for key in pairs(bare and member or {}) do
    if key ~= "only" and math.type(key) ~= "integer" then bare = nil end
  end
  if not bare or type(bare[1]) ~= "string" or #bare ~= 2 then
    util.fail_at(where, "%s: expected %s, found %s", place, EXPECTED, literal.of(member))
  end
  local at = ("%s: %s"):format(place, bare[1])
  if #axes.check_list(where, at, bare[2], "a list of values") == 0 then
    util.fail_at(where, "%s: expected a list of values, found none", at)
  end
  return bare[1], bare[2]
end

-- The i-th axis of a script: {"name", {value, ...}, only = {...}}, or a zip of several. seen: {name = its axis} so far.
function axes.declare(where, given, i, seen, check)
  local place, axis, lists = ("sweep[%d]"):format(i), {names = {}, rows = {}, texts = {}}, {}
  local list, whole = members(where, place, given)
  for k, member in ipairs(list) do
    local name, values = check_member(where, place, member)
    if seen[name] then
      util.fail_at(where, '%s: "%s" is an axis already, sweep[%d]', place, name, seen[name])
    end
    seen[name], axis.names[k], lists[k] = i, name, values
    if #values ~= #lists[1] then
      util.fail_at(where, "%s: zip: expected lists of one length, found %d values of %s and %d of %s", place, #lists[1],
        axis.names[1], #values, name)
    end
  end
  axis.only = check_only(where, place, whole.only)
  return fill(where, place .. " value %d", axis, lists, check)
end

-- Raises unless the names in an axis's conditions are settled before it. known(name): is it a setting or an axis?
function axes.check_order(where, all, known)
  for i, axis in ipairs(all) do
    for _, condition in ipairs(axis.only or {}) do
      local name = condition[1]
      for k = i, #all do
        if axes.column(all[k], name) then
          util.fail_at(where, 'sweep[%d]: only: expected what is settled before it, found "%s", which is sweep[%d]', i,
            name, k)
        end
      end
      if not known(name) then
        util.fail_at(where, 'sweep[%d]: only: "%s" is neither a setting nor an axis', i, name)
      end
    end
  end
end

-- The index of `name` among the axis's names; nil: it is not one of them.
function axes.column(axis, name)
  for i, own in ipairs(axis.names) do if own == name then return i end end
end

-- Do the axis's conditions hold in a cell that has these values so far?
function axes.active(axis, values)
  for _, condition in ipairs(axis.only or {}) do
    local value = values[condition[1]]
    if value == nil or not condition[2][settings.text(value)] then return false end
  end
  return true
end

-- The axis without one of its names, and without places that are then equal; nil: it has no other name.
local function without(axis, column)
  if #axis.names == 1 then return nil end
  local seen, kept = {}, {names = {}, rows = {}, texts = {}, only = axis.only}
  local function rest(list)
    return table.move(list, column + 1, #list, column, table.move(list, 1, column - 1, 1, {}))
  end
  kept.names = rest(axis.names)
  for k, words in ipairs(axis.texts) do
    local row, texts = rest(axis.rows[k]), rest(words)
    local text = table.concat(texts, " ")
    if not seen[text] then
      seen[text], kept.rows[#kept.rows + 1], kept.texts[#kept.texts + 1] = true, row, texts
    end
  end
  return kept
end

-- Replaces the sweep over `name` by an axis of this one name (nil: by none), in its place; a new name goes last.
function axes.replace(all, name, axis)
  for i, old in ipairs(all) do
    local column = axes.column(old, name)
    if column then
      local rest = without(old, column)
      if axis then axis.only = old.only end
      table.remove(all, i)
      if rest then table.insert(all, i, rest) end
      if axis then table.insert(all, i, axis) end
      return
    end
  end
  all[#all + 1] = axis
end

return axes
