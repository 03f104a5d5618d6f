-- The facts of a step that its pictures show: of memtide's step, and of PyTorch's (framework = "pytorch") alike. They
-- come from what the program knows of itself (program:step, lua/bind_step.c) and from its prediction.
--
--   title, text      of the cell: its experiment and name; batch, precision, device
--   pytorch          is it PyTorch's step, or a recording of PyTorch? Then an op is an allocation. recorded: is it that?
--   ops              {{name, layer, where, phase, bytes = {category = bytes}, total}, ...}; where: "article.lua:8" or ""
--   bufs             {{name, category, layer, where, bytes, size, first, last, offset, place, always}, ...} on the device;
--                    PyTorch's have before and after in always' place: was it there before the first op, after the last?
--   host             the same of buffers in the host's memory, whose addresses are there
--   phases           {{name, first, last}, ...}: numbers of ops
--   peak             {at = number of the op, op, bytes, alive = {buffers, the largest first}, slack}
--   arena, allocator bytes from the first buffer's place to the end of the last; the cell's allocator
--   alloc_conf       PYTORCH_CUDA_ALLOC_CONF of PyTorch's step, "" where it is not set
--   held             the most that the allocator has from the device, in bytes
--   segments, ranges PyTorch's: what became of them in order (lua/bind_step.c); how long each lasted (place_all)
--
-- Bytes of a buffer count with its alignment (size); what that adds is in the category other, as in the ledger. slack:
-- what the peak has beside its buffers: gaps of the plan, free blocks.
local cell = require "memtide.net.cell"
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local util = require "memtide.base.util"

local step = {}

-- ---- where in the script

-- {path = "article.lua:8"} of the cell's layers
local function lines_of(network)
  local out = {}
  for _, layer in ipairs(network:layers()) do out[layer.path] = layer.where end
  return out
end

-- The layer whose name begins a name, "5.weight.grad" -> "5"; "" where there is none
local function layer_of(name, lines)
  local path = name
  while path do
    if lines[path] then return path end
    path = path:match "^(.*)%.[^.]*$"
  end
  return ""
end

local function add_layers(found, network)
  local lines = lines_of(network)
  for _, op in ipairs(found.ops) do
    op.layer = op.layer == "." and "" or op.layer
    op.where = lines[layer_of(op.layer, lines)] or ""
  end
  for _, buf in ipairs(found.bufs) do
    buf.layer = layer_of(buf.name, lines)
    buf.where = buf.layer ~= "" and lines[buf.layer] or ""
  end
end

-- ---- phases

-- PyTorch's ops of the backward pass say so ("AddmmBackward0|aten::mm"). Forward ops between two of them belong to the
-- next micro-batch if a loss is among them; else they are recomputed. What follows the last is the update.
local function add_phases(ops)
  local since, loss, any = 1, false, false
  local function name_all(last, phase) for i = since, last do ops[i].phase = phase end end
  for i, op in ipairs(ops) do
    if op.name:find("|", 1, true) then
      name_all(i - 1, (loss or not any) and "forward" or "backward")
      op.phase, since, loss, any = "backward", i + 1, false, true
    else
      loss = loss or op.layer:find "^loss" ~= nil
    end
  end
  name_all(#ops, any and "update" or "forward")
end

local function phases_of(ops)
  local out = {}
  for i, op in ipairs(ops) do
    local last = out[#out]
    if last and last.name == op.phase then last.last = i
    else out[#out + 1] = {name = op.phase, first = i, last = i} end
  end
  return out
end

-- ---- bytes

-- Gives each op its bytes by category, from what begins and ends at it.
local function add_bytes(ops, bufs)
  local change = {}
  for i = 1, #ops + 1 do change[i] = {} end
  local function note(at, category, bytes) change[at][category] = (change[at][category] or 0) + bytes end
  for _, buf in ipairs(bufs) do
    for at, sign in pairs{[buf.first] = 1, [buf.last + 1] = -1} do
      note(at, buf.category, sign * buf.bytes)
      note(at, "other", sign * (buf.size - buf.bytes))
    end
  end
  local now = {}
  for _, name in ipairs(columns.categories) do now[name] = 0 end
  for i, op in ipairs(ops) do
    op.bytes, op.total = {}, 0
    for _, name in ipairs(columns.categories) do
      now[name] = now[name] + (change[i][name] or 0)
      op.bytes[name], op.total = now[name], op.total + now[name]
    end
  end
end

-- The number of the op at the peak that was predicted. Before any op, as where a step only evaluates, it is the first.
local function peak_op(ops, peak)
  if peak.at then return peak.at end
  local found = 1
  for i, op in ipairs(ops) do
    if peak.event and op.event <= peak.event then found = i end
  end
  return found
end

local function by_size(a, b)
  if a.size ~= b.size then return a.size > b.size end
  return a.number < b.number
end

local function alive_at(bufs, at)
  local out = {}
  for _, buf in ipairs(bufs) do if buf.first <= at and at <= buf.last then out[#out + 1] = buf end end
  table.sort(out, by_size)
  return out
end

-- The text of an op: "linear_dx 5"
function step.op_text(op) return op.layer == "" and op.name or op.name .. " " .. op.layer end

-- The text of a buffer; PyTorch's is called by the op that made it: "aten::relu 1"
function step.buf_text(facts, buf)
  if facts.recorded and buf.name == "" then return buf.before and "from before the recording" or "not recorded" end
  return facts.pytorch and step.op_text(buf) or buf.name
end

-- What the slack of the peak is
function step.slack_text(facts) return facts.pytorch and "what went before the first of them" or "gaps and free blocks" end

-- What an op of the step is, and what stands below the axis along which they are
function step.ops_word(facts) return facts.pytorch and "allocations" or "ops" end

function step.ops_text(facts)
  return ("%s of %s, in their order"):format(step.ops_word(facts), facts.recorded and "the recording" or "one step")
end

-- ---- addresses

-- Buffers of a trace have addresses in segments, between which nothing is: `place` of a buffer counts the bytes of segments
-- below it alone, those of the whole step, and where one was given back later, too.
--   ranges   {{offset = address, bytes, first, last, place, small, page}, ...} what was taken from the device at once, and from which op on
--            it was there, to which; second value: their bytes together
local function place_all(found)
  local ranges, open = {}, {}
  local function add(offset, bytes, first, of)
    local one = {offset = offset, bytes = bytes, first = first, last = #found.ops, small = of.small, page = of.page}
    ranges[#ranges + 1], open[#open + 1] = one, one
  end
  local function give_back(event) -- of pages of an expandable segment, a part of a range may go
    for i = #open, 1, -1 do
      local one, from, to = open[i], event.offset, event.offset + event.bytes
      local finish = one.offset + one.bytes
      if one.offset < to and from < finish then
        table.remove(open, i)
        one.last = event.op
        if one.offset < from then add(one.offset, from - one.offset, event.op + 1, event) end
        if to < finish then add(to, finish - to, event.op + 1, event) end
      end
    end
  end
  for _, event in ipairs(found.segments) do
    if event.taken then add(event.offset, event.bytes, event.op + 1, event) else give_back(event) end
  end
  local sorted, bytes, finish = table.move(ranges, 1, #ranges, 1, {}), 0, 0
  table.sort(sorted, function(a, b) return a.offset < b.offset end)
  for _, one in ipairs(sorted) do -- ranges of pages may lie on each other, one after the other
    local from = math.max(one.offset, finish)
    one.place = bytes - (from - one.offset)
    finish = math.max(finish, one.offset + one.bytes)
    bytes = math.max(bytes, one.place + one.bytes)
  end
  for _, buf in ipairs(found.bufs) do
    local low, high = 1, #sorted -- the last range that begins at or below the buffer
    while low < high do
      local middle = (low + high + 1) // 2
      if sorted[middle].offset <= buf.offset then low = middle else high = middle - 1 end
    end
    buf.place = sorted[low].place + buf.offset - sorted[low].offset
  end
  return ranges, bytes
end

-- ---- the facts

-- Of what program:step, trace:step or snapshot:step has found. title, text: what the pictures say; peak: bytes, categories, and
-- `at` or `event`; held: bytes that the allocator has at most
local function facts_of(found, title, text, peak, held)
  local bufs, host = {}, {}
  for i, buf in ipairs(found.bufs) do
    buf.number, buf.place = i, buf.offset
    table.insert(buf.host and host or bufs, buf)
  end
  add_bytes(found.ops, bufs)
  local out = {title = title, text = text, pytorch = found.segments ~= nil, ops = found.ops, bufs = bufs, host = host,
    phases = phases_of(found.ops), arena = found.arena, segments = found.segments, held = held}
  if out.pytorch then out.ranges, out.arena = place_all(found) end
  local at = peak_op(found.ops, peak)
  local op = found.ops[at]
  out.peak = {at = at, op = step.op_text(op), where = op.where, bytes = peak.bytes, slack = peak.bytes - op.total,
    alive = alive_at(bufs, at), categories = peak.categories}
  return out
end

-- The facts of a cell that has been compiled (cell.compile). Raises where host memory runs out.
function step.facts(one)
  local found, prediction = cell.step(one, one.trainings[1]), one.prediction
  local pytorch = one.settings.framework == "pytorch"
  if #found.ops == 0 then error(util.failure("the step has no ops, and nothing to draw", "script"), 0) end
  if pytorch then add_phases(found.ops) else add_layers(found, one.network) end
  local info = cell.device(one.settings.device):info() or {}
  local text = ("%sbatch %s, %s, on %s"):format(pytorch and "eager PyTorch, " or "", one.settings.batch, one.settings.precision,
    info.name or one.settings.device)
  local facts = facts_of(found, ("%s: %s"):format(one.experiment.name, one.name), text, prediction.peak,
    pytorch and prediction.max_memory_reserved or prediction.peak.bytes)
  facts.allocator, facts.alloc_conf = one.settings.allocator, (one.settings.pytorch or ""):match "alloc_conf=(%S+)" or ""
  return facts
end

-- A recording does not say what a tensor is for, but how long it lives: the colours of the categories stand for that.
local RECORDED = {weights = "there all the time", input = "from before, goes", optimizer = "comes and stays",
  activations = "comes and goes", activation_gradients = "comes and goes, in the backward pass", other = "rounding"}

local function lasting(buf)
  if buf.before then return buf.after and "weights" or "input" end
  if buf.after then return "optimizer" end
  return buf.name:find("|", 1, true) and "activation_gradients" or "activations"
end

-- A category of the facts in words
function step.words(facts, category) return facts.recorded and RECORDED[category] or (category:gsub("_", " ")) end

-- The facts of a recording of PyTorch's memory, the whole of it: memtide snapshot's file. gpu: which one, nil: the first
-- that has events. Raises where it is none.
function step.recorded(path, gpu)
  local file <close> = util.must(core.snapshot(path, gpu))
  local info, found, peak = util.must(file:info()), util.must(file:step()), util.must(file:replay()).peak
  if #found.ops == 0 then error(util.failure(path .. ": nothing is allocated in it, and nothing to draw", "file"), 0) end
  for _, op in ipairs(found.ops) do op.phase = "recorded" end
  for _, buf in ipairs(found.bufs) do buf.category = lasting(buf) end
  local facts = facts_of(found, path:match "[^/]*$", ("recorded on GPU %d"):format(info.device), {bytes = peak.allocated,
    event = peak.event + info.tensors_start - 1}, info.reserved_peak)
  facts.recorded = true
  return facts
end

return step
