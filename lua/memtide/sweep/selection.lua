-- Which cells a sweep has: the script's cells, changed and chosen by the command line; and whether a cell with a row of
-- an earlier run is run again. Nothing here builds a network or opens a device.
local axes = require "memtide.sweep.axes"
local core = require "memtide.core"
local measure = require "memtide.results.measure"
local shards = require "memtide.sweep.shards"
local statuses = require "memtide.results.statuses"
local util = require "memtide.base.util"

local selection = {}
local Selection = {}
Selection.__index = Selection

-- ---- what the command line changes

-- Calls f for something that the command line asks for: a mistake there is wrong usage, not a mistake in the script.
function selection.asked(f, ...)
  local good, problem = pcall(f, ...)
  if not good then error(util.is_failure(problem) and problem or util.failure(problem, "usage"), 0) end
end

-- Applies --set, --device, --devices, --seed, --steps and --quick; returns the devices that were asked for by name.
local function apply(experiment, options)
  local devices = {}
  for _, set in ipairs(options.set) do
    local name, values = set[1], nil
    selection.asked(function() values = axes.from_text(name, set[2]) end)
    selection.asked(experiment.set, experiment, name, values)
    if name == "device" then devices = values end
  end
  for _, option in ipairs(options.declared or {}) do experiment:set(option.name, option.values) end
  for _, name in ipairs{"device", "seed", "steps"} do
    if options[name] then selection.asked(experiment.set, experiment, name, {options[name]}) end
  end
  if options.steps then selection.asked(experiment.set, experiment, "epochs", {}) end
  if options.quick then for _, name in ipairs(measure.names) do experiment.base[name] = nil end end
  if options.device then devices = {options.device} end
  -- one device for the cells' settings and ids, though each worker has its own
  if options.devices then selection.asked(experiment.set, experiment, "device", {options.devices[1]}) end
  return devices
end

local SHOWN = 8 -- names of a message

-- Positions of the cells whose name contains `case` (nil: of all cells); nil: all positions
local function choose(experiment, case)
  local positions = experiment:positions()
  if not case then return positions end
  local chosen = {}
  for i = 1, positions and #positions or experiment:count() do
    local position = positions and positions[i] or i
    if experiment:cell(position).name:find(case, 1, true) then chosen[#chosen + 1] = position end
  end
  if #chosen == 0 then
    local names, count = {}, positions and #positions or experiment:count()
    for i = 1, math.min(count, SHOWN) do names[i] = experiment:cell(positions and positions[i] or i).name end
    if count > SHOWN then names[#names + 1] = ("and %d others"):format(count - SHOWN) end
    error(util.failure(('no case has "%s" in its name; there are: %s'):format(case, table.concat(names, "; ")), "usage"), 0)
  end
  return chosen
end

-- Keeps only the cells of a part. self.listed[k]: the line of cell k in the list of cells, if there is a list.
local function take_part(self, shard, path)
  local chosen, listed = shards.choose(self, shard, path)
  for i, k in ipairs(chosen) do chosen[i] = self.positions and self.positions[k] or k end
  self.positions, self.listed = chosen, listed
end

-- purpose: "run" or "predict"; options: of the command line (set, declared, device, seed, steps, case, memory, retry,
-- try_oom, dry_run, shard, cells); or positions, those of another selection with the same options.
function selection.new(experiment, purpose, options)
  local self = setmetatable({experiment = experiment, purpose = purpose, memory = options.memory,
    try_oom = options.try_oom, dry_run = options.dry_run}, Selection)
  self.devices = apply(experiment, options)
  self.positions = options.positions or choose(experiment, options.case)
  if options.shard then take_part(self, options.shard, options.cells) end
  self.again = options.retry or selection.retry("failed,stale")
  return self
end

function Selection:count() return self.positions and #self.positions or self.experiment:count() end

-- The k-th cell, a new object each time, so that a sweep of many cells need not hold them all.
function Selection:cell(k)
  assert(k >= 1 and k <= self:count())
  local one = self.experiment:cell(self.positions and self.positions[k] or k)
  one.memory = self.memory
  return one
end

-- An iterator over the numbers of cells: in the script's order, or (spread) the first repeats of all cells, then the
-- second ones, and so on.
function Selection:order(spread)
  local count, repeats = self:count(), spread and self.experiment.base.repeats or 1
  local i = -1
  local function step()
    i = i + 1
    if i >= count * repeats then return nil end
    local k, r = i % count + 1, i // count
    local position = self.positions and self.positions[k] or k
    return (position - 1) % repeats == r and k or step()
  end
  return step
end

-- ---- what an earlier row means

-- The state of a cell from its row's status (nil: there is no row) and version: "missing", "failed", "stale" (made by
-- another build) or "done".
function selection.state(status, version)
  if not status then return "missing" end
  if not statuses.of(status).settled then return "failed" end
  return version == core.version and "done" or "stale"
end

selection.retry_words = {"none", "failed", "stale", "all"}
for _, word in ipairs(statuses.names) do
  if not statuses.of(word).good then selection.retry_words[#selection.retry_words + 1] = word end
end

-- "failed,oom" -> {failed = true, oom = true}: states and statuses of rows that are made again; nil and what was
-- expected
function selection.retry(text)
  local known, again = {}, {}
  for _, word in ipairs(selection.retry_words) do known[word] = true end
  for word in (text .. ","):gmatch("([^,]*),") do
    word = statuses.renamed(word)
    if not known[word] then return nil, "some of " .. table.concat(selection.retry_words, ", ") end
    again[word] = true
  end
  return again
end

-- Is a cell with such a row to be run?
function Selection:wants(status, version)
  local state, again = selection.state(status, version), self.again
  return state == "missing" or again.all or again[state] or again[status]
    or self.try_oom and status == "skipped" or false
end

return selection
