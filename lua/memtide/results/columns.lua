-- The columns of core/io/columns.def: their types, their groups, and their values as text.
local core = require "memtide.core"
local csv = require "memtide.results.csv"
local statuses = require "memtide.results.statuses"

local columns = {}

-- ---- types: test(text): may a value be this text? expected: the same in words; always: the text is never empty;
-- reads: "text", "number" or "value" (a word, a number or a flag)

local function is_whole(text) return text:find("^%d+$") and math.tointeger(tonumber(text)) ~= nil end
local function is_count(text) return is_whole(text) and tonumber(text) >= 1 end
local function is_number(text) return tonumber(text) ~= nil or text:find("^%-?inf$") ~= nil or text == "nan" end

local FLAGS = {warmup = true, preempted = true, steal = true, cpu_clock = true, gpu_clock = true, thermal = true,
  brake = true}
local function are_flags(text)
  for word in text:gmatch "%S+" do if not FLAGS[word] then return false end end
  return true
end

local NO_EXPONENT = {zero = true, inf = true, nan = true}
local function is_histogram(text)
  for word in text:gsub("^scale:[%d.e+-]+ ", ""):gmatch "%S+" do
    local exponent = word:match "^(%S+):%d+/%d+/%d+$"
    if not exponent or not NO_EXPONENT[exponent] and not exponent:find "^%-?%d+$" then return false end
  end
  return true
end

local COUNT = "a whole number from 1"
columns.types = {
  text = {expected = "a text", reads = "text"},
  value = {expected = "a word, a number, true or false", reads = "value"}, -- of a setting, or of an axis
  name = {test = function(text) return text ~= "" end, expected = "a text", always = true, reads = "text"},
  id = {test = function(text) return text:find("^%x+%-%x+%-%x+$") ~= nil end,
    expected = "an id such as 0123456789ab-012345-012345", always = true, reads = "text"},
  status = {test = function(text) return statuses.is_known(text) end,
    expected = "one of " .. table.concat(statuses.names, " "), always = true, reads = "text"},
  time = {test = function(text) return text:find("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%dZ$") ~= nil end,
    expected = "a time such as 2026-01-31T23:59:59Z", always = true, reads = "text"},
  index = {test = is_count, expected = COUNT, always = true, reads = "number"},
  count = {test = is_count, expected = COUNT, reads = "number"},
  batch = {test = function(text) return text == "max" or is_count(text) end, expected = COUNT .. ' or "max"',
    reads = "number"},
  whole = {test = is_whole, expected = "a whole number", reads = "number"},
  integer = {test = function(text) return math.tointeger(tonumber(text)) ~= nil end, expected = "a whole number",
    reads = "number"}, -- may be below 0, as differences are
  number = {test = is_number, expected = "a number", reads = "number"},
  seconds = {test = is_number, expected = "a number", always = true, reads = "number"},
  histogram = {test = is_histogram, expected = "counts of gradients, EXPONENT:EXACT/STORED/UNDERFLOW", reads = "text",
    long = true}, -- too long for a table
  flags = {test = are_flags, expected = "flags of docs/sweeps.md", reads = "text"},
}

-- nil: the text is a value of that type; else what was expected, in words.
function columns.wrong(type, text)
  local kind = assert(columns.types[type])
  if not kind.test or kind.test(text) or text == "" and not kind.always then return nil end
  return kind.expected
end

-- ---- the table

-- list: the lines of columns.def in the order of the file; of: the same by name; type_of: [name] = type
columns.list, columns.of, columns.type_of = {}, {}, {}
local fixed, axes = {}, nil -- names of the columns of every file; how many of them come before the script's own axes
for _, column in ipairs(core.columns()) do
  if column.name == "" then axes = #fixed
  else
    columns.list[#columns.list + 1], columns.of[column.name] = column, column
    columns.type_of[column.name] = column.type
    if column.since > 0 then fixed[#fixed + 1] = column.name end
  end
end

-- Does every file have this column? (Not: an axis of the script's own, or a column that only some files have.)
function columns.is_fixed(name) return columns.of[name] ~= nil and columns.of[name].since > 0 end

-- Are its values too long for a table?
function columns.is_long(name) return columns.types[columns.type_of[name] or "value"].long or false end

-- The names of a group's columns in the order of the file: those of every file, or (own) those that only some files
-- have
function columns.group(group, own)
  local names = {}
  for _, column in ipairs(columns.list) do
    if column.group == group and (column.since == 0) == (own or false) then names[#names + 1] = column.name end
  end
  return names
end

-- Those of a file's columns that only some files have, among them the script's own axes: they stand between two fixed
-- columns.
function columns.own(names)
  local own, inside = {}, false
  for _, name in ipairs(names) do
    if name == fixed[axes + 1] then inside = false end
    if inside then own[#own + 1] = name end
    if name == fixed[axes] then inside = true end
  end
  return own
end

-- Is the column a setting or an axis?
function columns.is_setting(name)
  local column = columns.of[name]
  return not column or column.group == "work" or column.group == "how"
end

-- The categories of memory in the order of their columns, which are called CATEGORY_bytes
columns.categories = {}
for _, name in ipairs(columns.group "peak") do
  columns.categories[#columns.categories + 1] = name:match "^(.*)_bytes$"
end

-- The value of a text in the column; nil: empty. In a column of type "value", "true" is a flag and "1" a number.
function columns.value(name, text)
  if text == nil or text == "" then return nil end
  local reads = columns.types[columns.type_of[name] or "value"].reads
  if reads == "value" and (text == "true" or text == "false") then return text == "true" end
  if reads == "text" then return text end
  return math.tointeger(tonumber(text)) or tonumber(text) or text
end

-- Raises unless the file at `path` has all columns of the list `names`; has: the set of its columns.
function columns.need(path, has, names)
  for _, name in ipairs(names) do
    if not has[name] then csv.damaged(path, 1, "no results of memtide: there is no column %s", name) end
  end
end

return columns
