-- The table of settings: its rows are whole, and what scripts and the core take are the same values.
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local settings = require "memtide.net.settings"
local tap = dofile "tests/tap.lua"
local mt = require "memtide"

local fixed = {}
for _, column in ipairs(columns.list) do
  if settings.known[column.name] and column.since > 0 then fixed[#fixed + 1] = column.name end
end
tap.is(table.concat(settings.columns, " "), table.concat(fixed, " "), "settings stand in the order of their columns")

local device <close> = core.device("cpu")
local network = require "memtide.net.nn".network(mt.nn.Linear(2, 2), mt.nn.MSELoss(), 4, {2})
-- what some settings want beside them
local BESIDE = {sequence_parallel = {world = 2, mesh = "tensor=2"}}
local function compile(name, value)
  local all = {[name] = value}
  for key, beside in pairs(BESIDE[name] or {}) do all[key] = beside end
  return core.compile(network, all, device)
end

for _, row in ipairs(core.settings()) do
  tap.ok(row.text ~= "", row.name .. " says what it is")
  tap.ok(row.whose == "inner" or columns.is_setting(row.name) and columns.of[row.name], row.name .. " has a column")
end

-- every word that a script may give, the default and what is tried, in Lua and in C
for _, setting in ipairs(settings.list) do
  local values = {setting.default, table.unpack(setting.tried)}
  for _, word in ipairs(setting.words) do
    if word ~= "budget" then values[#values + 1] = settings.from_text(setting.name, word) end
  end
  for _, value in ipairs(values) do
    local what = ("%s = %s"):format(setting.name, settings.text(value))
    tap.is(setting.check(value), value, what .. " is allowed")
    if setting.core then tap.ok(compile(setting.name, value), what .. " reaches the core") end
  end
  for _, wrong in ipairs{{}, "no such word", -1} do
    local allowed = setting.type == "text" or (setting.type == "options" or setting.type == "scaler" or setting.type == "mesh") and type(wrong) == "table"
    if not allowed then tap.is(setting.check(wrong), nil, setting.name .. " is not " .. tostring(wrong)) end
    if setting.core then tap.ok(not pcall(compile, setting.name, wrong), "nor in the core") end
  end
end
for _, name in ipairs{"checkpoint", "offload"} do
  tap.is(settings.known[name].check("budget"), nil, name .. ": a budget is a number of bytes")
  tap.raises(name .. ": expected one of none", "also in the core", compile, name, "budget")
  tap.ok(compile(name, 1 << 20), "which the core takes")
  tap.is(settings.known[name].check "1MiB", 1 << 20, "as a size, too")
end
local bounds = "a whole number from 1 to 1048576"
tap.raises("accumulate: expected " .. bounds .. ", found 0", "too few", compile, "accumulate", 0)
tap.raises("accumulate: expected " .. bounds .. ", found 1.5", "no whole one", compile, "accumulate", 1.5)
tap.is(select(2, settings.known.accumulate.check(1 << 21)), bounds, "the same bounds in Lua")
tap.raises("mode: expected one of train, eval, found 1", "a number for a word", compile, "mode", 1)
tap.raises('unknown setting "mood"', "a setting that is none", compile, "mood", 1)
tap.raises('unknown setting "batch"', "one that no program knows", compile, "batch", 1)

tap.done()
