-- memtide explain: the memory of the first cell by hand, layer by layer, beside what the step really needs, and why they
-- differ.
local countings = require "memtide.net.countings"
local csv = require "memtide.results.csv"
local explain_pytorch = require "memtide.cli.explain_pytorch"
local first_cell = require "memtide.cli.first_cell"
local hand = require "memtide.net.hand"
local options = require "memtide.cli.options"
local report = require "memtide.results.report"
local tree = require "memtide.results.tree"
local util = require "memtide.base.util"

local COUNTINGS = table.concat(countings.names, " ")

local explain = {words = "SCRIPT [-- ARGS]",
  text = "the memory of the first cell by hand: a row per layer, totals per category",
  options = {options.csv, options.CELL, options.rank, options.depth, options.json,
    {name = "counting", argument = "NAME", completes = {words = COUNTINGS},
      text = "whose outputs are counted by hand: outputs, article or table (default: the script's, or outputs)"}}}

function explain.check(given)
  if not given.counting or countings.list[given.counting] then return end
  util.fail_usage('explain: --counting: expected one of %s, found "%s"%s', COUNTINGS, given.counting,
    util.meant(given.counting, countings.names))
end

-- ---- tables for reading

local function shape_text(shape) return "(" .. table.concat(shape, ", ") .. ")" end

local function units(bytes)
  return ("%d"):format(bytes), ("%.2f"):format(bytes / 2 ^ 20), ("%.2f"):format(bytes / 1e6)
end

local function percent(part, whole) return whole > 0 and ("%.1f"):format(100 * part / whole) or "" end

-- The layers as a tree, in which equal blocks are one line with the sums of all of them.
local function tree_of(rows)
  local blocks = {}
  for i, row in ipairs(rows) do
    blocks[i] = {path = row.path, layer = row, same = table.concat({row.kind, row.options, shape_text(row.shape), row.parameters,
      row.frozen, row.parameter_bytes, row.activation_bytes, tostring(row.counted)}, " ")}
  end
  return tree.build(blocks, function(block)
    local row = block.layer
    return {parameters = row.parameters, bytes = row.parameter_bytes, outputs = row.activation_bytes}
  end)
end

local function kind_of(block) return block.layer.kind end

-- What text(layer) says of the layers of a node, each text once
local function said(node, text)
  local out, seen = {}, {[""] = true}
  for _, one in ipairs(tree.texts(node, function(block) return text(block.layer) end)) do
    if not seen[one] then out[#out + 1], seen[one] = one, true end
  end
  return table.concat(out, ", ")
end

-- "*", " frozen"; of layers that repeat in turns with the kind for which it holds
local function mark(node)
  return said(node, function(layer)
    local text = (layer.counted and "*" or "") .. (layer.frozen > 0 and " frozen" or "")
    return text ~= "" and node.pattern and text .. " " .. layer.kind or text
  end)
end

local function print_layers(out, rows, depth)
  local lines = {{"layer", "kind", "output", "parameters", "bytes", "output bytes", "MiB", "MB", "% par", "% out", ""}}
  local root = tree_of(rows)
  tree.each(root, depth, function(node, name)
    local sums = node.sums
    local bytes, mib, mb = units(sums.outputs)
    lines[#lines + 1] = {name, tree.kind(node, kind_of), said(node, function(layer) return shape_text(layer.shape) end),
      sums.parameters, sums.bytes, bytes, mib, mb, percent(sums.parameters, root.sums.parameters), percent(sums.outputs, root.sums.outputs), mark(node)}
  end)
  for _, line in ipairs(report.columns(lines, {true, true, true, [11] = true})) do out(line) end
end

local function print_cell(out, cell, rows, comparison, given)
  local counting, peak = hand.counting(cell, given.counting), cell.prediction.peak.bytes
  out(("%s, %s, batch %d, %s"):format(cell.experiment.name, cell.name, cell.settings.batch, cell.settings.precision))
  print_layers(out, rows, given.depth)
  local parameters, frozen = cell.network:parameters()
  out(("%d parameters%s; * %s\n"):format(parameters, frozen > 0 and (", %d of these frozen"):format(frozen) or "",
    counting.note))
  local lines = {{"", counting.title, "MiB", "MB", "the step", "MiB", "MB", "%", "why"}}
  for i, row in ipairs(comparison) do
    local a, amib, amb = units(row.hand)
    local s, smib, smb = units(row.step)
    lines[i + 1] = {row.name, a, amib, amb, s, smib, smb, percent(row.step, peak), row.reason}
  end
  for _, row in ipairs(hand.host(cell)) do
    local s, smib, smb = units(row.bytes)
    lines[#lines + 1] = {row.name, "", "", "", s, smib, smb, "", "beside the peak, in the host's memory: " .. row.reason}
  end
  for _, line in ipairs(report.columns(lines, {true, [9] = true})) do out(line) end
  out ""
end

-- ---- JSON: docs/json.md

local FIELDS = {"experiment", "case", "device", "framework", "batch", "precision", "counting", "parameters",
  "frozen_parameters", "hand_bytes", "peak_bytes", "peak_op", "categories", "host", "layers"}

local function json_cell(out, cell, rows, comparison, given)
  local parameters, frozen = cell.network:parameters()
  local total = table.remove(comparison)
  local object = {experiment = cell.experiment.name, case = cell.name, device = cell.values.device, framework = "memtide",
    batch = cell.settings.batch, precision = cell.settings.precision, counting = hand.counting(cell, given.counting).name,
    parameters = parameters, frozen_parameters = frozen, hand_bytes = total.hand, peak_bytes = total.step,
    peak_op = cell.prediction.peak.op, categories = {}, host = hand.host(cell), layers = {}}
  for i, row in ipairs(comparison) do
    object.categories[i] = {name = row.name, hand_bytes = row.hand, step_bytes = row.step, reason = row.reason}
  end
  for i, row in ipairs(rows) do
    object.layers[i] = {path = row.path, kind = row.kind, options = row.options, output = row.shape,
      parameters = row.parameters, frozen_parameters = row.frozen, parameter_bytes = row.parameter_bytes,
      output_bytes = row.activation_bytes, counted = row.counted}
  end
  out(report.json(object, FIELDS))
end

-- ---- CSV

local COLUMNS = {"experiment", "case", "row", "name", "kind", "output", "parameters", "parameter_bytes",
  "activation_bytes", "hand_bytes", "hand_mib", "hand_mb", "step_bytes", "step_mib", "step_mb", "reason"}
local HEADER = table.concat(COLUMNS, ",")

local function csv_line(values)
  local list = {}
  for i, name in ipairs(COLUMNS) do list[i] = values[name] end
  return csv.line(list, #COLUMNS):sub(1, -2)
end

local function csv_cell(out, cell, rows, comparison)
  local who = {experiment = cell.experiment.name, case = cell.name}
  out(HEADER)
  for _, row in ipairs(rows) do
    local counted = row.counted and row.activation_bytes or nil
    local bytes, mib, mb = units(counted or 0)
    out(csv_line{experiment = who.experiment, case = who.case, row = "layer", name = row.path, kind = row.kind,
      output = shape_text(row.shape), parameters = row.parameters, parameter_bytes = row.parameter_bytes,
      activation_bytes = row.activation_bytes, hand_bytes = counted and bytes, hand_mib = counted and mib,
      hand_mb = counted and mb})
  end
  for _, row in ipairs(comparison) do
    local a, amib, amb = units(row.hand)
    local s, smib, smb = units(row.step)
    out(csv_line{experiment = who.experiment, case = who.case, row = row.name == "total" and "total" or "category",
      name = row.name, hand_bytes = a, hand_mib = amib, hand_mb = amb,
      step_bytes = s, step_mib = smib, step_mb = smb, reason = row.reason})
  end
  for _, row in ipairs(hand.host(cell)) do
    local s, smib, smb = units(row.bytes)
    out(csv_line{experiment = who.experiment, case = who.case, row = "host", name = row.name, step_bytes = s, step_mib = smib,
      step_mb = smb, reason = row.reason})
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

-- given.csv: a file for the table, or "-" for standard output; nil: tables for reading, or JSON, on standard output.
function explain.run(experiment, given)
  local cell, path = first_cell(experiment, given), given.csv
  if cell.round then
    util.fail_usage("explain: not offered with trainings, as its rule is for one network; memtide predict and dump say what they need")
  end
  if cell.settings.framework == "pytorch" then return explain_pytorch(cell, given) end
  local rows = hand.layers(cell, given.counting)
  local function write(name, file, show)
    show(function(line) util.must_write(name, file:write(line, "\n")) end, cell, rows,
      hand.compare(cell, hand.sum(cell, rows), given.counting), given)
  end
  if path and path ~= "-" then
    local file = open_table(path)
    write(path, file, csv_cell)
    util.must_write(path, file:close())
  end
  local show = given.json and json_cell or path == "-" and csv_cell or not path and print_cell
  if show then write("standard output", io.stdout, show) end
  return 0
end

return explain
