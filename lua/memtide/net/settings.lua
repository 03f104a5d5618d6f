-- The settings of core/passes/settings.def: the checks of their values, and their defaults.
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local literal = require "memtide.base.literal"
local optim = require "memtide.net.optim"
local util = require "memtide.base.util"

local settings = {}

-- ---- checks: each is a function that returns the value as memtide uses it, or nil and what was expected, or nil, nil
-- and what is wrong

function settings.whole(least, most)
  local expected = ("a whole number from %d to %d"):format(least, most)
  return function(value)
    if math.type(value) == "integer" and value >= least and value <= most then return value end
    return nil, expected
  end
end

-- One of the words of settings.def, where "true" and "false" mean flags.
local function one_of(words)
  local known, shown = {}, {}
  for i, word in ipairs(words) do
    local value = word
    if word == "true" or word == "false" then value = word == "true" end
    known[value], shown[i] = true, literal.of(value)
  end
  local expected = "one of " .. table.concat(shown, ", ")
  return function(value)
    if known[value] then return value end
    return nil, expected
  end
end

local function word_or_bytes(words)
  local ways = {}
  for _, word in ipairs(words) do if word ~= "budget" then ways[#ways + 1] = word end end
  local way = one_of(ways)
  return function(value)
    local known, expected = way(value)
    if known ~= nil then return known end
    local bytes = util.bytes(value)
    if bytes and bytes > 0 then return bytes end
    return nil, expected .. " or a number of bytes"
  end
end

local function size(value)
  local bytes = util.bytes(value)
  if bytes then return bytes end
  return nil, 'bytes, or a size such as "512MiB"'
end

local function text(value)
  if type(value) == "string" and value ~= "" then return value end
  return nil, "a name"
end

local function flag(value)
  if type(value) == "boolean" then return value end
  return nil, "true or false"
end

local function optimizer(value)
  if optim.is_optimizer(value) then return value end
  return nil, "an optimizer such as optim.Adam{lr = 1e-3}"
end

-- {fused = true} as "fused=true", in the order of the names; {keep = {"output", "loss"}} as "keep=output,loss", and an
-- empty list as "none"
local function option_text(value)
  if math.type(value) then return core.number(value) end
  if type(value) ~= "table" then return tostring(value) end
  return #value == 0 and "none" or table.concat(value, ",")
end

local function options_text(value)
  if type(value) ~= "table" then return value end
  local parts = {}
  for _, name in ipairs(util.sorted_keys(value)) do parts[#parts + 1] = ("%s=%s"):format(name, option_text(value[name])) end
  return table.concat(parts, " ")
end

-- The value, if the core takes the text `written` for it
local function known_to_core(row, value, written)
  local known, problem = core.check_setting(row.name, written)
  if known then return value end
  return nil, nil, (problem:gsub("^[%w_]+: ", ""))
end

local function options(row)
  return function(value)
    value = options_text(value)
    if type(value) ~= "string" then return nil, "a table of options such as {fused = true}" end
    return known_to_core(row, value, value)
  end
end

-- A flag, a fixed scale, or a table of options, of which an empty one means true
local function scaler(row)
  return function(value)
    value = next(type(value) == "table" and value or {value}) == nil or options_text(value)
    if not literal.has_text(value) then
      return nil, "true, false, a fixed scale, or a table of options such as {init_scale = 1024}"
    end
    return known_to_core(row, value, settings.text(value))
  end
end

local CHECKS = {
  options = options, mesh = options, scaler = scaler,
  text = function() return text end, size = function() return size end, flag = function() return flag end,
  optimizer = function() return optimizer end, word = function(row) return one_of(row.words) end,
  word_or_bytes = function(row) return word_or_bytes(row.words) end,
  count = function(row) return settings.whole(row.least, row.most) end,
}

-- A word of the command line as the value that a script would have written.
function settings.from_text(name, word)
  if word == "true" or word == "false" then return word == "true" end
  if name == "pytorch" then return word end
  if name == "optimizer" then
    local make = rawget(optim.optim, word)
    return make and make() or word
  end
  return math.tointeger(tonumber(word)) or tonumber(word) or word
end

-- ---- the table

-- A setting: a row of core.settings() with check(value), and with default and tried as values, not texts; core: does
-- core.compile take it? own: its column stands among the script's own axes, and only files of scripts that use it have
-- it; group: that of its column.
local function setting_of(row)
  row.check, row.default = CHECKS[row.type](row), settings.from_text(row.name, row.default)
  for i, word in ipairs(row.tried) do row.tried[i] = settings.from_text(row.name, word) end
  row.core, row.own = row.whose == "cell", not columns.is_fixed(row.name)
  row.group = columns.of[row.name].group
  return row
end

settings.type_of = core.precision_types() -- the type that each precision computes in: {amp_bf16 = "bf16", ...}
settings.list, settings.known = {}, {} -- in the order of the columns; by name
settings.names, settings.columns = {}, {} -- names of all; of those with a column in every file
for _, row in ipairs(core.settings()) do
  if row.whose ~= "inner" then
    local setting = setting_of(row)
    settings.list[#settings.list + 1], settings.known[setting.name] = setting, setting
    settings.names[#settings.names + 1] = setting.name
    if not setting.own then settings.columns[#settings.columns + 1] = setting.name end
  end
end
settings.MOST = settings.known.batch.most -- the largest count

-- The checked value of a setting; raises at `where` if it is wrong. place: what the message calls the giver.
function settings.check(where, place, name, value)
  local checked, expected, wrong = settings.known[name].check(value)
  if checked ~= nil then return checked end
  util.fail_at(where, "%s: %s: %s", place, name, wrong or ("expected %s, found %s"):format(expected, literal.of(value)))
end

-- Raises if what this process computes by itself is asked for several ranks. place: what the message calls it.
function settings.check_one_rank(place, values)
  if (values.world or 1) == 1 then return end
  util.fail("%s: world: expected 1, found %d: this is one process; several ranks train the cells of an experiment, by memtide run",
    place, values.world)
end

-- What only an experiment makes something of, and what a script's own loop has in its place
local OF_EXPERIMENTS = {
  {"framework", "the step that runs here is memtide's; PyTorch's is predicted of an experiment"},
  {"prefetch", "a loader reads ahead: mt.data.loader{..., prefetch = n}"},
  {"gradient_exponents", "trainer:gradient_exponents(x, y) counts them"},
}

-- Raises if a script's own loop is asked for what it would not do. place: as above.
function settings.check_own_loop(place, values)
  settings.check_one_rank(place, values)
  for _, row in ipairs(OF_EXPERIMENTS) do
    local name, instead = table.unpack(row)
    local only = settings.known[name].default
    if values[name] ~= only then
      util.fail("%s: %s: expected %s, found %s: %s", place, name, literal.of(only), literal.of(values[name]), instead)
    end
  end
end

-- The settings that core.compile takes, from a cell's values.
function settings.for_core(values)
  local out = {}
  for _, setting in ipairs(settings.list) do if setting.core then out[setting.name] = values[setting.name] end end
  if values.schedule then out.scheduled = true end
  return out
end

-- The same for an evaluation beside the training. It keeps no activations, so there is nothing to checkpoint or
-- offload.
function settings.for_evaluation(values)
  local out = settings.for_core(values)
  out.mode, out.accumulate, out.keep_output, out.checkpoint, out.offload, out.feed_ahead = "eval", 1, true, "none", "none", false
  return out
end

-- The value of a setting, or of an axis of the script's own, as text for columns and cell ids.
function settings.text(value)
  if optim.is_optimizer(value) then return value.text == "" and value.kind or value.kind .. " " .. value.text end
  return literal.text(value)
end

return settings
