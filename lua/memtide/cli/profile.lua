-- memtide profile: where the time of the first cell's step goes, by layer and by op, and how far that is from the roof of
-- the machine.
local csv = require "memtide.results.csv"
local estimate = require "memtide.sweep.estimate"
local first_cell = require "memtide.cli.first_cell"
local options = require "memtide.cli.options"
local perfetto = require "memtide.picture.perfetto"
local profile = require "memtide.net.profile"
local report = require "memtide.results.report"
local step = require "memtide.picture.step"
local tree = require "memtide.results.tree"
local util = require "memtide.base.util"

local SHOWN = 20 -- ops in the table

local command = {words = "SCRIPT [-- ARGS]",
  text = "where the time of the first cell's step goes, by layer and op, beside the machine's roof",
  options = {options.csv, options.PLAN, options.depth, options.json, options.perfetto,
    {name = "ops", argument = "N", take = options.whole("ops", 0),
      text = "how many of the slowest ops are shown (20); --csv and --json have all"}}}

-- ---- layers

local PHASES = {"forward", "backward", "update"}

-- What the ops of each layer sum up to, in the network's order, then what belongs to no layer: {{path, kind, same,
-- seconds, forward_seconds, backward_seconds, update_seconds, flops, bytes, roof_seconds}, ...}
local function layers_of(cell, ops)
  local rows, by_path = {}, {}
  local function row_of(path, layer)
    local row = by_path[path]
    if not row then
      row = {path = path, kind = layer and layer.kind or "", same = layer and layer.kind .. " " .. layer.text or "",
        seconds = 0, forward_seconds = 0, backward_seconds = 0, update_seconds = 0, flops = 0, bytes = 0, roof_seconds = 0}
      by_path[path], rows[#rows + 1] = row, row
    end
    return row
  end
  for _, layer in ipairs(cell.network:layers()) do row_of(layer.path, layer) end
  for _, op in ipairs(ops) do
    local row, phase = row_of(op.layer), op.phase .. "_seconds"
    row[phase] = row[phase] + op.seconds
    for _, name in ipairs{"seconds", "flops", "bytes", "roof_seconds"} do row[name] = row[name] + (op[name] or 0) end
  end
  return rows
end

local NUMBERS = {"seconds", "forward_seconds", "backward_seconds", "update_seconds", "flops", "bytes", "roof_seconds"}

local function numbers(row)
  local out = {}
  for _, name in ipairs(NUMBERS) do out[name] = row[name] end
  return out
end

-- ---- tables for reading

local function ms(seconds) return seconds ~= 0 and ("%.3f"):format(seconds * 1e3) or "" end
local function giga(rate) return rate and ("%.1f"):format(rate / 1e9) or "" end
local function percent(share) return share and ("%.0f"):format(100 * share) or "" end
local function part(seconds, whole) return seconds ~= 0 and ("%.1f"):format(100 * seconds / whole) or "" end

local function print_layers(rows, found, roof, depth)
  local lines = {{"layer", "kind", "ms", "%", "forward", "backward", "update", "GFLOP/s", "GB/s", "% of roof"}}
  tree.each(tree.build(rows, numbers), depth, function(node, name)
    local sums = profile.rates(node.sums, roof)
    lines[#lines + 1] = {name, node.row and node.row.kind or "", ms(sums.seconds), part(sums.seconds, found.ops_seconds),
      ms(sums.forward_seconds), ms(sums.backward_seconds), ms(sums.update_seconds), giga(sums.flops_per_s),
      giga(sums.bytes_per_s), percent(sums.roof_share)}
  end)
  for _, line in ipairs(report.columns(lines, {true, true})) do print(line) end
end

-- The ops of the profile that take time, as views do not, the slowest first
local function slowest(ops)
  local list = {}
  for _, op in ipairs(ops) do if op.seconds > 0 then list[#list + 1] = op end end
  table.sort(list, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.op < b.op
  end)
  return list
end

local function print_ops(found, most)
  local lines, list = {{"op", "", "", "phase", "ms", "%", "GFLOP/s", "GB/s", "% of roof", "bound by"}}, slowest(found.ops)
  for i = 1, math.min(#list, most) do
    local op = list[i]
    lines[i + 1] = {op.op, op.kind .. (op.recomputed and ", again" or ""), op.path, op.phase, ms(op.seconds),
      part(op.seconds, found.ops_seconds), giga(op.flops_per_s), giga(op.bytes_per_s), percent(op.roof_share), op.bound or ""}
  end
  for _, line in ipairs(report.columns(lines, {[2] = true, [3] = true, [4] = true, [10] = true})) do print(line) end
  if #list > most then print(("and %d faster ops; --csv and --json have all"):format(#list - most)) end
end

local function print_head(cell, found, roof)
  local device, settings = found.device, cell.settings
  print(("%s, %s, batch %d, %s, on %s%s"):format(cell.experiment.name, cell.name, settings.batch, settings.precision,
    device.name, device.threads and (", %d thread%s"):format(device.threads, device.threads == 1 and "" or "s") or ""))
  print(("roof: %s GFLOP/s (%s), %s GB/s (%s)"):format(giga(roof.flops), roof.flops_source,
    roof.bytes and giga(roof.bytes) or "?", roof.bytes_source))
  print(("medians of %d steps as a whole and %d op by op, in turns; of each op %s of timing are taken off\n"):format(found.steps,
    found.steps, estimate.show(found.timing_seconds)))
end

local function spread(found)
  return ("%s ms (least %s, nine of ten below %s)"):format(ms(found.seconds), ms(found.seconds_min), ms(found.seconds_p90))
end

local ABOVE = "above 100 % of the roof: a cache holds the bytes, or the op needs fewer operations than the plain product that is "
  .. "counted (Winograd)"

local function print_sums(found)
  local sums, roof, above = {forward = 0, backward = 0, update = 0}, 0, false
  for _, op in ipairs(found.ops) do
    sums[op.phase] = sums[op.phase] + op.seconds
    roof, above = roof + (op.roof_seconds or 0), above or (op.roof_share or 0) > 1
  end
  local words = {}
  for _, phase in ipairs(PHASES) do
    if sums[phase] > 0 then words[#words + 1] = ("%s %s"):format(phase, ms(sums[phase])) end
  end
  print(("\nall ops   %s ms: %s%s"):format(ms(found.ops_seconds), table.concat(words, ", "),
    roof > 0 and ("; at the roof %s (%s %%)"):format(ms(roof), percent(roof / found.ops_seconds)) or ""))
  local step = found.step
  local between = step.seconds - found.ops_seconds
  print(("the step  %s; %+.3f ms, %+.1f %%, beside all ops"):format(spread(step), 1e3 * between, 100 * between / step.seconds))
  print(("op by op  %s"):format(spread(found.timed)))
  if above then print(ABOVE) end
end

-- ---- CSV and JSON: docs/json.md

local OP = {"op", "kind", "layer", "path", "phase", "recomputed", "times", "seconds", "seconds_min", "seconds_p90", "flops",
  "bytes", "flops_per_s", "bytes_per_s", "roof_share", "bound"}
local LAYER = {"path", "kind", "seconds", "forward_seconds", "backward_seconds", "update_seconds", "flops", "bytes",
  "flops_per_s", "bytes_per_s", "roof_share"}
local FIELDS = {"experiment", "case", "device", "device_name", "threads", "batch", "precision", "steps", "step_seconds",
  "step_seconds_min", "step_seconds_p90", "timed_step_seconds", "ops_seconds", "timing_seconds", "roof", "layers", "ops"}

local function chosen(one, names)
  local out = {}
  for _, name in ipairs(names) do out[name] = one[name] end
  return out
end

local function json_of(cell, found, roof, rows)
  local object = {experiment = cell.experiment.name, case = cell.name, device = cell.values.device,
    device_name = found.device.name, threads = found.device.threads, batch = cell.settings.batch,
    precision = cell.settings.precision, steps = found.steps, step_seconds = found.step.seconds,
    step_seconds_min = found.step.seconds_min, step_seconds_p90 = found.step.seconds_p90,
    timed_step_seconds = found.timed.seconds, ops_seconds = found.ops_seconds,
    timing_seconds = found.timing_seconds, layers = {}, ops = {},
    roof = {flops_per_s = roof.flops, bytes_per_s = roof.bytes, flops_source = roof.flops_source, bytes_source = roof.bytes_source}}
  for i, row in ipairs(rows) do object.layers[i] = chosen(profile.rates(row, roof), LAYER) end
  for i, op in ipairs(found.ops) do object.ops[i] = chosen(op, OP) end
  return report.json(object, FIELDS)
end

local function write_csv(path, cell, ops)
  local head = {"experiment", "case", table.unpack(OP)}
  local lines = {csv.line(head, #head)}
  for i, op in ipairs(ops) do
    local values = {cell.experiment.name, cell.name}
    for k, name in ipairs(OP) do values[k + 2] = op[name] end
    lines[i + 1] = csv.line(values, #head)
  end
  local text = table.concat(lines)
  if path == "-" then return util.must_write("standard output", io.stdout:write(text)) end
  util.replace(path, function(put) put(text) end)
end

function command.run(experiment, given)
  local cell = first_cell(experiment, given)
  if cell.round then util.fail_usage "profile: not offered with trainings: a round has the steps of several networks" end
  if cell.settings.framework == "pytorch" then
    util.fail_usage "profile: PyTorch's step is predicted and never run: expected --set framework=memtide"
  end
  local roof = profile.roof(cell)
  local found = profile.measure(cell, roof)
  local rows = layers_of(cell, found.ops)
  if given.perfetto then
    local seconds = {}
    for i, op in ipairs(found.ops) do seconds[i] = op.seconds end
    perfetto.write(step.facts(cell), given.perfetto, cell.program:ops(), seconds)
  end
  if given.csv then write_csv(given.csv, cell, found.ops) end
  if given.json then print(json_of(cell, found, roof, rows))
  elseif given.csv ~= "-" then
    print_head(cell, found, roof)
    print_layers(rows, found, roof, given.depth)
    print()
    print_ops(found, given.ops or SHOWN)
    print_sums(found)
  end
  return 0
end

return command
