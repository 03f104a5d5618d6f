-- What is written for other programs: PyTorch's memory snapshots, of which memtide's own reader says what was predicted, and
-- traces for Perfetto; and results as specifications of Vega-Lite.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local csv = require "memtide.results.csv"
local perfetto = require "memtide.picture.perfetto"
local rows = require "memtide.picture.rows"
local snapshot = require "memtide.picture.snapshot"
local step = require "memtide.picture.step"
local vega = require "memtide.picture.vega"

local path = os.tmpname()

-- memory: bytes that the cell may use, nil: no limit
local function compiled(values, memory)
  local nn = mt.nn
  values.name, values.input, values.classes, values.loss = values.name or "exports", {3, 24, 24}, 4, mt.nn.CrossEntropyLoss()
  values.batch, values.optimizer = values.batch or 16, values.optimizer or mt.optim.Adam()
  values.model = nn.Sequential{nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Dropout(0.1),
    nn.Flatten(), nn.Linear(32 * 400, 64), nn.Linear(64, 4)}
  local one = cell.build(mt.experiment(values):cell(1))
  one.memory = memory
  return cell.compile(one)
end

-- ---- eager PyTorch's step: its peaks to the byte, and every tensor where the allocator puts it

local function pytorch(what, values, memory)
  values.framework = "pytorch"
  local one = compiled(values, memory)
  local facts = step.facts(one)
  snapshot.write(facts, path)
  local read = mt.snapshot(path)
  local predicted, replay = one.prediction, read.replay
  tap.is(read.max_memory_allocated, predicted.max_memory_allocated, what .. ": max_memory_allocated is what is predicted")
  tap.is(read.max_memory_reserved, facts.held, what .. ": max_memory_reserved as well")
  tap.is(facts.held, predicted.max_memory_reserved, what .. ": ... which is that of the step")
  tap.is(read.allocations, #facts.ops, what .. ": an event for each allocation")
  tap.is(replay.different, 0, what .. ": no tensor lies elsewhere in a replay")
  tap.is(replay.segments_different, 0, what .. ": nor is a segment taken at another time")
  if not read.expandable then tap.is(replay.equal, #facts.ops, what .. ": and all are compared") end
  return read, facts
end

local read = pytorch("Adam", {})
tap.ok(read.tensors[1].where:find "t_exports.lua:%d+$", "tensors have their line of the script: " .. read.tensors[1].where)
local ops = {}
for _, one in ipairs(read.ops) do ops[one.op] = one.count end
tap.ok(ops["aten::addmm"] and ops["ConvolutionBackward0|aten::convolution_backward"], "ops have PyTorch's names")
pytorch("two micro-batches", {accumulate = 2})
pytorch("mixed precision", {precision = "amp_fp16"})
pytorch("checkpointing", {checkpoint = "sqrt"})
pytorch("evaluation", {mode = "eval"})
pytorch("larger", {batch = 256})
local pages = pytorch("expandable segments", {pytorch = {alloc_conf = "expandable_segments:True"}, batch = 64})
tap.ok(pages.expandable, "expandable segments are called so")
pytorch("other settings", {pytorch = {alloc_conf = "max_split_size_mb:20,roundup_power2_divisions:4"}, batch = 64})

-- Too little memory for what the allocator would like to keep: it gives segments back and takes others in each step.
local function cramped() return {framework = "pytorch", pytorch = {alloc_conf = "max_split_size_mb:20"}, batch = 300} end
local wide = compiled(cramped())
local limit, busiest, room = nil, 0, wide.prediction.needs
while cell.predict(wide, room).fits do
  local count = 0
  wide.memory = room
  for _, one in ipairs(cell.step(wide, wide.trainings[1]).segments) do count = count + (one.op > 0 and 1 or 0) end
  if count > busiest then limit, busiest = room, count end
  room = room - (2 << 20)
end
local tight = pytorch("little memory", cramped(), limit)
tap.ok(tight.replay.segments_equal > 1, "segments come and go: " .. tight.replay.segments_equal)

-- ---- memtide's own: one segment, as large as the arena

local function own(what, values)
  local one = compiled(values)
  local facts = step.facts(one)
  snapshot.write(facts, path)
  local found, peak = mt.snapshot(path), one.prediction.peak
  tap.is(found.max_memory_reserved, (facts.arena + 511) // 512 * 512, what .. ": the segment is the arena, in multiples of 512 bytes")
  if one.settings.allocator == "planned" then
    tap.ok(found.max_memory_reserved - peak.bytes >= 0 and found.max_memory_reserved - peak.bytes < 512, what .. ": which is the peak")
  end
  local most, now, change = 0, 0, {}
  for _, buf in ipairs(facts.bufs) do
    change[buf.first], change[buf.last + 1] = (change[buf.first] or 0) + buf.bytes, (change[buf.last + 1] or 0) - buf.bytes
  end
  for i = 1, #facts.ops do
    now = now + (change[i] or 0)
    most = math.max(most, now)
  end
  tap.is(found.lower_bound, most, what .. ": the most that tensors have at once")
  return found
end

read = own("memtide", {})
ops = {}
for _, one in ipairs(read.ops) do ops[one.op] = one.count end
tap.ok(ops.linear_dx and ops.conv2d, "ops have memtide's names")
own("memtide, checkpointing", {checkpoint = "sqrt", accumulate = 2})
own("memtide, offloading", {offload = "all"})
own("memtide, caching allocator", {allocator = "caching"})
own("memtide, evaluation", {mode = "eval"})

-- ---- files: equal steps make equal ones; names are text

local function bytes_of(name)
  snapshot.write(step.facts(compiled{name = name}), path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end
tap.ok(bytes_of "a" == bytes_of "a", "equal steps make equal files")
local good, problem = pcall(snapshot.write, step.facts(compiled{}), "/nowhere/x.pickle")
tap.has(not good and problem.message or "", "cannot write /nowhere/x.pickle: No such file or directory", "a folder that is not there")

-- ---- traces for Perfetto: slices lie in their phase, one after the other, and the counters are the tide

local function trace_of(one, known, seconds)
  local facts = step.facts(one)
  perfetto.write(facts, path, known, seconds)
  local file <close> = assert(io.open(path, "rb"))
  return assert(core.json(file:read "a", path)).traceEvents, facts
end

local function check_trace(what, one, known, seconds)
  local events, facts = trace_of(one, known, seconds)
  local slices, counters, phases, host, copies, at, wrong = 0, 0, {}, 0, 0, 0, 0
  for _, e in ipairs(events) do
    if e.ph == "X" and e.cat == "phase" then phases[e.name] = e
    elseif e.ph == "X" then
      slices = slices + 1
      local phase = phases[e.cat]
      local length = seconds and seconds[slices] * 1e6 or 1
      if math.abs(e.ts - at) > 1e-6 or math.abs(e.dur - length) > 1e-6 or e.ts < phase.ts - 1e-6
        or e.ts + e.dur > phase.ts + phase.dur + 1e-6 then wrong = wrong + 1 end
      at, copies = e.ts + e.dur, copies + (e.tid == 2 and 1 or 0)
    elseif e.ph == "C" and e.name == "memory" then
      counters = counters + 1
      local sum = 0
      for _, bytes in pairs(e.args) do sum = sum + bytes end
      if sum ~= facts.ops[counters].total then wrong = wrong + 1 end
    elseif e.ph == "C" then host = math.max(host, e.args.bytes) end
  end
  tap.is(slices, #facts.ops, what .. ": a slice for each op")
  tap.is(counters, #facts.ops, what .. ": and the memory at each")
  tap.is(wrong, 0, what .. ": each at its time, inside of its phase, with the bytes of the tide")
  return host, copies, one
end

check_trace("PyTorch's trace", compiled{framework = "pytorch"}, {})
local plain = compiled{}
check_trace("memtide's trace", plain, plain.program:ops())
local seconds = {}
for i in ipairs(plain.program:ops()) do seconds[i] = i * 1e-5 end
check_trace("measured times", plain, plain.program:ops(), seconds)
local offloaded = compiled{offload = "all", sliced_updates = false} -- so that the peak leaves room to begin copies early
local host, copies = check_trace("offloading", offloaded, offloaded.program:ops())
tap.is(host, offloaded.prediction.host, "the host's memory is what is predicted of it")
tap.ok(copies > 0 and copies % 2 == 0, "copies to the host and back have a track of their own: " .. copies)

-- ---- results as Vega-Lite: a record for each cell, its numbers as they are; what it names is there

-- A file of results with these rows, {column = value}
local function results_of(list)
  local names, common = {"experiment", "case", "cell", "repeat", "model", "device", "batch", "effective_batch", "precision", "mode",
    "status", "reason", "predicted_peak_bytes", "peak_bytes", "step_ms", "version"}, {experiment = "v", ["repeat"] = 1, model = "M",
    device = "cpu", mode = "train", status = "ok", precision = "fp32", version = "1"}
  local file = assert(io.open(path, "w"))
  file:write(csv.line(names, #names))
  for i, row in ipairs(list) do
    local values = {}
    row.case, row.cell, row.effective_batch = ("case %d"):format(i), ("%012x-000000-000000"):format(i), row.batch
    for k, name in ipairs(names) do values[k] = row[name] or common[name] end
    file:write(csv.line(values, #names))
  end
  file:close()
  return rows.facts(path, print)
end

-- The specification read back; every field that an encoding names is in a record, or calculated.
local function check_vega(what, spec, count)
  local made = assert(core.json(vega.text(spec), what))
  tap.is(made["$schema"], "https://vega.github.io/schema/vega-lite/v5.json", what .. ": its schema")
  tap.is(#made.data.values, count, what .. ": a record for each cell")
  local known, missing = {memory = true}, {}
  local function learn(values) for _, one in ipairs(values) do for name in pairs(one) do known[name] = true end end end
  local function walk(t, visit)
    visit(t)
    for _, value in pairs(t) do if type(value) == "table" then walk(value, visit) end end
  end
  walk(made, function(t) if type(t.values) == "table" then learn(t.values) end end)
  walk(made, function(t) if type(t.field) == "string" and not known[t.field] then missing[#missing + 1] = t.field end end)
  tap.is(table.concat(missing, " "), "", what .. ": no field that the data lack")
  return made
end

local MIB = 1 << 20
local facts = results_of{
  {batch = 8, peak_bytes = 10 * MIB, step_ms = 5}, {batch = 16, peak_bytes = 20 * MIB, step_ms = 9},
  {batch = 8, precision = "bf16", peak_bytes = 6 * MIB, step_ms = 4},
  {batch = 16, precision = "bf16", predicted_peak_bytes = 40 * MIB, status = "oom",
    reason = "out of memory: requested 64 bytes, held 33554432, limit 33554432"}}
local drawn = check_vega("the sweep", vega.sweep(facts), 4)
tap.is(#drawn.vconcat, 2, "a panel of memory and one of time")
local of = {}
for _, one in ipairs(drawn.data.values) do of[one.case] = one end
tap.is(of["case 2"].memory_bytes, 20 * MIB, "bytes are those of the file")
tap.is(of["case 2"].batch, 16, "numbers are numbers")
tap.is(of["case 3"].series, "bf16", "the line that a cell belongs to")
tap.ok(of["case 4"].fits == false and of["case 1"].fits == true, "what does not fit")
tap.has(vega.text(drawn), "the limit of 32.0 MiB", "and the limit")
drawn = check_vega("memory against time", vega.pareto(facts), 3)
local front = {}
for _, one in ipairs(drawn.data.values) do if one.on_the_front then front[#front + 1] = one.case end end
tap.is(table.concat(front, ", "), "case 3, case 2", "the fronts are those of the picture")
drawn = check_vega("bars", vega.sweep(results_of{{batch = 8, peak_bytes = MIB}, {batch = 8, precision = "bf16", peak_bytes = MIB}}), 2)
tap.is(#drawn.hconcat, 1, "without an axis bars; without times of memory alone")
local none, why = vega.pareto(results_of{{batch = 8, peak_bytes = MIB}})
tap.ok(none == nil and why:find "no cell has both", "without times there is no front")
tap.raises("column precision: expected numbers", "an axis of words", vega.sweep, facts, "precision")

-- ---- any plain data: the pickle's writer

local function again(value)
  assert(core.write_pickle(path, value))
  return mt.snapshot and select(2, pcall(mt.snapshot, path))
end
tap.has(again{segments = {}, device_traces = {{}}}.message, "no events of GPU 0", "a dict of lists is read back as one")
tap.has(again{1, 2}.message, "found a list", "a list is read back as one")
tap.raises("found number", "a number that is not whole", core.write_pickle, path, {0.5})
local deep = {}
for _ = 1, 60 do deep = {deep} end
tap.raises("tables inside of each other", "tables that are too deep", core.write_pickle, path, deep)
os.remove(path)
tap.done()
