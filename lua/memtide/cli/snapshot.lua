-- memtide snapshot FILE.pickle: what PyTorch's own recording of its memory says.
local csv = require "memtide.results.csv"
local first_cell = require "memtide.cli.first_cell"
local options = require "memtide.cli.options"
local reader = require "memtide.results.snapshot"
local report = require "memtide.results.report"
local terminal = require "memtide.base.terminal"
local util = require "memtide.base.util"

local SHOWN = 12 -- lines and ops in the table; --json and --csv have all

local snapshot = {words = "FILE.pickle [--against SCRIPT]", completes = {FILE = {files = "*.pickle"}},
  text = "what PyTorch's own recording of its memory says; --set alloc_conf=...: with other settings",
  options = {options.csv, options.json, options.CELL, options.memory,
    {name = "against", argument = "SCRIPT", completes = {files = "*.lua"},
      text = "lays PyTorch's step of this script's cell, as it is predicted, beside the recorded one"},
    options.gpu}}

-- Without a script there is nothing to set but the allocator, as in PYTORCH_CUDA_ALLOC_CONF.
function snapshot.check(given)
  for _, one in ipairs(given.set) do
    if not given.against and one[1] ~= "alloc_conf" then
      util.fail_usage("snapshot: --set: expected alloc_conf=SETTINGS, as in PYTORCH_CUDA_ALLOC_CONF, found %s=", one[1])
    elseif one[1] == "framework" and one[2] ~= "pytorch" then
      util.fail_usage("snapshot: --set: expected framework=pytorch, found framework=%s", one[2])
    end
  end
  for _, name in ipairs{"case", "device"} do
    if given[name] and not given.against then util.fail_usage("snapshot: --%s is of the script: --against SCRIPT", name) end
  end
end

-- ---- the table

local function bytes(n) return ("%d"):format(n) end

local function show(title, head, rows, right)
  print("\n" .. title)
  local lines = {head}
  for _, row in ipairs(rows) do lines[#lines + 1] = row end
  for _, line in ipairs(report.columns(lines, right)) do print("  " .. terminal.harmless(line)) end
end

local function age(tensor)
  if tensor.start then return "from before" end
  return tensor.age_us and ("%.3f ms"):format(tensor.age_us / 1000) or ("%d events"):format(tensor.events)
end

local function head(t)
  print(("%s: GPU %d, %d allocations and %d frees after %d tensors that were there"):format(terminal.harmless(t.file),
    t.gpu, t.allocations, t.frees, t.start.tensors))
  if t.gpus > 1 then print(("%d GPUs have events: --gpu N shows another one"):format(t.gpus)) end
  if t.ooms > 0 then print(("memory ran out %d times, first for %d bytes"):format(t.ooms, t.oom_bytes)) end
end

local function agreement(t)
  local r = t.replay
  if t.expandable then
    return "expandable segments: the start is allocated anew, and addresses are not compared"
  end
  local text = ("replayed: %d of %d allocations at the recorded address, %d of %d segments as recorded"):format(r.equal,
    r.equal + r.different, r.segments_equal, r.segments_equal + r.segments_different)
  return r.first and ("%s; the first difference, at event %d: %s"):format(text, r.first, r.difference) or text
end

local function peaks(t)
  local p, rows = t.peak, {}
  for _, one in ipairs{{"max_memory_reserved", t.max_memory_reserved, "segments, as recorded"},
    {"max_memory_allocated", t.max_memory_allocated, ("blocks, after event %d"):format(p.event)},
    {"reserved then", p.reserved, ""}, {"free in segments with blocks", p.split, "split, and not given back"},
    {"free segments", p.cached, "cached: torch.cuda.empty_cache() gives them back"},
    {"rounding", p.rounding, "what blocks have more than their tensors"},
    {"requested", p.requested, "what tensors asked for"},
    {"lower bound", t.lower_bound, "the most that is requested at once: no allocator needs less"}} do
    rows[#rows + 1] = {one[1], bytes(one[2]), util.show_bytes(one[2]), one[3]}
  end
  show("The peak", {"", "bytes", "", ""}, rows, {true, [4] = true})
end

local function sums(title, name, list)
  local rows = {}
  for i = 1, math.min(#list, SHOWN) do
    local one = list[i]
    rows[i] = {one[name] ~= "" and one[name] or "not recorded", bytes(one.live_bytes), bytes(one.live),
      bytes(one.bytes), bytes(one.count)}
  end
  show(title, {name, "bytes at the peak", "tensors", "bytes in all", "tensors"}, rows, {true})
  if #list > SHOWN then print(("  and %d more: --json and --csv have all"):format(#list - SHOWN)) end
end

local function said(event)
  if not event then return "nothing more there" end
  local parts = {("%s %d bytes"):format(event.kind == "free" and "frees" or "allocates", event.bytes)}
  for _, name in ipairs{"op", "layer", "where"} do
    if event[name] ~= "" then parts[#parts + 1] = event[name] end
  end
  return table.concat(parts, ", ")
end

local function print_against(t)
  local a = t.against
  local step = a.pairs + a.only_predicted + a.outside
  print(("\nBeside what is predicted of %s"):format(terminal.harmless(a.cell)))
  if a.pairs == 0 then return print "  no allocation of the predicted step is in the recording" end
  print(("  aligned by sizes: %d of the step's %d allocations, at the events %d to %d of the recording"):format(a.pairs, step,
    a.first_event, a.last_event))
  if a.outside > 0 then
    print(("  %d of them are not compared: the recording begins after them, or has ended"):format(a.outside))
  end
  if not a.predicted and not a.recorded then print "  every size and every free of the step is as predicted"
  else
    print(("  only predicted: %d allocations; only recorded: %d; freed at another time: %d tensors"):format(a.only_predicted,
      a.only_recorded, a.moved))
    print(("  the first difference, after %d equal allocations%s:"):format(a.equal,
      a.event and (", at event %d"):format(a.event) or ""))
    print("    predicted: " .. terminal.harmless(a.predicted and said(a.predicted) or a.recorded.kind == "free"
      and "frees it at another time" or said()))
    print("    recorded:  " .. terminal.harmless(a.recorded and said(a.recorded) or a.predicted.kind == "free"
      and "frees it at another time" or said()))
  end
  local rows = {}
  for _, name in ipairs{"max_memory_allocated", "max_memory_reserved"} do
    rows[#rows + 1] = {name, bytes(a[name]), bytes(t[name]), ("%+d"):format(a[name] - t[name])}
  end
  show("Peaks, of the step and of the whole recording", {"", "predicted", "recorded", "difference"}, rows, {true})
  rows = {}
  for i = 1, math.min(#a.ops, SHOWN) do
    local one = a.ops[i]
    rows[i] = {one.predicted_op ~= "" and one.predicted_op or "-", bytes(one.predicted_bytes), bytes(one.predicted),
      one.recorded_op ~= "" and one.recorded_op or one.recorded > 0 and "not recorded" or "-", bytes(one.recorded_bytes),
      bytes(one.recorded)}
  end
  show("By op: the largest differences first", {"predicted", "bytes", "tensors", "recorded", "bytes", "tensors"}, rows,
    {true, [4] = true})
  if #a.ops > SHOWN then print(("  and %d more: --json and --csv have all"):format(#a.ops - SHOWN)) end
end

local function print_table(t)
  head(t)
  print(agreement(t))
  if t.against then print_against(t) end
  peaks(t)
  local rows = {}
  for i, one in ipairs(t.tensors) do
    rows[i] = {bytes(one.bytes), age(one), one.op ~= "" and one.op or "-", one.where ~= "" and one.where or "-"}
  end
  show("The largest tensors at the peak", {"bytes", "age", "op", "where"}, rows, {[2] = true, [3] = true, [4] = true})
  sums("By line", "where", t.lines)
  sums("By op", "op", t.ops)
  rows = {}
  for i, one in ipairs(t.what_if) do
    rows[i] = {one.alloc_conf, bytes(one.allocated), bytes(one.reserved), one.fits and "" or one.reason}
  end
  local limit = t.what_if[1].memory and (", with at most %d bytes"):format(t.what_if[1].memory) or ""
  show("The same requests from an empty allocator" .. limit, {"alloc_conf", "allocated", "reserved", ""}, rows,
    {true, [4] = true})
end

-- ---- CSV

local COLUMNS = {"row", "name", "where", "bytes", "tensors", "live_bytes", "live_tensors", "age_us", "allocated",
  "reserved", "memory", "fits"}
local AGAINST = {"predicted_op", "predicted_bytes", "predicted_tensors"} -- with --against

local function csv_rows(t)
  local rows = {}
  local function add(row) rows[#rows + 1] = row end
  for _, name in ipairs{"max_memory_allocated", "max_memory_reserved", "lower_bound"} do
    add{row = "total", name = name, bytes = t[name]}
  end
  for _, name in ipairs{"requested", "rounding", "allocated", "split", "cached", "reserved"} do
    add{row = "peak", name = name, bytes = t.peak[name]}
  end
  for _, name in ipairs{"equal", "different", "segments_equal", "segments_different"} do
    add{row = "replay", name = name, tensors = t.replay[name]}
  end
  for _, one in ipairs(t.tensors) do
    add{row = "tensor", name = one.op, where = one.where, bytes = one.bytes, age_us = one.age_us}
  end
  for _, kind in ipairs{{"line", t.lines}, {"op", t.ops}} do
    for _, one in ipairs(kind[2]) do
      add{row = kind[1], name = one.op, where = one.where, bytes = one.bytes, tensors = one.count,
        live_bytes = one.live_bytes, live_tensors = one.live}
    end
  end
  for _, one in ipairs(t.what_if) do
    add{row = "what_if", name = one.alloc_conf, allocated = one.allocated, reserved = one.reserved, memory = one.memory,
      fits = one.fits}
  end
  for _, one in ipairs(t.against and t.against.ops or {}) do
    add{row = "against", name = one.recorded_op, bytes = one.recorded_bytes, tensors = one.recorded,
      predicted_op = one.predicted_op, predicted_bytes = one.predicted_bytes, predicted_tensors = one.predicted}
  end
  return rows
end

local function write_csv(t, path)
  local columns = table.move(COLUMNS, 1, #COLUMNS, 1, {})
  if t.against then table.move(AGAINST, 1, #AGAINST, #columns + 1, columns) end
  local lines = {csv.line(columns, #columns)}
  for _, row in ipairs(csv_rows(t)) do
    local values = {}
    for i, name in ipairs(columns) do values[i] = row[name] == nil and "" or row[name] end
    lines[#lines + 1] = csv.line(values, #columns)
  end
  local text = table.concat(lines)
  if path == "-" then return util.must_write("standard output", io.stdout:write(text)) end
  util.replace(path, function(write) write(text) end)
end

-- first: the compiled cell of --against, or nil
local function show_file(path, given, first)
  local confs = {}
  for _, one in ipairs(given.set) do if one[1] == "alloc_conf" then confs[#confs + 1] = one[2] end end
  local t = reader.read(path, {gpu = given.gpu, alloc_conf = confs, memory = given.memory,
    against = first and first.program})
  if first then t.against.cell = ("%s, %s"):format(given.script.path, first.name) end
  if given.csv then write_csv(t, given.csv) end
  if given.json then print(report.json(t, util.sorted_keys(t)))
  elseif given.csv ~= "-" then print_table(t) end
  return 0
end

-- With --against the script takes the file's place among the words, and the command goes on as one about a script.
function snapshot.alone(words, given)
  if #words ~= 1 then util.fail_usage("snapshot: expected one file, found %d", #words) end
  if not given.against then return show_file(words[1], given) end
  given.file, words[1] = words[1], given.against
end

function snapshot.run(experiment, given)
  local asked = setmetatable({set = {{"framework", "pytorch"}}}, {__index = given})
  for _, one in ipairs(given.set) do
    if one[1] ~= "alloc_conf" and one[1] ~= "framework" then asked.set[#asked.set + 1] = one end
  end
  return show_file(given.file, given, first_cell(experiment, asked))
end

return snapshot
