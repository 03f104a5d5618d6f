-- memtide explain: the hand calculation of an article, layer by layer, beside what the step really needs, and why they
-- differ.
--
-- The article's rule, for any network, counts: the parameters; a gradient and the optimizer's states for each parameter
-- that is not frozen; as activations the outputs of all layers with parameters but the last; the input. Each has the
-- type in which the step's precision stores it. The rule leaves out activation gradients, outputs of other layers,
-- labels, and master copies or 16-bit copies of weights.
local categories = require "memtide.results.columns".categories
local core = require "memtide.core"
local csv = require "memtide.results.csv"
local explain_pytorch = require "memtide.cli.explain_pytorch"
local first_cell = require "memtide.cli.first_cell"
local nn = require "memtide.net.nn"
local options = require "memtide.cli.options"
local report = require "memtide.results.report"
local util = require "memtide.base.util"

local explain = {words = "SCRIPT [-- ARGS]",
  text = "the memory of the first cell by hand: a row per layer, totals per category",
  options = {options.csv, options.CELL}}

local function product(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end

-- The step's buffers by name: a parameter's buffer has the parameter's name, a layer's output is PATH.y.
local function by_name(cell)
  local found = {}
  for _, buf in ipairs(cell.program:bufs()) do found[buf.name] = buf end
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

-- ---- the article's side

-- A row per layer: {path, kind, options, shape, parameters, frozen, parameter_bytes, activation_bytes, counted};
-- counted: does the article count its output? A layer that is used again has its parameters in its first row. A layer
-- that emits no op has the type of its input.
function explain.layers(cell)
  local rows, last, bufs = {}, 0, by_name(cell)
  local width = bufs[cell.program:names().input].width
  for i, layer in ipairs(cell.network:layers()) do
    local n, frozen, bytes = elements(layer.params, bufs)
    local output = bufs[layer.path == "" and "y" or layer.path .. ".y"]
    if layer.weighted then last = i end
    width = output and output.width or width
    rows[i] = {path = layer.path, kind = layer.kind, options = layer.text, shape = layer.out, parameters = n,
      frozen = frozen, parameter_bytes = bytes, activation_bytes = product(layer.out) * width,
      counted = layer.weighted}
  end
  if rows[last] then rows[last].counted = false end
  return rows
end

-- The article's bytes by category, and their total.
function explain.article(cell, rows)
  local bufs, input = by_name(cell), cell.network:shapes()
  local sum = {weights = 0, gradients = 0, optimizer = 0, activations = 0, activation_gradients = 0,
    input = product(input) * bufs[cell.program:names().input].width, workspace = 0, other = 0}
  for _, param in ipairs(cell.network:params()) do
    local weight = bufs[param.name]
    local bytes = param.elements * weight.width
    sum.weights = sum.weights + bytes
    if param.trainable then
      sum.gradients = sum.gradients + bytes
      sum.optimizer = sum.optimizer
        + core.optimizer_bytes(cell.settings.optimizer, param.shape, bufs[weight.master or param.name].dtype)
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
local function buffers(cell, category)
  local found = {}
  for _, buf in ipairs(cell.program:bufs()) do
    if buf.category == category and not buf.alias and not buf.host then found[#found + 1] = buf end
  end
  return found
end

local function total(bufs)
  local n = 0
  for _, buf in ipairs(bufs) do n = n + buf.bytes end
  return n
end

-- {category = function(cell, article's bytes, step's bytes) -> why they differ}
local REASONS = {}

function REASONS.weights(cell)
  local precision = cell.settings.precision
  if precision:find "^amp" then return "16-bit copies that are alive at the peak, beside the fp32 weights" end
  if precision:find "^master" then return "16-bit weights and their fp32 master copies" end
  return "running statistics too, which are no parameters"
end

function REASONS.gradients(cell, _, step)
  if cell.settings.mode == "eval" then return "evaluation makes no gradients" end
  local all = total(buffers(cell, "gradients"))
  if step < all then
    return ("at %s only some of the step's %d bytes of gradients exist"):format(cell.prediction.peak.op, all)
  end
  return "accumulation keeps sums beside a micro-batch's own gradients"
end

function REASONS.optimizer(cell, article, step)
  if cell.settings.mode == "eval" then return "evaluation has no optimizer" end
  return ("%d bytes of step count%s"):format(step - article,
    cell.settings.schedule and ", loss scale and learning rate" or " and loss scale")
end

local SIXTEEN = {f16 = true, bf16 = true}

-- "the step's 160 bytes of outputs, 40 of these in 16 bits"
local function outputs_text(cell)
  local halves, all = {}, buffers(cell, "activations")
  for _, buf in ipairs(all) do if SIXTEEN[buf.dtype] then halves[#halves + 1] = buf end end
  local text = ("the step's %d bytes of outputs"):format(total(all))
  return #halves == 0 and text or ("%s, %d of these in 16 bits"):format(text, total(halves))
end

-- A note about max pooling, whose index replaces its input for the backward pass
local function pooling_text(cell)
  for _, buf in ipairs(buffers(cell, "activations")) do
    if buf.name:find "idx$" then return "; of a map that only a max pooling reads, an index is kept" end
  end
  return ""
end

function REASONS.activations(cell, article, step)
  if cell.settings.mode == "eval" then return "each output is freed after its last reader" end
  if step > article then
    return ("of %s: also outputs of layers without parameters, casts, pooling indices, and the last output, whose "
      .. "storage its gradient takes over"):format(outputs_text(cell))
  end
  local host = cell.prediction.host
  return ("of %s: those that are alive at %s%s%s%s"):format(outputs_text(cell), cell.prediction.peak.op,
    pooling_text(cell),
    cell.settings.checkpoint == "none" and "" or "; checkpointing drops the others and computes them again",
    host == 0 and "" or ("; others wait in %d bytes of the host's memory"):format(host))
end

function REASONS.activation_gradients()
  return "the backward pass needs gradients of outputs beside the outputs; the article leaves them out"
end

function REASONS.input(cell, _, step)
  local target = cell.program:names().target
  local gone = step == 0
  for _, buf in ipairs(buffers(cell, "input")) do gone = gone or buf.name == target and buf.bytes == step end
  if gone then return ("the inputs are not needed any more at %s"):format(cell.prediction.peak.op) end
  return "labels or targets come with the inputs"
end

function REASONS.workspace() return "scratch that the library asks for in the op at the peak" end

function REASONS.other(cell)
  local weights = ""
  for _, term in ipairs(nn.terms(cell.values.loss)) do
    if term.options.weight then weights = ", its class weights" end
  end
  return ("the loss%s, and rounding of every tensor to the device's alignment"):format(weights)
end

-- {{name =, article =, step =, reason =}, ...} in bytes, for each category, then the total.
function explain.compare(cell, article)
  local rows, peak = {}, cell.prediction.peak
  for i, name in ipairs(categories) do
    local a, s = article[name], peak.categories[name]
    rows[i] = {name = name, article = a, step = s, reason = a == s and "" or REASONS[name](cell, a, s)}
  end
  rows[#rows + 1] = {name = "total", article = article.total, step = peak.bytes,
    reason = ("the peak, at %s"):format(peak.op == "" and "the start" or peak.op)}
  return rows
end

-- ---- output

local function shape_text(shape) return "(" .. table.concat(shape, ", ") .. ")" end

local function units(bytes)
  return ("%d"):format(bytes), ("%.2f"):format(bytes / 2 ^ 20), ("%.2f"):format(bytes / 1e6)
end

local function print_cell(out, cell, rows, comparison)
  local lines = {{"layer", "kind", "output", "parameters", "bytes", "output bytes", "MiB", "MB", ""}}
  for i, row in ipairs(rows) do
    local bytes, mib, mb = units(row.activation_bytes)
    lines[i + 1] = {row.path == "" and "." or row.path, row.kind, shape_text(row.shape), row.parameters,
      row.parameter_bytes, bytes, mib, mb, (row.counted and "*" or "") .. (row.frozen > 0 and " frozen" or "")}
  end
  out(("%s, %s, batch %d, %s"):format(cell.experiment.name, cell.name, cell.settings.batch, cell.settings.precision))
  for _, line in ipairs(report.columns(lines, {true, true, true})) do out(line) end
  local parameters, frozen = cell.network:parameters()
  out(("%d parameters%s; * outputs that the article counts\n"):format(parameters,
    frozen > 0 and (", %d of these frozen"):format(frozen) or ""))
  lines = {{"", "article", "MiB", "MB", "the step", "MiB", "MB", "why"}}
  for i, row in ipairs(comparison) do
    local a, amib, amb = units(row.article)
    local s, smib, smb = units(row.step)
    lines[i + 1] = {row.name, a, amib, amb, s, smib, smb, row.reason}
  end
  for _, line in ipairs(report.columns(lines, {true, [8] = true})) do out(line) end
  out ""
end

local COLUMNS = {"experiment", "case", "row", "name", "kind", "output", "parameters", "parameter_bytes",
  "activation_bytes", "article_bytes", "article_mib", "article_mb", "step_bytes", "step_mib", "step_mb", "reason"}
local HEADER = table.concat(COLUMNS, ",")

local function csv_line(values)
  local list = {}
  for i, name in ipairs(COLUMNS) do list[i] = values[name] end
  return csv.line(list, #COLUMNS):sub(1, -2)
end

local function csv_cell(out, cell, rows, comparison)
  local who = {experiment = cell.experiment.name, case = cell.name}
  for _, row in ipairs(rows) do
    local counted = row.counted and row.activation_bytes or nil
    local bytes, mib, mb = units(counted or 0)
    out(csv_line{experiment = who.experiment, case = who.case, row = "layer", name = row.path, kind = row.kind,
      output = shape_text(row.shape), parameters = row.parameters, parameter_bytes = row.parameter_bytes,
      activation_bytes = row.activation_bytes, article_bytes = counted and bytes, article_mib = counted and mib,
      article_mb = counted and mb})
  end
  for _, row in ipairs(comparison) do
    local a, amib, amb = units(row.article)
    local s, smib, smb = units(row.step)
    out(csv_line{experiment = who.experiment, case = who.case, row = row.name == "total" and "total" or "category",
      name = row.name, article_bytes = a, article_mib = amib, article_mb = amb,
      step_bytes = s, step_mib = smib, step_mb = smb, reason = row.reason})
  end
end

-- Opens the file for the table. A table of an earlier explain is replaced; any other file, such as results, is an
-- error.
local function open_table(path)
  local file = io.open(path, "r")
  local start = file and file:read(#HEADER)
  if file then file:close() end
  if start and start ~= HEADER then
    local text = '"%s" is there already and was not written by explain: expected "%s...", found "%s"'
    error(util.failure(text:format(path, HEADER:sub(1, 19), start:match("^%C*"):sub(1, 40)), "file"), 0)
  end
  return util.must_write(path, io.open(path, "w"))
end

-- given.csv: a file for the table, or "-" for standard output; nil: tables for reading on standard output.
function explain.run(experiment, given)
  local cell, path = first_cell(experiment, given), given.csv
  if cell.round then
    util.fail_usage("explain: not offered with trainings, as the article's rule is for one network; memtide predict and dump say what they need")
  end
  if cell.settings.framework == "pytorch" then return explain_pytorch(cell, path) end
  local named = path ~= "-" and path or nil
  local file, name = named and open_table(path) or io.stdout, named or "standard output"
  local function out(line) util.must_write(name, file:write(line, "\n")) end
  if path then out(HEADER) end
  local rows = explain.layers(cell)
  local show = path and csv_cell or print_cell
  show(out, cell, rows, explain.compare(cell, explain.article(cell, rows)))
  if named then util.must_write(name, file:close()) end
  return 0
end

return explain
