-- A step as a trace for Perfetto (https://ui.perfetto.dev) and chrome://tracing: a slice for each op inside of its phase, copies
-- to and from the host on a track of their own, and the tide as counters by category. The format: Google's "Trace Event
-- Format". Its times are microseconds; where none were measured, an op takes one.
local columns = require "memtide.results.columns"
local report = require "memtide.results.report"
local step = require "memtide.picture.step"
local util = require "memtide.base.util"

local perfetto = {}

local PROCESS, OPS, COPIES = 1, 1, 2
local FIELDS = {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}

local function event(t)
  t.pid = PROCESS
  return report.json(t, FIELDS)
end

local function named(what, tid, text) return event{name = what, ph = "M", ts = 0, tid = tid, args = {name = text}} end

-- What is in the host's memory at each op: bytes, or nil where nothing ever is
local function host_bytes(facts)
  if #facts.host == 0 then return nil end
  local bytes = {}
  for i = 1, #facts.ops do
    bytes[i] = 0
    for _, buf in ipairs(facts.host) do
      if buf.first <= i and i <= buf.last then bytes[i] = bytes[i] + buf.bytes end
    end
  end
  return bytes
end

-- Does the op copy to the host's memory, or from it? `known`: what the program knows of the op
local function is_copy(facts, known)
  for _, names in ipairs{known.inputs or {}, known.outputs or {}} do
    for _, name in ipairs(names) do
      for _, buf in ipairs(facts.host) do if buf.name == name then return true end end
    end
  end
  return false
end

local function slice(facts, i, known, at, length)
  local op = facts.ops[i]
  return event{name = step.op_text(op), cat = op.phase, ph = "X", ts = at, dur = length, tid = is_copy(facts, known) and COPIES or OPS,
    args = {op = i - 1, layer = op.layer ~= "" and op.layer or nil, where = op.where ~= "" and op.where or nil, flops = known.flops,
      bytes_moved = known.traffic, times = known.times, recomputed = known.recomputed, alive_bytes = op.total}}
end

-- facts: step.facts; known: program:ops() of memtide's program, {} of PyTorch's step; seconds: of each op, or nil
function perfetto.write(facts, path, known, seconds)
  local lines, starts, at, host = {}, {}, 0.0, host_bytes(facts)
  for i = 1, #facts.ops do
    starts[i] = at
    at = at + (seconds and seconds[i] * 1e6 or 1)
  end
  starts[#facts.ops + 1] = at
  lines[1] = named("process_name", OPS, ("%s, %s%s"):format(facts.title, facts.text, seconds and "" or "; not timed: an op is 1 us"))
  lines[2] = named("thread_name", OPS, facts.pytorch and "allocations" or "ops")
  if #facts.host > 0 then lines[3] = named("thread_name", COPIES, "copies to and from the host") end
  for _, phase in ipairs(facts.phases) do
    lines[#lines + 1] = event{name = phase.name, cat = "phase", ph = "X", ts = starts[phase.first], tid = OPS,
      dur = starts[phase.last + 1] - starts[phase.first]}
  end
  for i, op in ipairs(facts.ops) do
    lines[#lines + 1] = slice(facts, i, known[i] or {}, starts[i], starts[i + 1] - starts[i])
    local bytes = {}
    for _, name in ipairs(columns.categories) do bytes[name] = op.bytes[name] end
    lines[#lines + 1] = event{name = "memory", ph = "C", ts = starts[i], tid = OPS, args = bytes}
    if host then lines[#lines + 1] = event{name = "host memory", ph = "C", ts = starts[i], tid = OPS, args = {bytes = host[i]}} end
  end
  local peak = facts.peak
  lines[#lines + 1] = event{name = ("peak: %s"):format(util.show_bytes(peak.bytes)), cat = "peak", ph = "i", ts = starts[peak.at],
    tid = OPS, args = {bytes = peak.bytes, op = peak.op}}
  util.replace(path, function(write)
    write('{"displayTimeUnit":"ms","traceEvents":[\n')
    for i, line in ipairs(lines) do write(line .. (i < #lines and ",\n" or "\n")) end
    write "]}\n"
  end)
end

return perfetto
