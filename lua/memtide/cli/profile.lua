-- memtide profile: where the time of the first cell's step goes, by layer and by op, and how far that is from the roof of
-- the machine.
local csv = require "memtide.results.csv"
local first_cell = require "memtide.cli.first_cell"
local options = require "memtide.cli.options"
local perfetto = require "memtide.picture.perfetto"
local profile = require "memtide.net.profile"
local report = require "memtide.results.report"
local tables = require "memtide.sweep.profile_tables"
local step = require "memtide.picture.step"

local SHOWN = 20 -- ops in the table

local command = {words = "SCRIPT [-- ARGS]",
  text = "where the time of the first cell's step goes, by layer and op, beside the machine's roof",
  options = {options.csv, options.PLAN, options.depth, options.json, options.perfetto,
    {name = "ops", argument = "N", take = options.whole("ops", 0),
      text = "how many of the slowest ops are shown (20); --csv and --json have all"}}}

-- ---- tables for reading

local function print_all(cell, found, roof, rows, given)
  local what, limits, how = tables.head(cell, found, roof)
  print(("%s\n%s\n%s\n"):format(what, limits, how))
  local layers = tables.layer_lines(rows, found, roof, given.depth)
  for _, line in ipairs(report.columns(layers, layers.left)) do print(line) end
  print()
  local ops, left = tables.op_lines(found, given.ops or SHOWN)
  for _, line in ipairs(report.columns(ops, ops.left)) do print(line) end
  if left > 0 then print(("and %d faster ops; --csv and --json have all"):format(left)) end
  print()
  for _, line in ipairs(tables.sums(found)) do print(line) end
end

-- ---- CSV and JSON: docs/json.md

local OP = {"op", "kind", "layer", "path", "phase", "recomputed", "times", "seconds", "seconds_min", "seconds_p90", "flops",
  "bytes", "flops_per_s", "bytes_per_s", "roof_share", "bound"}
local LAYER = {"path", "kind", "seconds", "forward_seconds", "backward_seconds", "update_seconds", "flops", "bytes",
  "flops_per_s", "bytes_per_s", "roof_share"}
local FIELDS = {"experiment", "case", "device", "device_name", "threads", "batch", "precision", "steps", "step_seconds",
  "step_seconds_min", "step_seconds_p90", "timed_step_seconds", "ops_seconds", "roof_seconds", "timing_seconds", "roof", "layers", "ops"}

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
    timed_step_seconds = found.timed.seconds, ops_seconds = found.ops_seconds, roof_seconds = found.roof_seconds,
    timing_seconds = found.timing_seconds, layers = {}, ops = {},
    roof = {flops_per_s = roof.flops, bytes_per_s = roof.bytes, flops_source = roof.flops_source, bytes_source = roof.bytes_source}}
  for i, row in ipairs(rows) do object.layers[i] = chosen(profile.rates(row, roof), LAYER) end
  for i, op in ipairs(found.ops) do object.ops[i] = chosen(op, OP) end
  return report.json(object, FIELDS)
end

local function write_csv(path, cell, ops)
  local rows = {}
  for i, op in ipairs(ops) do
    local row = {experiment = cell.experiment.name, case = cell.name}
    for _, name in ipairs(OP) do row[name] = op[name] end
    rows[i] = row
  end
  csv.write(path, {"experiment", "case", table.unpack(OP)}, rows)
end

function command.run(experiment, given)
  local cell = first_cell(experiment, given)
  tables.check("profile", cell)
  local roof = profile.roof(cell)
  local found = profile.measure(cell, roof)
  local rows = tables.layers(cell, found.ops)
  if given.perfetto then
    local seconds = {}
    for i, op in ipairs(found.ops) do seconds[i] = op.seconds end
    perfetto.write(step.facts(cell), given.perfetto, cell.program:ops(), seconds)
  end
  if given.csv then write_csv(given.csv, cell, found.ops) end
  if given.json then print(json_of(cell, found, roof, rows))
  elseif given.csv ~= "-" then print_all(cell, found, roof, rows, given) end
  return 0
end

return command
