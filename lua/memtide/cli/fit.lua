-- memtide fit: for every combination of the techniques that save memory, the largest batch that fits into a number of
-- bytes, and the time per sample with it. For PyTorch's step: fit_pytorch.lua; for methods of fine-tuning: fit_methods.lua.
local axes = require "memtide.sweep.axes"
local cell = require "memtide.net.cell"
local csv = require "memtide.results.csv"
local estimate = require "memtide.sweep.estimate"
local experiments = require "memtide.sweep.experiment"
local fit_methods = require "memtide.cli.fit_methods"
local fit_pytorch = require "memtide.cli.fit_pytorch"
local fit_ranks = require "memtide.cli.fit_ranks"
local max_batch = require "memtide.sweep.max_batch"
local options = require "memtide.cli.options"
local report = require "memtide.results.report"
local column_value = require "memtide.sweep.row".column_value
local selection = require "memtide.sweep.selection"
local settings = require "memtide.net.settings"
local status = require "memtide.sweep.status"
local util = require "memtide.base.util"

local fit = {words = "SCRIPT [-- ARGS]",
  text = "the largest batch that fits, for every combination of techniques, and its time",
  options = {options.csv, options.PLAN, options.json, fit_methods.options, fit_ranks.options}}

function fit.check(given)
  fit_methods.check(given)
  fit_ranks.check(given)
end

-- Settings whose other values are tried unless the script sweeps them: first those that also matter in evaluation.
local ALWAYS = {precision = true}
local TRIED = {}
for _, always in ipairs{true, false} do
  for _, setting in ipairs(settings.list) do
    if #setting.tried > 0 and (ALWAYS[setting.name] or false) == always then TRIED[#TRIED + 1] = setting end
  end
end
local FOUND = {"batch", "effective_batch", "bytes", "next_bytes", "room", "seconds", "source", "emulated", "best",
  "idle"}
local TRAINING = {{"mode", {train = true}}}

local function is_axis(experiment, name)
  for _, axis in ipairs(experiment.axes) do if axes.column(axis, name) then return true end end
  return false
end

-- Cases that differ only in settings that are tried become one case, with the name of the first.
local function merge_cases(experiment)
  local seen, kept = {}, {}
  for _, case in ipairs(experiment.cases) do
    local words = {}
    for key, value in pairs(case) do
      if key ~= "case" and key ~= "model_name" then words[#words + 1] = key .. "=" .. tostring(value) end
    end
    table.sort(words)
    local text = table.concat(words, "\n")
    if not seen[text] then seen[text], kept[#kept + 1] = true, case end
  end
  experiment.cases = kept
end

-- Makes the techniques axes and the batch "max"; what the command line says of one stays. set: {{name, text}, ...} of
-- --set. Returns the names of the axes, and of those that stay.
function fit.spread(experiment, set)
  local said, stay = {}, {}
  for _, one in ipairs(set or {}) do said[one[1]] = true end
  for _, setting in ipairs(TRIED) do
    local name, own = setting.name, experiment.base[setting.name]
    local each_says = name == "accumulate" and experiment.base.trainings
    if said[name] and not is_axis(experiment, name) then
      stay[#stay + 1] = name
    elseif not each_says and not is_axis(experiment, name) then
      if own == nil then own = setting.default end
      local values = {own}
      for _, value in ipairs(setting.tried) do if value ~= own then values[#values + 1] = value end end
      experiment:set(name, values)
      if not ALWAYS[name] then experiment.axes[#experiment.axes].only = TRAINING end
    end
  end
  experiment:set("batch", {"max"})
  merge_cases(experiment)
  local names = {}
  for _, axis in ipairs(experiment.axes) do table.move(axis.names, 1, #axis.names, #names + 1, names) end
  return table.move(stay, 1, #stay, #names + 1, names)
end

-- ---- time

-- Settings that the time per sample depends on, apart from the batch
local SAME = {}
for _, setting in ipairs(settings.list) do
  if setting.group == "work" and setting.name ~= "batch" or setting.name == "device" then SAME[#SAME + 1] = setting end
end

-- row: texts by column; a setting without a column has its default.
local function key_of(row)
  local words = {row.model or ""}
  for _, setting in ipairs(SAME) do words[#words + 1] = row[setting.name] or settings.text(setting.default) end
  return table.concat(words, "\0")
end

-- From the rows of an earlier run: {[settings] = {batch, seconds per sample}} for the largest batch that was measured
local function measured_rows(path)
  local rows, best = status.load(path), {}
  for _, row in pairs(rows and rows.by_cell or {}) do
    local batch, ms = tonumber(row.effective_batch), tonumber(row.step_ms)
    if row.status == "ok" and batch and ms then
      local old = best[key_of(row)]
      if not old or batch > old.batch then best[key_of(row)] = {batch = batch, seconds = ms / 1e3 / batch} end
    end
  end
  return best
end

-- Seconds per sample (nil: not known), their source, and a number to compare cells by where no time is known.
local function seconds_per_sample(self, found, measured, rates)
  local v, texts = self.values, {model = self.model_name}
  for _, setting in ipairs(SAME) do texts[setting.name] = settings.text(v[setting.name]) end
  local row, samples = measured[key_of(texts)], found.batch * v.accumulate * cell.mesh(self).data
  local relative = estimate.relative(found.cost) / samples
  if row then return row.seconds, "measured", relative end
  local step = rates:step(found.cost)
  if not step then return nil, "unknown", relative end
  return step.seconds / samples, step.source, relative
end

-- ---- the table

-- One cell of batch "max" -> its line; nil: the script's filter rejects it
local function solve(self, room, measured, rates)
  cell.build(self)
  room = room or cell.room(self)
  if not room then error(util.failure("fit: --memory is missing: the size of the device is not known", "usage"), 0) end
  local found, more = max_batch.largest(self, room)
  local v = self.values
  local line = {case = v.case, batch = found.batch, effective_batch = found.batch * v.accumulate * cell.mesh(self).data, bytes = found.bytes,
    next_bytes = more and more.bytes, room = room}
  line.emulated = cell.emulated(self)
  v.batch = math.max(found.batch, 1)
  local wanted = self.experiment:passes(self)
  if found.batch > 0 then
    line.seconds, line.source, line.relative = seconds_per_sample(self, found, measured, rates)
  end
  cell.release(self)
  return wanted and line or nil
end

local function before(a, b)
  if a.effective_batch ~= b.effective_batch then return a.effective_batch > b.effective_batch end
  if a.rank ~= b.rank then return (a.rank or 1 / 0) < (b.rank or 1 / 0) end
  return a.order < b.order
end

-- Sets the number that lines are compared by: their time, or, if no line has a time, an estimate from operations and
-- bytes.
local function rank(lines)
  local known = false
  for _, line in ipairs(lines) do known = known or line.seconds ~= nil end
  for _, line in ipairs(lines) do line.rank = known and line.seconds or not known and line.relative or nil end
end

-- A line's case and its values of the script's own axes, as text
local function cell_of(line, names)
  local words = {line.case or ""}
  for _, name in ipairs(names) do
    if #(settings.known[name] or {tried = {}}).tried == 0 then words[#words + 1] = csv.text(line[name]) end
  end
  return table.concat(words, "\0")
end

-- Marks in each case the lines that are best: no line with at least their batch is as fast. And the lines that are
-- idle: their techniques found nothing to do, so they are the same step as an earlier line of the same cell. The largest
-- batch comes first.
local function mark(lines, names)
  local fastest, seen = {}, {}
  for _, line in ipairs(lines) do
    local case = line.case or ""
    line.best = line.rank ~= nil and line.rank < (fastest[case] or 1 / 0)
    if line.best then fastest[case] = line.rank end
    local step = ("%s %d %d %d"):format(cell_of(line, names), line.batch, line.effective_batch, line.bytes or 0)
    line.idle, seen[step] = seen[step] or false, true
  end
end

-- {line, ...}, the largest effective batch first; a line also has the values of its axes, by their names.
function fit.solve(experiment, given, names)
  local cells, lines = selection.new(experiment, nil, {set = {}, case = given.case, memory = given.memory}), {}
  local measured, rates = measured_rows(experiments.file_name(experiment) .. ".csv"), estimate.new()
  for k = 1, cells:count() do
    local one = cells:cell(k)
    local line = solve(one, given.memory, measured, rates)
    if line then
      line.order = k
      for _, name in ipairs(names) do
        line[name] = column_value(one.values[name])
      end
      lines[#lines + 1] = line
    end
  end
  rank(lines)
  table.sort(lines, before)
  mark(lines, names)
  return lines
end

local function source_text(line)
  local emulated = line.seconds and line.emulated
  return (line.source or "") .. (emulated and (", %s is emulated"):format(emulated) or "")
end

local function texts_of(line, names, has_cases)
  local out = has_cases and {line.case} or {}
  for _, name in ipairs(names) do out[#out + 1] = csv.text(line[name]) end
  for _, text in ipairs{tostring(line.batch), tostring(line.effective_batch),
    line.bytes and util.show_bytes(line.bytes) or "does not fit",
    line.seconds and estimate.show(line.seconds) or "", source_text(line), line.best and "*" or ""} do
    out[#out + 1] = text
  end
  return out
end

local function show(lines, names, has_cases)
  local head = has_cases and {"case"} or {}
  table.move(names, 1, #names, #head + 1, head)
  for _, title in ipairs{"batch", "effective", "memory", "time/sample", "time", ""} do head[#head + 1] = title end
  local out = {head}
  for _, line in ipairs(lines) do
    if not line.idle then out[#out + 1] = texts_of(line, names, has_cases) end
  end
  for _, text in ipairs(report.columns(out)) do print(text) end
  print("effective = batch x accumulate, of all ranks; *: no line with as large a batch is as fast")
end

function fit.run(experiment, given)
  if given.method then return fit_methods.run(experiment, given) end
  if given.world then return fit_ranks.run(experiment, given) end
  selection.new(experiment, nil, given) -- applies what the command line changes
  if is_axis(experiment, "framework") then
    util.fail_usage "fit: the script sweeps framework: choose one of them with --set framework=memtide or pytorch"
  end
  local devices = fit_pytorch.devices(experiment, given)
  if devices then return fit_pytorch.run(experiment, given, devices) end
  local names = fit.spread(experiment, given.set)
  local lines = fit.solve(experiment, given, names)
  local columns = {"case"}
  table.move(names, 1, #names, 2, columns)
  table.move(FOUND, 1, #FOUND, #columns + 1, columns)
  if given.json then
    for _, line in ipairs(lines) do io.stdout:write(report.json(line, columns), "\n") end
  elseif given.csv ~= "-" then show(lines, names, #experiment.cases > 1) end
  if given.csv then csv.write(given.csv, columns, lines) end
  return 0
end

return fit
