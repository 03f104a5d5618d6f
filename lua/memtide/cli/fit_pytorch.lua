-- memtide fit for PyTorch's step: on each card the largest batch with each technique, whether the script's own batch
-- fits, and what would make it fit. Every figure is a prediction of that very step; nothing is a rule of thumb. Times are
-- floors (estimate.lua): what the step's calls compute and move at the peaks of the card's data sheet.
local axes = require "memtide.sweep.axes"
local cards = require "memtide.net.cards"
local cell = require "memtide.net.cell"
local csv = require "memtide.results.csv"
local estimate = require "memtide.sweep.estimate"
local max_batch = require "memtide.sweep.max_batch"
local report = require "memtide.results.report"
local selection = require "memtide.sweep.selection"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"

local fit = {}

local COLUMNS = {"case", "card", "technique", "batch", "accumulate", "max_memory_allocated", "max_memory_reserved",
  "device_bytes", "device_bytes_least", "device_bytes_most", "room", "saved_bytes", "floor_seconds", "time_percent",
  "verdict", "gives_back", "largest_batch", "tight_batch"}
local AS_IT_IS, TOGETHER = "as it is", "those that help"
local FITS, TIGHT, NOT = "fits", "tight", "does not fit"

-- ---- techniques: what each changes of a cell's values; nil: it changes nothing of them

-- The options of PyTorch's step with another one, in place of those that contradict it.
local function with_option(text, name, value, against)
  local parts = {}
  for word in text:gmatch "%S+" do
    local one = word:match "^[^=]*"
    if one ~= name and one ~= against then parts[#parts + 1] = word end
  end
  parts[#parts + 1] = name .. "=" .. value
  return table.concat(parts, " ")
end

-- An option of the training loop, which has `default` where nothing is said.
local function option(name, value, default, against)
  return function(v)
    local own = (" " .. v.pytorch):match(" " .. name .. "=(%S+)") or default
    return v.mode ~= "eval" and own ~= value and {pytorch = with_option(v.pytorch, name, value, against)} or nil
  end
end

local WIDE = {fp32 = true, tf32 = true} -- precisions that store 32 bits

local function autocast(precision)
  return function(v) return WIDE[v.precision] and {precision = precision} or nil end
end

local function split(times)
  return function(v)
    if v.mode == "eval" or v.batch < times or v.batch % times ~= 0 then return nil end
    return {batch = v.batch // times, accumulate = v.accumulate * times}
  end
end

local function has_marks(self) return ("\n" .. self.network:text()):find "\n%S+ Checkpoint " ~= nil end

local function checkpointing(v, self)
  return v.mode ~= "eval" and v.checkpoint == "none" and has_marks(self) and {checkpoint = "marked"} or nil
end

local function expandable(v)
  if v.pytorch:find "expandable_segments" then return nil end
  local conf = v.pytorch:match "alloc_conf=(%S+)"
  return {pytorch = with_option(v.pytorch, "alloc_conf", (conf and conf .. "," or "") .. "expandable_segments:True")}
end

-- {name, short, change(values, cell) -> values that differ}. `together`: it may be one of those that are combined, in this
-- order.
local TECHNIQUES = {
  {name = "precision = amp_bf16", short = "amp_bf16", together = true, change = autocast "amp_bf16"},
  {name = "precision = amp_fp16", short = "amp_fp16", change = autocast "amp_fp16"},
  {name = "checkpoint = marked", short = "marked", together = true, change = checkpointing},
  {name = "set_to_none = true", short = "to none", together = true, change = option("set_to_none", "true", "true")},
  {name = "fused optimizer", short = "fused", together = true, change = option("fused", "true", "false", "foreach")},
  {name = "for-loop optimizer", short = "for-loop", change = option("foreach", "false", "true", "fused")},
  {name = "accumulate x 2", short = "accumulate", change = split(2)},
  {name = "accumulate x 4", short = "accumulate", together = true, change = split(4)},
  {name = "accumulate x 8", short = "accumulate", change = split(8)},
  {name = "expandable segments", short = "expandable", together = true, change = expandable},
}

local function changed(values, change)
  local out = {}
  for key, value in pairs(values) do out[key] = value end
  for key, value in pairs(change or {}) do out[key] = value end
  return out
end

-- A compiled cell with these values
local function compiled(self, values)
  local probe = {experiment = self.experiment, values = values, name = self.name, places = {}}
  local good, problem = pcall(function() return cell.compile(cell.build(probe)) end)
  if good then return probe end
  cell.release(probe)
  error(problem, 0)
end

-- Can PyTorch's step have these values, where it can have the cell's own? The optimizer may have no fused form, a layer
-- may want more than one sample.
local function is_known(self, values)
  local good, problem = pcall(compiled, self, values)
  if good then cell.release(problem) return true end
  if util.is_failure(problem) then error(problem, 0) end
  return false
end

-- {{name, short, values, technique}, ...} of a cell: as it is, and each technique that changes it and is known
local function variants(self)
  local list = {{name = AS_IT_IS, short = AS_IT_IS, values = self.values}}
  for _, technique in ipairs(TECHNIQUES) do
    local change = technique.change(self.values, self)
    local values = change and changed(self.values, change)
    if values and is_known(self, values) then
      list[#list + 1] = {name = technique.name, short = technique.short, values = values, technique = technique}
    end
  end
  return list
end

-- The techniques together that save bytes or let a larger batch fit, as their lines say; nil: they are fewer than two.
local function together(self, list, lines)
  local values, count, own = self.values, 0, lines[1]
  for i, variant in ipairs(list) do
    local technique, line = variant.technique, lines[i]
    if technique and technique.together and (line.saved_bytes > 0 or line.largest_batch > own.largest_batch) then
      values, count = changed(values, technique.change(values, self)), count + 1
    end
  end
  return count > 1 and is_known(self, values) and {name = TOGETHER, short = TOGETHER, values = values} or nil
end

-- ---- what a variant takes on a device

-- The largest batch that fits if so much may be reserved. memtide's limit counts the context, too, where it is known.
-- kind: what sizes are taken for that only cuDNN knows, "least" or "most".
local function largest(probe, reserved, kind)
  probe.estimate = kind
  return max_batch.largest(probe, reserved + (cards.context(probe.values.device) or 0)).batch
end

-- The prediction of the compiled cell if so much may be reserved; nil: it does not fit.
local function within(probe, reserved, kind)
  probe.estimate = kind
  local found = cell.predict(probe, reserved + (cards.context(probe.values.device) or 0))
  return found.fits and found or nil
end

local function line_of(self, variant, device, memory)
  local probe = compiled(self, changed(variant.values, {device = device}))
  local found, v = probe.prediction, probe.values
  local room = memory or cell.room(probe)
  local sure, perhaps = cards.limits(device, room)
  local line = {case = self.name, card = cards.name(device), technique = variant.name, short = variant.short, batch = v.batch,
    accumulate = v.accumulate, max_memory_allocated = found.max_memory_allocated,
    max_memory_reserved = found.max_memory_reserved, room = room, estimated = found.estimated}
  local good = within(probe, sure, "most")
  local close = good or within(probe, perhaps, "least")
  line.verdict = good and FITS or close and TIGHT or NOT
  local least, most = found.reserved_least or found.max_memory_reserved, found.reserved_most or found.max_memory_reserved
  line.gives_back = good and most > sure or not good and close ~= nil and least > perhaps
  line.device_bytes = (close or found).device_bytes
  line.device_bytes_least, line.device_bytes_most = cards.range(device, close or found)
  line.largest_batch, line.tight_batch = largest(probe, sure, "most"), largest(probe, perhaps, "least")
  line.floor_seconds = estimate.cost(probe).floor
  cell.release(probe)
  return line
end

local FREE = 0.05 -- percent of time that count as none

-- Percent of time more than the line `own` takes for as many samples
local function percent(line, own)
  local function each(one) return one.floor_seconds / (one.batch * one.accumulate) end
  return (each(line) / each(own) - 1) * 100
end

-- What saves most for each percent of time comes first, and before it what costs no time; last what saves nothing.
local function is_better(a, b)
  local function class(line) return line.saved_bytes <= 0 and 3 or line.time_percent < FREE and 1 or 2 end
  local function worth(line) return class(line) == 2 and line.saved_bytes / line.time_percent or line.saved_bytes end
  if class(a) ~= class(b) then return class(a) < class(b) end
  if worth(a) ~= worth(b) then return worth(a) > worth(b) end
  return a.order < b.order
end

-- Lines of one cell on one device: as it is first, then the best
local function solve(self, list, device, memory)
  local lines = {}
  local function add(variant)
    local line = line_of(self, variant, device, memory)
    lines[#lines + 1] = line
    line.order, line.saved_bytes = #lines, lines[1].max_memory_reserved - line.max_memory_reserved
    line.time_percent = percent(line, lines[1])
  end
  for _, variant in ipairs(list) do add(variant) end
  local all = together(self, list, lines)
  if all then add(all) end
  local own = table.remove(lines, 1)
  table.sort(lines, is_better)
  table.insert(lines, 1, own)
  return lines
end

-- ---- which cells

-- Cells that differ only in what is tried here are one; these settings do not count.
local TRIED = {batch = true, accumulate = true, precision = true, checkpoint = true, pytorch = true, device = true,
  framework = true, case = true, model_name = true}

local function key_of(one)
  local words = {}
  for _, name in ipairs(util.sorted_keys(one.values)) do
    if not TRIED[name] then words[#words + 1] = name .. "=" .. tostring(one.values[name]) end
  end
  return table.concat(words, "\0")
end

local function has_checkpoint(one) return one.values.checkpoint == "none" or one.values.checkpoint == "marked" end

-- The selected cells that differ in more than what is tried, of each kind the first whose checkpointing PyTorch has; with
-- batch = 1 in place of "max".
local function cells_of(cells)
  local list, at = {}, {}
  for k = 1, cells:count() do
    local one = cells:cell(k)
    local key = key_of(one)
    if not at[key] then
      at[key], list[#list + 1] = #list + 1, one
    elseif not has_checkpoint(list[at[key]]) and has_checkpoint(one) then
      list[at[key]] = one
    end
  end
  for _, one in ipairs(list) do if one.values.batch == "max" then one.values.batch = 1 end end
  return list
end

-- The cards of an axis of devices; nil: there is no such axis, or it has other devices, too.
local function swept(experiment)
  for _, axis in ipairs(experiment.axes) do
    local k, found = axes.column(axis, "device"), {}
    for _, row in ipairs(k and axis.rows or {}) do
      local named = cards.devices(row[k])
      if not named then return nil end
      table.move(named, 1, #named, #found + 1, found)
    end
    if k then return found end
  end
end

-- The devices that PyTorch's step is asked about: those that --device names, or the script; all cards where it names none.
-- nil: it is memtide's own step.
function fit.devices(experiment, given)
  if given.device then
    local named = cards.devices(given.device)
    if named then return named end
  end
  local base, default, several = experiment.base, settings.known.device.default, not given.device and swept(experiment)
  if several then return several end
  local own = given.device or base.device or default
  if base.framework ~= "pytorch" and not cards.devices(own) then return nil end
  if own == default then return cards.devices "pytorch:all" end
  local settled = {device = own, framework = "pytorch"}
  cards.settle(settled)
  return cards.devices(settled.device)
end

local function group_of(one, devices, memory)
  local list, group = variants(one), {name = one.name, batch = one.values.batch, model = one.model_name}
  for i, device in ipairs(devices) do group[i] = solve(one, list, device, memory) end
  return group
end

-- A group for each cell that PyTorch's step is known of: {name, model, batch, lines on the first device, ...}, where lines
-- are {{COLUMNS' names}, ...}. Raises if it is known of none.
function fit.solve(experiment, given, devices)
  local copy = {}
  for key, value in pairs(given) do copy[key] = value end
  copy.device = devices[1]
  local found, problem = {}, nil
  for _, one in ipairs(cells_of(selection.new(experiment, nil, copy))) do
    cell.build(one)
    local good, why = pcall(compiled, one, one.values)
    if good then
      cell.release(why)
      found[#found + 1] = group_of(one, devices, given.memory)
    elseif util.is_failure(why) then error(why, 0)
    else
      problem = problem or why
      given.say(("%s is left out: %s"):format(one.name, why))
    end
    cell.release(one)
  end
  if #found == 0 then error(problem, 0) end
  return found
end

-- ---- the tables

-- "5000", or "5000 to 5200": so much fits, and up to the second it is tight
local function batches(line)
  if line.tight_batch == 0 then return "none" end
  local text = ("%d"):format(line.largest_batch)
  if line.tight_batch > line.largest_batch then text = ("%s to %d"):format(text, line.tight_batch) end
  return line.accumulate > 1 and ("%s x %d"):format(text, line.accumulate) or text
end

local function verdict_of(line) return line.gives_back and line.verdict .. "*" or line.verdict end

local function print_columns(lines, left) for _, text in ipairs(report.columns(lines, left)) do print(text) end end

local function by_technique(lines)
  local found = {}
  for _, line in ipairs(lines) do found[line.technique] = line end
  return found
end

-- The techniques of any card, and what their columns are called, in the order in which they were tried
local function columns_of(group)
  local names, titles, seen = {}, {}, {}
  local function add(line)
    if seen[line.technique] then return end
    seen[line.technique], names[#names + 1], titles[#titles + 1] = true, line.technique, line.short
  end
  for _, lines in ipairs(group) do
    local order = table.move(lines, 1, #lines, 1, {})
    table.sort(order, function(a, b) return a.order < b.order end)
    for _, line in ipairs(order) do add(line) end
  end
  return names, titles
end

local function show_largest(group)
  local names, titles = columns_of(group)
  local head = {"card", "memory", ("batch %d"):format(group.batch)}
  table.move(titles, 1, #titles, #head + 1, head)
  local lines = {head}
  for _, of_card in ipairs(group) do
    local own, found = of_card[1], by_technique(of_card)
    local line = {own.card, util.show_bytes(own.room), verdict_of(own)}
    for _, name in ipairs(names) do line[#line + 1] = found[name] and batches(found[name]) or "" end
    lines[#lines + 1] = line
  end
  print_columns(lines, {true, [3] = true})
end

local function show_percent(x)
  if math.abs(x) < FREE then return "0 %" end
  return (math.abs(x) < 9.95 and "%+.1f %%" or "%+.0f %%"):format(x)
end

-- Where the cell's own batch is not sure to fit: what each technique saves.
local function show_savings(lines)
  local own = lines[1]
  print(("\n%s: batch %d %s: %s to %s of %s.\z
    \nBy bytes saved for each percent of time, what costs none first:"):format(own.card, own.batch,
    own.verdict == TIGHT and "is tight" or NOT, util.show_bytes(own.device_bytes_least),
    util.show_bytes(own.device_bytes_most), util.show_bytes(own.room)))
  local out = {{"technique", "batch", "max_memory_reserved", "saved", "", "time", "device, from", "to", "verdict"}}
  for _, line in ipairs(lines) do
    out[#out + 1] = {line.technique, line.accumulate > 1 and ("%d x %d"):format(line.batch, line.accumulate) or line.batch,
      line.max_memory_reserved, line.saved_bytes, util.show_bytes(line.saved_bytes), show_percent(line.time_percent),
      util.show_bytes(line.device_bytes_least), util.show_bytes(line.device_bytes_most), verdict_of(line)}
  end
  print_columns(out, {true, [9] = true})
  if own.tight_batch > 0 then print(("or a batch of %s, as it is"):format(batches(own))) end
end

local function all_lines(found)
  local out = {}
  for _, group in ipairs(found) do
    for _, lines in ipairs(group) do table.move(lines, 1, #lines, #out + 1, out) end
  end
  return out
end

local function show(found)
  local savings = false
  for i, group in ipairs(found) do
    print(("%s%s (%s): the largest batch of PyTorch's step"):format(i > 1 and "\n" or "", group.name, group.model))
    show_largest(group)
    for _, lines in ipairs(group) do
      if lines[1].verdict ~= FITS then
        show_savings(lines)
        savings = true
      end
    end
  end
  print "\nA to B: up to A it fits, up to B it is tight: within the error of max_memory_reserved and the range of the context,\z
    \nwhich memtide calibrate narrows (docs/pytorch.md)."
  if savings then
    print "time: of as many samples, beside the first line, estimated: what each call computes and moves at the peaks of the card's\z
      \ndata sheet, the longer of the two. Launches are not in it: a step of many small kernels takes longer, above all a for-loop."
  end
  local lines = all_lines(found)
  local function note(condition, text)
    for _, line in ipairs(lines) do if condition(line) then return print(text) end end
  end
  note(function(line) return line.gives_back end,
    "*: only since PyTorch gives cached memory back at the limit and asks again, which takes time")
  note(function(line) return line.estimated end,
    "What cuDNN takes beside the tensors is not known exactly: A is with the most of it, B with the least.")
end

function fit.run(experiment, given, devices)
  local found = fit.solve(experiment, given, devices)
  local lines = all_lines(found)
  if given.json then
    for _, line in ipairs(lines) do
      util.must_write("standard output", io.stdout:write(report.json(line, COLUMNS), "\n"))
    end
  elseif given.csv ~= "-" then show(found) end
  if given.csv then csv.write(given.csv, COLUMNS, lines) end
  return 0
end

return fit
