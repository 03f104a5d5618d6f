-- Statuses: what follows from each, and what earlier versions called otherwise.
local tap = dofile "tests/tap.lua"
local statuses = require "memtide.results.statuses"

local function those(what)
  local out = {}
  for _, name in ipairs(statuses.names) do if statuses.of(name)[what] then out[#out + 1] = name end end
  return table.concat(out, " ")
end
tap.is(table.concat(statuses.names, " "), "ok predicted oom skipped diverged timeout crashed error", "all of them")
tap.is(those "good", "ok predicted", "without a reason")
tap.is(those "settled", "ok predicted oom skipped diverged", "results")
tap.is(those "fails", "diverged timeout crashed error", "with the exit status 1")
tap.ok(statuses.of("fine").fails and not statuses.of("fine").settled, "a word that is none is a failure")
for _, name in ipairs(statuses.names) do
  local of = statuses.of(name)
  tap.ok(of.settled == (of.rank > 0 or nil), name .. ": a result is kept before a failure")
  tap.is(statuses.read{status = name, peak_bytes = "1"}, name, name .. " is called so")
end
tap.is(statuses.read{status = "nan"}, "diverged", "nan, of earlier versions")
local function read(values)
  values.status, values.predicted_peak_bytes = "ok", values.predicted_peak_bytes or "7"
  return statuses.read(values)
end
tap.is(read{peak_bytes = ""}, "predicted", "of which nothing was measured")
tap.is(read{}, "predicted", "also where there is no such column")
tap.is(read{peak_bytes = "7"} .. read{step_ms = "1"}, "okok", "not where something was")
tap.is(read{predicted_peak_bytes = ""}, "ok", "nor where nothing was predicted: another program's row")
tap.is(read{peak_bytes = "", emulated = ""}, "ok", "nor in a file of this version")

tap.done()
