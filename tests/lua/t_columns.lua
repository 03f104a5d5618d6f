-- The table of columns: its types are known, and what is derived from it.
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local samples = require "memtide.results.samples"
local tap = dofile "tests/tap.lua"

local newest = core.row{}:columns()
local fixed, types, units = {}, {}, {}
for _, column in ipairs(columns.list) do
  if column.since > 0 then fixed[#fixed + 1] = column.name end
  types[#types + 1] = columns.types[column.type] and "" or column.name
  units[#units + 1] = column.name:find "_bytes$" and column.unit ~= "bytes" and column.name or ""
  tap.ok(column.text ~= "" and column.group ~= "", column.name .. " has a group and says what it is")
end
tap.is(table.concat(fixed, " "), table.concat(newest, " "), "a row has the columns of the table, in its order")
tap.is(table.concat(types), "", "the types of columns are known")
tap.is(table.concat(units), "", "bytes have that unit")
for _, name in ipairs(samples.columns) do
  tap.ok(columns.types[samples.type_of[name]], "the type of the samples' column " .. name .. " is known")
end

tap.is(table.concat(columns.group "work", " "),
  "model batch accumulate effective_batch precision checkpoint inplace mode optimizer", "a group")
tap.is(table.concat(columns.group("work", true), " "),
  "framework pytorch offload loss_chunks grad_scaler world mesh sequence_parallel pipeline_schedule zero recompute_light sliced_updates",
  "and of columns that only some files have")
tap.is(table.concat(columns.categories, " "),
  "weights gradients optimizer activations activation_gradients input workspace other", "the categories")
local with_axes = core.row{"depth", "offload"}:columns()
tap.is(table.concat(columns.own(with_axes), " "), "depth offload", "the script's own columns")
for name, expected in pairs{depth = true, graph = true, offload = true, emulated = false, host_bytes = false,
  peak_bytes = false} do
  tap.is(columns.is_setting(name), expected, ("does %s say what a cell is?"):format(name))
end

local function show(value) return ("%s %s"):format(math.type(value) or type(value), value) end
tap.is(show(columns.value("batch", "8")), "integer 8", "a text by its column: a number")
tap.is(show(columns.value("case", "8")), "string 8", "a text")
tap.is(show(columns.value("graph", "true")), "boolean true", "a flag")
tap.is(show(columns.value("depth", "0.5")), "float 0.5", "of an axis")
tap.is(columns.value("reason", ""), nil, "nothing")

local WRONG = {{"id", "x"}, {"status", "good"}, {"time", "today"}, {"index", ""}, {"index", "0"}, {"count", "1.5"},
  {"batch", "most"}, {"whole", "-1"}, {"integer", "1.5"}, {"number", "one"}, {"name", ""}, {"flags", "bad"}}
for _, one in ipairs(WRONG) do
  tap.ok(columns.wrong(one[1], one[2]), ('"%s" is no %s'):format(one[2], one[1]))
end
local RIGHT = {{"id", "0a-0b-0c"}, {"status", "oom"}, {"time", "2026-01-31T23:59:59Z"}, {"index", "1"}, {"count", ""},
  {"batch", "max"}, {"whole", "0"}, {"integer", "-5"}, {"number", "nan"}, {"text", ""}, {"flags", "warmup steal"}}
for _, one in ipairs(RIGHT) do tap.is(columns.wrong(one[1], one[2]), nil, ('"%s" is a %s'):format(one[2], one[1])) end

tap.done()
