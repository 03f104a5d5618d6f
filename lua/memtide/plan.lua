-- Which cells a sweep has: the script's, as the command line changes and chooses them; and what the row of an earlier
-- run means for a cell. Nothing here builds a network or opens a device.
local core = require "memtide.core"
local settings = require "memtide.settings"
local util = require "memtide.util"

local plan = {}
local Plan = {}
Plan.__index = Plan

-- ---- what the command line changes

-- What the command line asks for is checked as what a script says, but is wrong usage.
function plan.asked(f, ...)
  local good, problem = pcall(f, ...)
  if not good then error(util.is_failure(problem) and problem or util.failure(problem, "usage"), 0) end
end

-- Applies --set, --device, --devices, --seed and --steps; returns the devices that were asked for by name.
local function apply(experiment, options)
  local devices = {}
  for _, set in ipairs(options.set) do
    local name, values = set[1], {}
    for word in (set[2] .. ","):gmatch("([^,]*),") do values[#values + 1] = settings.from_text(name, word) end
    plan.asked(experiment.set, experiment, name, values)
    if name == "device" then devices = values end
  end
  for _, name in ipairs{"device", "seed", "steps"} do
    if options[name] then plan.asked(experiment.set, experiment, name, {options[name]}) end
  end
  if options.steps then plan.asked(experiment.set, experiment, "epochs", {}) end
  if options.device then devices = {options.device} end
  -- the same cells, wherever each of them will run
  if options.devices then plan.asked(experiment.set, experiment, "device", {options.devices[1]}) end
  return devices
end

-- Positions of the cells that are chosen by name; nil: all.
local function choose(experiment, case)
  if not case then return nil end
  local positions = {}
  for position = 1, experiment:count() do
    if experiment:cell(position).name:find(case, 1, true) then positions[#positions + 1] = position end
  end
  if #positions == 0 then error(util.failure(('no case has "%s" in its name'):format(case), "usage"), 0) end
  return positions
end

-- purpose: "run" or "predict". options: set, device, seed, steps, case, memory, retry, as the command line has them.
function plan.new(experiment, purpose, options)
  local self = setmetatable({experiment = experiment, purpose = purpose, memory = options.memory}, Plan)
  self.devices = apply(experiment, options)
  self.positions = choose(experiment, options.case)
  self.again = options.retry or plan.retry("failed,stale")
  return self
end

function Plan:count() return self.positions and #self.positions or self.experiment:count() end

-- A new object each time: a sweep of many cells need not hold them.
function Plan:cell(k)
  local one = self.experiment:cell(self.positions and self.positions[k] or k)
  one.memory = self.memory
  return one
end

-- ---- what an earlier row means

-- What a second run would only find again.
local SETTLED = {ok = true, oom = true, nan = true, skipped = true}

-- Of a row's status and version (nil: there is no row): "missing", "failed", "stale" (of another build) or "done".
function plan.state(status, version)
  if not status then return "missing" end
  if not SETTLED[status] then return "failed" end
  return version == core.version and "done" or "stale"
end

local RETRY = {"none", "failed", "stale", "all", "error", "crashed", "timeout", "oom", "nan"}

-- "failed,oom" -> {failed = true, oom = true}: states, and statuses of rows; nil and what was expected.
function plan.retry(text)
  local known, again = {}, {}
  for _, word in ipairs(RETRY) do known[word] = true end
  for word in (text .. ","):gmatch("([^,]*),") do
    if not known[word] then return nil, "some of " .. table.concat(RETRY, ", ") end
    again[word] = true
  end
  return again
end

-- Is the cell with such a row to be run?
function Plan:wants(status, version)
  local state, again = plan.state(status, version), self.again
  return state == "missing" or again.all or again[state] or again[status] or false
end

return plan
