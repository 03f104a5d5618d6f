-- What memtide explain says of PyTorch's step: where its peak is, what is alive there and which line made it, and what
-- differs from memtide's own step of the same network.
local cards = require "memtide.net.cards"
local categories = require "memtide.results.columns".categories
local cell = require "memtide.net.cell"
local csv = require "memtide.results.csv"
local estimate = require "memtide.sweep.estimate"
local optim = require "memtide.net.optim"
local report = require "memtide.results.report"
local util = require "memtide.base.util"

local LARGEST = 20 -- lines of the table

local WHY = {
  weights = "autocast's 16-bit copies, which live until the context ends; memtide frees each after its last reader",
  gradients = "every gradient lives until zero_grad; memtide updates a large parameter as soon as its gradient exists",
  optimizer = "the same states; step counts and loss scales are stored differently",
  activations = "each op has a result of its own, and what autograd saves lives until its node ran; memtide fuses ops",
  activation_gradients = "a gradient for each op; memtide's pass through fused ops, and take over storage",
  input = "labels and indices have 8 bytes; x and y live until they are bound again",
  workspace = "cuBLAS keeps a workspace for each thread that computes products; memtide's scratch lives for one op",
  other = "temporaries of the optimizer's lists, and blocks that are larger than their tensors",
}

-- memtide's own step of the same cell -> its prediction
local function own_step(self)
  local values = {}
  for key, value in pairs(self.values) do values[key] = value end
  values.framework, values.device = "memtide", "cpu"
  local own = cell.compile(cell.build{experiment = self.experiment, values = values, name = self.name, places = {}})
  local prediction = own.prediction
  cell.release(own)
  return prediction
end

-- Tensors of one op, layer and size are one line: {bytes, count, category, op, layer, where}, the most bytes first.
local function grouped(tensors)
  local groups, by_key = {}, {}
  for _, tensor in ipairs(tensors) do
    local key = table.concat({tensor.bytes, tensor.category, tensor.op, tensor.layer}, "\0")
    local group = by_key[key]
    if group then group.count = group.count + 1
    else
      tensor.count, by_key[key], groups[#groups + 1] = 1, tensor, tensor
    end
  end
  for i, group in ipairs(groups) do group.order = i end
  table.sort(groups, function(a, b)
    local x, y = a.bytes * a.count, b.bytes * b.count
    if x ~= y then return x > y end
    return a.order < b.order
  end)
  return groups
end

local function mib(bytes) return ("%.2f"):format(bytes / 2 ^ 20) end

-- What nvidia-smi would show: reserved bytes and the context.
local function device_line(self)
  local found, device = self.prediction, self.values.device
  local context, _, source = cards.context(device)
  local low, high = cards.range(device, found)
  local between = ("from %d to %d"):format(low, high)
  if not context then
    return "device_bytes         " .. between .. ": reserved, and a context that is not known; see memtide calibrate"
  end
  return ("device_bytes         %d: reserved, and %d of the context (%s); %s"):format(found.device_bytes, context, source,
    between)
end

-- The least time of a step.
local function time_line(self)
  local flops, bytes = self.program:cost()
  return ("time                 at least %s: %d FLOP, %d bytes read and written, at the peaks of the card's data sheet"):format(
    estimate.show(self.program:floor()), flops, bytes)
end

local SOURCES = {
  table = "cuDNN %s, from memtide's table", library = "cuDNN %s of this machine, asked about the card",
  batches = "cuDNN %s, between the batches of memtide's table",
  estimate = "an estimate: neither the table nor a cuDNN here knows them",
}

-- Where the workspaces of convolutions come from; nil: there are none.
local function convolutions_line(self)
  local parts = {}
  for _, one in ipairs(self.program:convolutions()) do
    parts[#parts + 1] = ("%d passes, "):format(one.passes) .. SOURCES[one.source]:format(one.version)
  end
  return #parts > 0 and "workspaces of convolutions: " .. table.concat(parts, "; ") or nil
end

-- What follows a peak that rests on sizes that only cuDNN knows; least, most: its bounds.
local function between(found, least, most)
  return found.estimated and (": an estimate, from %d to %d, for workspaces and reserves of cuDNN"):format(least, most) or ""
end

local PAGED = "large states are paged; memtide's visit the device, PyTorch's are managed memory, which its allocator does not count"

-- {{name, pytorch_bytes, memtide_bytes, reason}, ...}: the peaks of both steps by category
local function compare(self, own)
  local rows, paged = {}, optim.is_paged(self.values.optimizer)
  for i, name in ipairs(categories) do
    local a, b = self.prediction.peak.categories[name], own.peak.categories[name]
    rows[i] = {name = name, pytorch_bytes = a, memtide_bytes = b, reason = a == b and "" or paged and name == "optimizer" and PAGED or WHY[name]}
  end
  return rows
end

local function print_tables(self, groups)
  local found, own = self.prediction, own_step(self)
  local function out(line) util.must_write("standard output", io.stdout:write(line, "\n")) end
  out(("%s, %s, batch %d, %s, on %s"):format(self.experiment.name, self.name, self.settings.batch,
    self.settings.precision, cell.device(self.settings.device):info().name))
  out(("max_memory_allocated %d, at %s%s"):format(found.max_memory_allocated, found.peak.op,
    between(found, found.allocated_least, found.allocated_most)))
  out(("max_memory_reserved  %d%s"):format(found.max_memory_reserved,
    between(found, found.reserved_least, found.reserved_most)))
  out(device_line(self))
  out(time_line(self))
  local convolutions = convolutions_line(self)
  if convolutions then out(convolutions) end
  out ""
  local lines = {{"", "PyTorch", "MiB", "memtide", "MiB", "why they differ"}}
  for _, row in ipairs(compare(self, own)) do
    lines[#lines + 1] = {row.name, row.pytorch_bytes, mib(row.pytorch_bytes), row.memtide_bytes, mib(row.memtide_bytes),
      row.reason}
  end
  lines[#lines + 1] = {"total", found.peak.bytes, mib(found.peak.bytes), own.peak.bytes, mib(own.peak.bytes),
    ("memtide's peak is at %s"):format(own.peak.op == "" and "the start" or own.peak.op)}
  for _, line in ipairs(report.columns(lines, {true, [6] = true})) do out(line) end
  out ""
  lines = {{"alive at PyTorch's peak", "MiB", "times", "category", "layer", "line"}}
  for i = 1, math.min(#groups, LARGEST) do
    local group = groups[i]
    local size = mib(group.bytes * group.count)
    lines[#lines + 1] = {group.op, size, group.count, group.category, group.layer, group.where}
  end
  for _, line in ipairs(report.columns(lines, {true, [4] = true, [5] = true, [6] = true})) do out(line) end
  if #groups > LARGEST then out(("and %d smaller lines; --csv has all"):format(#groups - LARGEST)) end
end

local COLUMNS = {"bytes", "count", "category", "op", "layer", "where"}

local function write_table(path, groups)
  local lines = {csv.line(COLUMNS, #COLUMNS)}
  for _, group in ipairs(groups) do
    local values = {}
    for i, name in ipairs(COLUMNS) do values[i] = group[name] end
    lines[#lines + 1] = csv.line(values, #COLUMNS)
  end
  local text = table.concat(lines)
  if path == "-" then return util.must_write("standard output", io.stdout:write(text)) end
  util.replace(path, function(put) put(text) end)
end

-- ---- JSON: docs/json.md

local FIELDS = {"experiment", "case", "device", "framework", "batch", "precision", "max_memory_allocated",
  "allocated_least", "allocated_most", "max_memory_reserved", "reserved_least", "reserved_most", "estimated", "peak_op",
  "memtide_peak_bytes", "least_seconds", "flops", "bytes_moved", "categories", "convolutions", "tensors"}

local function print_json(self, groups)
  local found, own, v = self.prediction, own_step(self), self.values
  local flops, bytes = self.program:cost()
  local object = {experiment = self.experiment.name, case = self.name, device = v.device, framework = "pytorch",
    batch = v.batch, precision = v.precision, peak_op = found.peak.op, memtide_peak_bytes = own.peak.bytes,
    least_seconds = self.program:floor(), flops = flops, bytes_moved = bytes, categories = compare(self, own),
    convolutions = self.program:convolutions(), tensors = {}, estimated = found.estimated or false}
  for _, name in ipairs{"max_memory_allocated", "allocated_least", "allocated_most", "max_memory_reserved",
    "reserved_least", "reserved_most"} do
    object[name] = found[name]
  end
  for i, group in ipairs(groups) do
    local one = {}
    for _, name in ipairs(COLUMNS) do one[name] = group[name] end
    object.tensors[i] = one
  end
  util.must_write("standard output", io.stdout:write(report.json(object, FIELDS), "\n"))
end

-- self: the compiled cell; given.csv: a file for the tensors at the peak, or "-" for standard output; nil: tables for
-- reading, or JSON.
return function(self, given)
  local groups = grouped(util.must(self.program:alive(self.prediction.peak.event)))
  if given.csv then write_table(given.csv, groups) end
  if given.json then print_json(self, groups)
  elseif not given.csv then print_tables(self, groups) end
  return 0
end
