-- The hand calculation of a step's memory, beside what the step really needs, and why they differ.
--
-- It counts, for any network: the parameters; a gradient and the optimizer's states for each parameter that is not
-- frozen; as activations the outputs of layers, of which a counting of countings.lua says which; the input. Each has the
-- type in which the step's precision stores it. It leaves out activation gradients, other outputs, labels, and master
-- copies or 16-bit copies of weights.
local categories = require "memtide.results.columns".categories
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local countings = require "memtide.net.countings"
local nn = require "memtide.net.nn"
local util = require "memtide.base.util"

local hand = {}

-- The step's buffers by name: a parameter's buffer has the parameter's name, a layer's output is PATH.y.
local function by_name(self)
  local found = {}
  for _, buf in ipairs(self.program:bufs()) do found[buf.name] = buf end
  return found
end

-- Number of elements in the parameters, how many of these are frozen, and the bytes of all.
local function elements(params, bufs)
  local n, frozen, bytes = 0, 0, 0
  for _, param in ipairs(params) do
    n, bytes = n + param.elements, bytes + param.elements * bufs[param.name].width
    if not param.trainable then frozen = frozen + param.elements end
  end
  return n, frozen, bytes
end

-- ---- by hand

-- A row per layer: {path, kind, options, shape, parameters, frozen, parameter_bytes, activation_bytes, counted};
-- counted: does the counting, by its name (nil: the script's), count its output? A layer that is used again has its
-- parameters in its first row. A layer that emits no op has the type of its input.
function hand.layers(self, counting)
  local rows, bufs, layers = {}, by_name(self), self.network:layers()
  local width = bufs[self.program:names().input].width
  local counts = hand.counting(self, counting).counts(layers)
  for i, layer in ipairs(layers) do
    local n, frozen, bytes = elements(layer.params, bufs)
    local output = bufs[layer.path == "" and "y" or layer.path .. ".y"]
    width = output and output.width or width
    rows[i] = {path = layer.path, kind = layer.kind, options = layer.text, shape = layer.out, parameters = n,
      frozen = frozen, parameter_bytes = bytes, activation_bytes = util.product(layer.out) * width, counted = counts[i] or false}
  end
  return rows
end

-- The counting of that name; nil: the one that the cell's script names, or the first.
function hand.counting(self, name) return countings.of(name or self.experiment.base.counting) end

-- The bytes by category, and their total; rows: of hand.layers.
function hand.sum(self, rows)
  local bufs, target = by_name(self), self.program:names().target
  local sum = {weights = 0, gradients = 0, optimizer = 0, activations = 0, activation_gradients = 0, input = 0,
    workspace = 0, other = 0}
  for name, buf in pairs(bufs) do
    if buf.kind == "input" and name ~= target then sum.input = sum.input + buf.bytes end
  end
  for _, param in ipairs(self.network:params()) do
    local weight = bufs[param.name]
    local bytes = param.elements * weight.width
    sum.weights = sum.weights + bytes
    if param.trainable then
      sum.gradients = sum.gradients + bytes
      sum.optimizer = sum.optimizer
        + core.optimizer_bytes(self.settings.optimizer, param.shape, bufs[weight.master or param.name].dtype)
    end
  end
  for _, row in ipairs(rows) do
    if row.counted then sum.activations = sum.activations + row.activation_bytes end
  end
  sum.total = 0
  for _, name in ipairs(categories) do sum.total = sum.total + sum[name] end
  return sum
end

-- ---- why they differ

-- The buffers of one category on the device, without views
local function buffers(self, category)
  local found = {}
  for _, buf in ipairs(self.program:bufs()) do
    if buf.category == category and not buf.alias and not buf.host then found[#found + 1] = buf end
  end
  return found
end

local function total(bufs)
  local n = 0
  for _, buf in ipairs(bufs) do n = n + buf.bytes end
  return n
end

-- {category = function(self, bytes by hand, step's bytes) -> why they differ}
local REASONS = {}

-- Does the rank have shards, or slices, of what is counted here by hand as a whole?
local function is_divided(self, category)
  for _, buf in ipairs(self.program:bufs()) do if buf.category == category and buf.divided then return true end end
  return false
end

function REASONS.weights(self)
  local precision = self.settings.precision
  if is_divided(self, "weights") then
    return ("rank %d's part of the weights, of their copies too, and those that are whole at %s"):format(self.prediction.rank, self.prediction.peak.op)
  end
  if precision:find "^amp" then return "16-bit copies that are alive at the peak, beside the fp32 weights" end
  if precision:find "^master" then return "16-bit weights and their fp32 master copies" end
  return "running statistics too, which are no parameters"
end

function REASONS.gradients(self, _, step)
  if self.settings.mode == "eval" then return "evaluation makes no gradients" end
  local all = total(buffers(self, "gradients"))
  if step < all then
    return ("at %s only some of the step's %d bytes of gradients exist"):format(self.prediction.peak.op, all)
  end
  return "accumulation keeps sums beside a micro-batch's own gradients"
end

-- The bytes of a paged optimizer's states in the host's memory, with the alignment
local function paged_bytes(self)
  local n = 0
  for _, buf in ipairs(util.must(self.program:step()).bufs) do if buf.host and buf.always then n = n + buf.size end end
  return n
end

function REASONS.optimizer(self, by_hand, step)
  if self.settings.mode == "eval" then return "evaluation has no optimizer" end
  local paged = paged_bytes(self)
  if paged > 0 then
    return ("%d bytes of states wait in the host's memory, and visit the device for their parameter's update"):format(paged)
  end
  if is_divided(self, "optimizer") then return ("rank %d's part of the states"):format(self.prediction.rank) end
  return ("%d bytes of step count%s"):format(step - by_hand,
    self.settings.schedule and ", loss scale and learning rate" or " and loss scale")
end

local SIXTEEN = {f16 = true, bf16 = true}

-- "the step's 160 bytes of outputs, 40 of these in 16 bits"
local function outputs_text(self)
  local halves, all = {}, buffers(self, "activations")
  for _, buf in ipairs(all) do if SIXTEEN[buf.dtype] then halves[#halves + 1] = buf end end
  local text = ("the step's %d bytes of outputs"):format(total(all))
  return #halves == 0 and text or ("%s, %d of these in 16 bits"):format(text, total(halves))
end

-- A note about max pooling, whose index replaces its input for the backward pass
local function pooling_text(self)
  for _, buf in ipairs(buffers(self, "activations")) do
    if buf.name:find "idx$" then return "; of a map that only a max pooling reads, an index is kept" end
  end
  return ""
end

-- A note about outputs that are computed twice
local function again_text(self)
  if self.settings.checkpoint ~= "none" then return "; checkpointing drops the others and computes them again" end
  for _, buf in ipairs(buffers(self, "activations")) do
    if buf.name:find "%.again$" then return "; light ops make others again: recompute_light" end
  end
  return ""
end

function REASONS.activations(self, by_hand, step)
  if self.settings.mode == "eval" then return "each output is freed after its last reader" end
  if step > by_hand then
    return ("of %s: also outputs of layers without parameters, casts, pooling indices, and the last output, whose "
      .. "storage its gradient takes over%s"):format(outputs_text(self), again_text(self))
  end
  local host = self.prediction.host - paged_bytes(self)
  return ("of %s: those that are alive at %s%s%s%s"):format(outputs_text(self), self.prediction.peak.op,
    pooling_text(self), again_text(self),
    host == 0 and "" or ("; others wait in %d bytes of the host's memory"):format(host))
end

function REASONS.activation_gradients(_, _, _, counting)
  return ("the backward pass needs gradients of outputs beside the outputs; %s leaves them out"):format(counting.who)
end

function REASONS.input(self, _, step)
  local target = self.program:names().target
  local gone = step == 0
  for _, buf in ipairs(buffers(self, "input")) do gone = gone or buf.name == target and buf.bytes == step end
  if gone then return ("the inputs are not needed any more at %s"):format(self.prediction.peak.op) end
  return "labels or targets come with the inputs"
end

function REASONS.workspace() return "scratch that the library asks for in the op at the peak" end

function REASONS.other(self)
  local weights = ""
  for _, term in ipairs(nn.terms(self.values.loss)) do
    if term.options.weight then weights = ", its class weights" end
  end
  return ("the loss%s, and rounding of every tensor to the device's alignment"):format(weights)
end

-- {{name =, hand =, step =, reason =}, ...} in bytes, for each category, then the total; sum: of hand.sum; counting: a
-- name, or nil as above.
function hand.compare(self, sum, counting)
  local rows, peak, counted = {}, self.prediction.peak, hand.counting(self, counting)
  for i, name in ipairs(categories) do
    local a, s = sum[name], peak.categories[name]
    rows[i] = {name = name, hand = a, step = s, reason = a == s and "" or REASONS[name](self, a, s, counted)}
  end
  rows[#rows + 1] = {name = "total", hand = sum.total, step = peak.bytes,
    reason = ("the peak, at %s"):format(peak.op == "" and "the start" or peak.op)}
  return rows
end

-- What the host's memory holds for the step, which the peak does not count: {{name =, bytes =, reason =}, ...}, those
-- that are there.
function hand.host(self)
  local rows, paged = {}, self.prediction.host > 0 and paged_bytes(self) or 0
  if self.prediction.host > paged then
    rows[1] = {name = "offloaded", bytes = self.prediction.host - paged, reason = "activations that wait in the host's memory"}
  end
  if paged > 0 then rows[#rows + 1] = {name = "paged", bytes = paged, reason = "the optimizer's states, which wait there"} end
  if self.values.prefetch ~= 0 then
    local loader <close> = util.must(cell.loader(self))
    local info = loader:info()
    if info.prefetch > 0 then
      rows[#rows + 1] = {name = "prefetched", bytes = info.bytes,
        reason = ("%d batches that are read ahead, and the order of the samples"):format(info.prefetch)}
    end
  end
  return rows
end

return hand
