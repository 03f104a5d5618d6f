-- Claims of a script: how they are written, and the three verdicts on rows that are made up.
local tap = dofile "tests/tap.lua"
local claims = require "memtide.sweep.claims"
local mt = require "memtide"
local samples = require "memtide.results.samples"
local nn = mt.nn

local function declare(list, more)
  local options = {name = "test", model = nn.Linear(4, 3), input = {4}, loss = nn.CrossEntropyLoss(),
    cases = {{case = "a"}, {case = "b", batch = 2}, {case = "c", precision = "bf16"}}, claims = list}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.experiment(options)
end

-- ---- what is refused
local function refused(part, claim, more)
  claim.claim, claim.of = claim.claim or "so it is", claim.of or "peak_bytes"
  tap.raises(part, part, declare, {claim}, more)
end
refused('claims[1]: expected one of ratio, less, equal', {})
refused('claims[1]: expected one relation, found ratio and less', {ratio = {"a", "b"}, less = {"a", "b"}})
refused('claims[1]: unknown key "expct" (did you mean "expect"?)', {ratio = {"a", "b"}, expct = 1})
refused('claims[1]: less: expected two cells, {a, b}, found {"a"}', {less = {"a"}})
refused('claims[1]: less[2]: expected a cell, but "d" is no cell of this sweep', {less = {"a", "d"}})
refused('claims[1]: less[1]: expected a cell, but {batch = 1} is any of 2 cells', {less = {{batch = 1}, "b"}})
refused('claims[1]: less[1]: batch: expected a whole number', {less = {{batch = "x"}, "b"}})
refused('claims[1]: less[1]: expected a case\'s name, a table of settings or a number, found true', {less = {true, "b"}})
refused('claims[1]: less: expected a cell, found two numbers', {less = {7, 8}})
refused('claims[1]: expect: expected a number of at least 0, found nil', {ratio = {"a", "b"}})
refused('claims[1]: tolerance: expected a number of at least 0, found -1', {equal = {"a", "b"}, tolerance = -1})
refused('of: step_ms_min: of times, only step_ms can be claimed', {of = "step_ms_min", less = {"a", "b"}})
refused('of: step_ms: of times, only step_ms can be claimed, by itself', {of = {"step_ms", "x"}, less = {"a", "b"}})
refused('of: expected a column or a list of columns, found {}', {of = {}, less = {"a", "b"}})
refused('claims[1]: less[1]: of: there is no column "peek_bytes" (did you mean "peak_bytes"?)',
  {of = "peek_bytes", less = {"a", "b"}})
refused('claims[1]: less[2]: of: there is no column "weight_bytes" (did you mean "weights_bytes"?)',
  {less = {"a", {case = "b", of = {"peak_bytes", "weight_bytes"}}}})
refused('there is no column "test_accuracy"', {of = "test_accuracy", less = {"a", "b"}})
refused('there is no column "width"', {of = "width", less = {"a", "b"}})
tap.ok(declare({{claim = "c", of = "test_accuracy", less = {"a", "b"}}},
  {test_data = mt.data.random{count = 4, shape = {4}, classes = 3}}), "columns of results that the script asks for")
tap.ok(declare({{claim = "c", of = "width", less = {"a", "b"}}},
  {options = {{"width", 3, "channels"}}, model = function(s) return nn.Linear(4, s.width) end}), "and of its own names")
refused('claims[1]: source: expected text, found 7', {source = 7, less = {"a", "b"}})
refused('less[1]: expected a cell, but "a" is any of 2 cells', {less = {"a", "b"}}, {sweep = {{"accumulate", {1, 2}}}})
tap.raises("claims[1]: claim: expected text, found nil", "a claim without words", declare,
  {{of = "peak_bytes", less = {"a", "b"}}})
tap.raises("claims: expected a list", "claims that are none", declare, {claim = "x"})

-- ---- verdicts
local function row(name, values)
  values.case, values.status, values.cell, values["repeat"] = name, values.status or "ok", "id " .. name, 1
  values.version = "v"
  return values
end

-- seconds: {case = {...}}, read back from a side file
local function side_file(seconds)
  local path = os.tmpname()
  os.remove(path)
  local file = samples.open(path)
  for name, list in pairs(seconds) do
    local lines = {}
    for i, value in ipairs(list) do lines[i] = {step = i, seconds = value, flag = ""} end
    file:append({cell = "id " .. name, ["repeat"] = 1, round = 1, version = "v", started_at = "now"}, lines)
  end
  file:close()
  local found = samples.read(path)
  os.remove(samples.path(path))
  return found
end

local rows = {row("a", {peak_bytes = 100, input_bytes = 60, loss_last = 2.0, loss_first = 0}),
  row("b", {peak_bytes = 50, input_bytes = 30, loss_last = 2.0001, loss_first = 1}), row("c", {peak_bytes = 100})}

local function verdict(claim, more)
  claim.claim = "so it is"
  local judge = claims.judge(declare{claim})
  for _, one in ipairs(more and more.rows or rows) do judge:row(one) end
  return judge:verdicts(more and more.seconds and side_file(more.seconds))[1]
end
local function is(claim, expected, what, more) tap.is(verdict(claim, more).verdict, expected, what) end

local bytes = "peak_bytes"
is({of = bytes, ratio = {"b", "a"}, expect = 0.5}, "REPRODUCED", "bytes are exact: a half is a half")
is({of = bytes, ratio = {"b", "a"}, expect = 0.45, tolerance = 0.2}, "REPRODUCED", "a ratio within its tolerance")
is({of = bytes, ratio = {"b", "a"}, expect = 0.4, tolerance = 0.2}, "REFUTED", "and one out of it")
is({of = bytes, less = {"b", "a"}}, "REPRODUCED", "less")
is({of = bytes, less = {"a", "b"}}, "REFUTED", "more")
is({of = bytes, less = {"a", "c"}}, "REFUTED", "as much is not less")
is({of = bytes, equal = {"a", "c"}}, "REPRODUCED", "as much is equal")
is({of = bytes, equal = {"a", "b"}}, "REFUTED", "half is not")
is({of = bytes, less = {{batch = 2}, {case = "a"}}}, "REPRODUCED", "cells by their settings")
is({of = bytes, ratio = {{case = "a", of = {"peak_bytes", "input_bytes"}}, "a"}, expect = 1.6}, "REPRODUCED",
  "sums of columns, another column on each side")
is({of = bytes, less = {"a", 101}}, "REPRODUCED", "less than a number")
is({of = bytes, less = {100, "a"}}, "REFUTED", "more than a number")
is({of = bytes, ratio = {"b", 100}, expect = 0.5}, "REPRODUCED", "a half of a number")
is({of = "loss_last", equal = {"a", "b"}, tolerance = 1e-4}, "REPRODUCED", "losses within a tolerance")
is({of = "loss_last", equal = {"a", "b"}, tolerance = 1e-5}, "REFUTED", "and out of a smaller one")

local function because(claim, part, what, more)
  local found = verdict(claim, more)
  tap.is(found.verdict, "INCONCLUSIVE", what)
  tap.has(found.reason, part, "because " .. part)
end
because({of = "loss_first", ratio = {"a", "b"}, expect = 1}, "there is no ratio of 0 and 1", "a ratio of nothing")
because({of = "other_bytes", less = {"a", "b"}}, "a: no number in column other_bytes", "a column without a value")
because({of = bytes, less = {"a", "b"}}, '"b" was not run', "a cell that was left out", {rows = {rows[1]}})
because({of = bytes, less = {"a", "b"}}, "b: oom", "a cell that failed",
  {rows = {rows[1], row("b", {status = "oom", peak_bytes = 1})}})
do
  local half = {rows = {rows[1], row("b", {status = "predicted", predicted_peak_bytes = 50, peak_bytes = 50})}}
  rows[1].predicted_peak_bytes = 100
  is({of = "predicted_peak_bytes", less = {"b", "a"}}, "REPRODUCED", "a prediction needs no run", half)
  because({of = bytes, less = {"b", "a"}}, "b: predicted", "what is measured does", half)
  half.rows[2].status = "skipped"
  is({of = "predicted_peak_bytes", less = {"b", "a"}}, "REPRODUCED", "nor does that of a cell which does not fit", half)
  half.rows[2].activations_bytes, rows[1].activations_bytes = 3, 4
  is({of = "activations_bytes", ratio = {"b", "a"}, expect = 0.75}, "REPRODUCED", "what is alive at the peak is predicted, too", half)
end
because({of = "step_ms", less = {"a", "b"}}, "a: too few samples", "times without samples")
because({of = "step_ms", less = {"a", "b"}}, "b: too few samples", "or with a few",
  {seconds = {a = {1, 1, 1, 1, 1, 1}, b = {2, 2, 2}}})

local function times(from, step)
  local out = {}
  for i = 1, 10 do out[i] = from + i * step end
  return out
end
local slow, fast = times(2, 0.01), times(1, 0.01)
is({of = "step_ms", less = {"a", "b"}}, "REPRODUCED", "times that are far apart", {seconds = {a = fast, b = slow}})
is({of = "step_ms", less = {"b", "a"}}, "REFUTED", "the other way round", {seconds = {a = fast, b = slow}})
is({of = "step_ms", less = {"a", "b"}}, "INCONCLUSIVE", "times whose intervals overlap",
  {seconds = {a = times(1, 0.02), b = times(1.02, 0.02)}})
is({of = "step_ms", ratio = {"a", "b"}, expect = 0.5, tolerance = 0.1}, "REPRODUCED", "a ratio of times",
  {seconds = {a = fast, b = slow}})
is({of = "step_ms", ratio = {"a", "b"}, expect = 0.5, tolerance = 0.001}, "INCONCLUSIVE",
  "an interval that is wider than the tolerance", {seconds = {a = fast, b = slow}})
is({of = "step_ms", ratio = {"a", "b"}, expect = 0.8, tolerance = 0.1}, "REFUTED", "another ratio",
  {seconds = {a = fast, b = slow}})

-- ---- the exit status, the table, and what the command line changes
local function status(...)
  local list = {}
  for i, word in ipairs{...} do list[i] = {verdict = word} end
  return claims.status(list)
end
tap.is(status("REPRODUCED", "REPRODUCED"), 0, "all reproduced")
tap.is(status("REPRODUCED", "INCONCLUSIVE"), 6, "one inconclusive")
tap.is(status("INCONCLUSIVE", "REFUTED", "REPRODUCED"), 5, "one refuted outweighs it")
local shown = claims.lines{verdict{of = bytes, less = {"b", "a"}},
  verdict({of = "step_ms", less = {"a", "b"}}, {seconds = {a = fast, b = slow}})}
tap.is(table.concat(shown[2], "|"), "so it is|REPRODUCED|< 1|0.5", "bytes have no interval")
tap.has(shown[3][4], "0.513 [", "times have one")
tap.is(("%s, %s, %s"):format(shown[1][5], shown[2][5], shown[3][5]), "depends on, nil, hardware",
  "times are those of the hardware")

-- ---- types that are emulated
local slow_rows = {row("a", {device = "cpu"}), row("c", {device = "cpu", emulated = "bf16"})}
local slowed = verdict({of = "step_ms", less = {"c", "a"}}, {rows = slow_rows, seconds = {a = fast, c = slow}})
tap.is(claims.lines{slowed}[2][2], "REFUTED (bf16 is emulated on this processor)", "the verdict says it")
tap.is(claims.values(slowed).verdict .. " " .. claims.values(slowed).emulated, "REFUTED bf16", "as values, too")
tap.is(claims.status{slowed}, 5, "and stays what it is")
local wide = {row("a", {peak_bytes = 2, device = "cuda:0", emulated = "fp16"}),
  row("b", {peak_bytes = 1, device = "cuda:0", emulated = "bf16"})}
local line = claims.lines{verdict({of = bytes, less = {"b", "a"}}, {rows = wide})}[2]
tap.is(line[2] .. " " .. line[5], "REPRODUCED (bf16 and fp16 are emulated on this GPU) hardware",
  "so does one of bytes, which copies in fp32 may change")
tap.is(claims.lines{verdict{of = bytes, less = {"b", "a"}}}[1][5], nil, "others depend on nothing")

local meant = verdict{of = bytes, less = {"b", "a"}, holds_on = "GPUs"}
tap.is(claims.lines{meant}[2][5], "hardware: claimed for GPUs", "a claim on a kind of machine says so")
tap.is(claims.values(meant).holds_on, "GPUs", "as values, too")
refused('claims[1]: holds_on: expected text, found true', {less = {"a", "b"}, holds_on = true})

local swept = declare({{claim = "x", of = bytes, less = {"b", "a"}}})
swept:set("accumulate", {1, 2})
local judge = claims.judge(swept)
judge:row(row("a accumulate=1", {peak_bytes = 1}))
tap.has(judge:verdicts()[1].reason, '"b" is any of 2 cells', "an axis of the command line makes a case many cells")

local values = claims.values(verdict{of = bytes, ratio = {"b", "a"}, expect = 0.5, tolerance = 0.1})
tap.is(("%g %g %g"):format(values.claimed_low, values.claimed_high, values.ratio), "0.45 0.55 0.5", "as values")
tap.done()
