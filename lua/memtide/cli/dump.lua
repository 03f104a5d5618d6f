-- memtide dump: the step program of the first cell.
local cell = require "memtide.net.cell"
local columns = require "memtide.results.columns"
local first_cell = require "memtide.cli.first_cell"
local options = require "memtide.cli.options"
local perfetto = require "memtide.picture.perfetto"
local report = require "memtide.results.report"
local snapshot = require "memtide.picture.snapshot"
local step = require "memtide.picture.step"
local util = require "memtide.base.util"

local dump = {words = "SCRIPT [-- ARGS]", text = "the step program of the first cell as text, of trainings one after the other",
  options = {options.CELL, options.rank, options.json,
    {name = "passes", text = "the program after each pass"},
    {name = "network", text = "the layers instead of the program"},
    options.snapshot, options.perfetto,
    {name = "plan", text = "where every buffer lies, and the ledger at the peak"}}}

-- What the ledger will count at the peak with the cell's allocator
local function dump_peak(self)
  local peak = self.prediction.peak
  print(("ledger at the peak (%s, allocator %s): %d bytes"):format(peak.op, self.settings.allocator, peak.bytes))
  for _, category in ipairs(columns.categories) do print(("%12d %s"):format(peak.categories[category], category)) end
end

-- ---- JSON: docs/json.md

local FIELDS = {"experiment", "case", "training", "device", "framework", "batch", "precision", "peak_bytes", "peak_op", "arena_bytes",
  "inputs", "output", "layers", "ops", "buffers", "segments"}

local function json_layers(network)
  local list = {}
  for i, layer in ipairs(network:layers()) do
    local parameters = {}
    for k, one in ipairs(layer.params) do
      parameters[k] = {name = one.name, shape = one.shape, elements = one.elements, trainable = one.trainable}
    end
    list[i] = {path = layer.path, kind = layer.kind, options = layer.text, input = layer.input, output = layer.out,
      parameters = parameters}
  end
  return list
end

-- The ops, numbered from 0 as in the text. What only memtide's own program knows is left out of PyTorch's step.
local function json_ops(program, found)
  local list, known = {}, program.ops and program:ops() or {}
  for i, op in ipairs(found.ops) do
    local one = known[i] or {}
    list[i] = {op = i - 1, kind = op.name, path = op.layer, phase = one.phase or op.phase, times = one.times,
      recomputed = one.recomputed, flops = one.flops, bytes = one.traffic, inputs = one.inputs, outputs = one.outputs}
  end
  return list
end

local function json_buffers(program, found)
  local list, known = {}, {}
  for _, buf in ipairs(program.bufs and program:bufs() or {}) do known[buf.name] = buf end
  for i, buf in ipairs(found.bufs) do
    local one = known[buf.name] or {}
    list[i] = {name = buf.name, category = buf.category, bytes = buf.bytes, aligned_bytes = buf.size, offset = buf.offset,
      first_op = buf.first - 1, last_op = buf.last - 1, always = buf.always, host = buf.host, shape = one.shape,
      dtype = one.dtype}
  end
  return list
end

local function json_of(self, one, given)
  local v, program = self.settings, one.program
  local object = {experiment = self.experiment.name, case = self.name, training = self.round and one.name, device = v.device,
    framework = v.framework, batch = v.batch, precision = v.precision}
  if given.network then
    local inputs, _, output = {}, one.network:shapes()
    for i, input in ipairs(one.network:inputs()) do inputs[i] = {name = input.name, shape = input.shape} end
    object.inputs, object.output, object.layers = inputs, output, json_layers(one.network)
  else
    local found = cell.step(self, one)
    object.peak_bytes, object.peak_op = self.prediction.peak.bytes, self.prediction.peak.op
    object.segments = found.segments
    object.arena_bytes, object.ops, object.buffers = found.arena, json_ops(program, found), json_buffers(program, found)
  end
  return report.json(object, FIELDS)
end

local FORMS = {"json", "passes", "network", "plan", "snapshot", "perfetto"}

-- The form that was given beside `name`, nil: none
local function other_form(given, name)
  for _, other in ipairs(FORMS) do if other ~= name and given[other] then return other end end
end

-- What writes a file about one step: function(cell, facts, path)
local FILES = {
  snapshot = function(_, facts, path) snapshot.write(facts, path) end,
  perfetto = function(one, facts, path) perfetto.write(facts, path, one.program.ops and one.program:ops() or {}) end,
}

function dump.check(given)
  for name in pairs(FILES) do
    local other = given[name] and other_form(given, name)
    if other then util.fail_usage("dump: expected --%s or --%s, found both", name, other) end
  end
  if given.json and given.passes then util.fail_usage "dump: --passes is text: expected it without --json" end
end

function dump.run(experiment, given)
  local first = first_cell(experiment, given)
  if first.settings.framework == "pytorch" and (given.plan or given.passes) then
    util.fail_usage("dump: PyTorch's step has no %s: its tensors come and go", given.plan and "plan" or "passes")
  end
  for name, write in pairs(FILES) do
    if given[name] then
      if first.round then util.fail_usage("dump: --%s is of one step: a round of trainings has several", name) end
      local facts = step.facts(first)
      if not facts.segments and facts.allocator ~= "planned" then
        given.say(("buffers lie as allocator = \"planned\" places them; this cell has %s"):format(facts.allocator))
      end
      write(first, facts, given[name])
      return 0
    end
  end
  for _, one in ipairs(first.trainings) do
    if first.round and not given.json then print(("# training %s"):format(one.name)) end
    if given.json then print(json_of(first, one, given))
    elseif given.network then io.write(one.network:text())
    elseif given.plan then io.write((util.must(one.program:plan())))
    elseif given.passes then io.write(one.passes)
    else io.write(one.program:dump()) end
  end
  if given.plan and not given.json then dump_peak(first) end
  return 0
end

return dump
