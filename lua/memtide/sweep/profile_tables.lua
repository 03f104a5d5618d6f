-- What a profile has measured (net/profile.lua), as tables of texts: for the terminal, and for the report. `left` of a table
-- says which columns are words, the others are numbers.
local estimate = require "memtide.sweep.estimate"
local profile = require "memtide.net.profile"
local tree = require "memtide.results.tree"
local util = require "memtide.base.util"

local tables = {}

-- Raises unless the steps of the compiled cell can be profiled; who: the command that asks
function tables.check(who, cell)
  if cell.round then util.fail_usage("%s: not offered with trainings: a round has the steps of several networks", who) end
  if cell.settings.framework == "pytorch" then
    util.fail_usage("%s: PyTorch's step is predicted and never run: expected --set framework=memtide", who)
  end
end

-- ---- layers

local PHASES = {"forward", "backward", "update"}

-- What the ops of each layer sum up to, in the network's order, then what belongs to no layer: {{path, kind, same,
-- seconds, forward_seconds, backward_seconds, update_seconds, flops, bytes, roof_seconds}, ...}
function tables.layers(cell, ops)
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

-- The tree of layers as lines, the head first; rows: of tables.layers; depth: how many levels, nil: all
function tables.layer_lines(rows, found, roof, depth)
  local lines = {{"layer", "kind", "ms", "%", "forward", "backward", "update", "GFLOP/s", "GB/s", "% of roof"}, left = {true, true}}
  tree.each(tree.build(rows, numbers), depth, function(node, name)
    local sums = profile.rates(node.sums, roof)
    lines[#lines + 1] = {name, tree.kind(node, function(row) return row.kind end), ms(sums.seconds), part(sums.seconds, found.ops_seconds),
      ms(sums.forward_seconds), ms(sums.backward_seconds), ms(sums.update_seconds), giga(sums.flops_per_s),
      giga(sums.bytes_per_s), percent(sums.roof_share)}
  end)
  return lines
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

-- The `most` slowest ops as lines, the head first; and how many others take time
function tables.op_lines(found, most)
  local lines, list = {{"op", "", "", "phase", "ms", "%", "GFLOP/s", "GB/s", "% of roof", "bound by"},
    left = {[2] = true, [3] = true, [4] = true, [10] = true}}, slowest(found.ops)
  for i = 1, math.min(#list, most) do
    local op = list[i]
    lines[i + 1] = {op.op, op.kind .. (op.recomputed and ", again" or ""), op.path, op.phase, ms(op.seconds),
      part(op.seconds, found.ops_seconds), giga(op.flops_per_s), giga(op.bytes_per_s), percent(op.roof_share), op.bound or ""}
  end
  return lines, math.max(0, #list - most)
end

-- What was measured, and how: three texts
function tables.head(cell, found, roof)
  local device, settings = found.device, cell.settings
  return ("%s, %s, batch %d, %s, on %s%s"):format(cell.experiment.name, cell.name, settings.batch, settings.precision,
      device.name, device.threads and (", %d thread%s"):format(device.threads, device.threads == 1 and "" or "s") or ""),
    ("roof: %s GFLOP/s (%s), %s GB/s (%s)"):format(giga(roof.flops), roof.flops_source,
      roof.bytes and giga(roof.bytes) or "?", roof.bytes_source),
    ("medians of %d steps as a whole and %d op by op, in turns; of each op %s of timing are taken off"):format(found.steps,
      found.steps, estimate.show(found.timing_seconds))
end

local function spread(found)
  return ("%s ms (least %s, nine of ten below %s)"):format(ms(found.seconds), ms(found.seconds_min), ms(found.seconds_p90))
end

local ABOVE = "above 100 % of the roof: a cache holds the bytes, or the op needs fewer operations than the plain product that is "
  .. "counted (Winograd)"

-- All ops together beside the step as a whole: a list of texts
function tables.sums(found)
  local sums, roof, above = {forward = 0, backward = 0, update = 0}, found.roof_seconds, false
  for _, op in ipairs(found.ops) do
    sums[op.phase] = sums[op.phase] + op.seconds
    above = above or (op.roof_share or 0) > 1
  end
  local words = {}
  for _, phase in ipairs(PHASES) do
    if sums[phase] > 0 then words[#words + 1] = ("%s %s"):format(phase, ms(sums[phase])) end
  end
  local step = found.step
  local between = step.seconds - found.ops_seconds
  return {("all ops   %s ms: %s%s"):format(ms(found.ops_seconds), table.concat(words, ", "),
      roof > 0 and ("; at the roof %s (%s %%)"):format(ms(roof), percent(roof / found.ops_seconds)) or ""),
    ("the step  %s; %+.3f ms, %+.1f %%, beside all ops"):format(spread(step), 1e3 * between, 100 * between / step.seconds),
    ("op by op  %s"):format(spread(found.timed)), above and ABOVE or nil}
end

return tables
