-- The facts of a step that its pictures show: of memtide's step, and of PyTorch's (framework = "pytorch") alike. They
-- come from what the program knows of itself (program:step, lua/bind_step.c) and from its prediction.
--
--   title, text      of the cell: its experiment and name; batch, precision, device
--   pytorch          is it PyTorch's step? Then an op is an allocation, and buffers have no address.
--   ops              {{name, layer, where, phase, bytes = {category = bytes}, total}, ...}; where: "article.lua:8" or ""
--   bufs             {{name, category, layer, where, bytes, size, first, last, offset, always}, ...} on the device
--   phases           {{name, first, last}, ...}: numbers of ops
--   peak             {at = number of the op, op, bytes, alive = {buffers, the largest first}, slack}
--   arena, allocator bytes from the first buffer's offset to the end of the last; the cell's allocator
--   held             the most that the allocator has from the device, in bytes
--
-- Bytes of a buffer count with its alignment (size); what that adds is in the category other, as in the ledger. slack:
-- what the peak has beside its buffers: gaps of the plan, free blocks, rounding of PyTorch's blocks.
local cell = require "memtide.net.cell"
local columns = require "memtide.results.columns"
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
function step.buf_text(facts, buf) return facts.pytorch and step.op_text(buf) or buf.name end

-- What the slack of the peak is
function step.slack_text(facts) return facts.pytorch and "rounding of PyTorch's blocks" or "gaps and free blocks" end

-- The facts of a cell that has been compiled (cell.compile). Raises where host memory runs out.
function step.facts(one)
  local found, prediction = util.must(one.program:step()), one.prediction
  local pytorch = one.settings.framework == "pytorch"
  if #found.ops == 0 then error(util.failure("the step has no ops, and nothing to draw", "script"), 0) end
  if pytorch then add_phases(found.ops) else add_layers(found, one.network) end
  local bufs = {}
  for i, buf in ipairs(found.bufs) do
    buf.number = i
    if not buf.host then bufs[#bufs + 1] = buf end
  end
  add_bytes(found.ops, bufs)
  local at = peak_op(found.ops, prediction.peak)
  local op, held = found.ops[at], pytorch and prediction.max_memory_reserved or prediction.peak.bytes
  local info = cell.device(one.settings.device):info() or {}
  return {title = ("%s: %s"):format(one.experiment.name, one.name), pytorch = pytorch,
    text = ("%sbatch %s, %s, on %s"):format(pytorch and "eager PyTorch, " or "", one.settings.batch,
      one.settings.precision, info.name or one.settings.device),
    ops = found.ops, bufs = bufs, phases = phases_of(found.ops), arena = found.arena, held = held, allocator = one.settings.allocator,
    peak = {at = at, op = step.op_text(op), where = op.where, bytes = prediction.peak.bytes,
      slack = prediction.peak.bytes - op.total, alive = alive_at(bufs, at), categories = prediction.peak.categories}}
end

return step
