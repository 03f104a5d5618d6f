-- memtide fit --world: the largest batch that fits on each of several ranks, for numbers of ranks and stages of ZeRO, and the
-- smallest number of ranks that holds the training at all. Everything but batch, world and zero is as the script has it.
local axes = require "memtide.sweep.axes"
local cards = require "memtide.net.cards"
local cell = require "memtide.net.cell"
local csv = require "memtide.results.csv"
local max_batch = require "memtide.sweep.max_batch"
local report = require "memtide.results.report"
local selection = require "memtide.sweep.selection"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"

local ranks = {}

local COLUMNS = {"case", "world", "zero", "batch", "effective_batch", "bytes", "next_bytes", "room"}

-- ---- the command line

-- Reads "1,2,4" into the values of a setting.
local function take(name)
  return function(given, text)
    local good, values = pcall(axes.from_text, name, text)
    local found = {}
    for i, value in ipairs(good and values or {}) do
      local checked, expected = settings.known[name].check(value)
      if checked == nil then util.fail_usage("--%s: expected %s, found %s", name, expected, tostring(value)) end
      found[i] = checked
    end
    if #found == 0 then util.fail_usage('--%s: expected numbers such as 1,2, found "%s"', name, text) end
    given[name] = found
  end
end

ranks.options = {
  {name = "zero", argument = "N,N", take = take "zero", text = "with --world: stages of ZeRO (0,1,2,3)"},
}

local STAGES = {0, 1, 2, 3}

function ranks.stages(given) return given.zero or STAGES end

function ranks.check(given)
  if given.zero and not given.world then util.fail_usage "--zero: expected --world beside it" end
end

-- ---- the lines

-- The line of one number of ranks: COLUMNS' names
local function line_of(one, world, zero, room)
  local values = {}
  for key, value in pairs(one.values) do values[key] = value end
  values.world, values.zero, values.batch = world, zero, 1
  local probe = {experiment = one.experiment, values = values, name = one.name, places = {}, memory = room}
  local found, more = max_batch.largest(probe, room)
  values.batch = found.batch
  return {case = one.name, world = world, zero = zero, batch = found.batch, effective_batch = cell.effective_batch(probe),
    bytes = found.bytes, next_bytes = more and more.bytes, room = room}
end

-- The smallest number of ranks of these lines that has room for a sample on each of them; nil: none has
function ranks.smallest(lines)
  local least
  for _, line in ipairs(lines) do
    if line.batch > 0 and (not least or line.world < least) then least = line.world end
  end
  return least
end

function ranks.text_of(line)
  if line.batch == 0 then return "-, " .. util.show_bytes(line.next_bytes) end
  return ("%d, %s"):format(line.batch, util.show_bytes(line.bytes))
end

-- What --set says but of world, whose numbers fit tries by itself
function ranks.set_of(given)
  local set = {}
  for _, one in ipairs(given.set) do if one[1] ~= "world" then set[#set + 1] = one end end
  return set
end

-- {{lines of a cell: each number of ranks with each stage}, ...}
local function solve(experiment, given)
  for name, value in pairs{world = given.world[1], zero = 0, batch = 1} do experiment:set(name, {value}) end
  local asked = setmetatable({set = ranks.set_of(given)}, {__index = given})
  local cells, groups = selection.new(experiment, nil, asked), {}
  for i = 1, cells:count() do
    local one = cells:cell(i)
    cards.settle(one.values, experiment:says "framework")
    if one.values.framework == "pytorch" then
      util.fail_usage "fit: --world is of memtide's own step: expected --memory in place of PyTorch's card"
    end
    local room, group = cell.room(one), {}
    if not room then util.fail_usage "fit: --memory is missing: the size of the device is not known" end
    for _, world in ipairs(given.world) do
      for _, zero in ipairs(ranks.stages(given)) do group[#group + 1] = line_of(one, world, zero, room) end
    end
    groups[i] = group
  end
  return groups
end

-- ---- the table

local function of_stage(group, zero)
  local lines = {}
  for _, line in ipairs(group) do if line.zero == zero then lines[#lines + 1] = line end end
  return lines
end

local function show(group, stages)
  print(("%s: the largest batch of each rank, and its bytes, of %s"):format(group[1].case, util.show_bytes(group[1].room)))
  local head, last, out = {"ranks"}, {"holds it"}, {}
  for i, zero in ipairs(stages) do
    head[1 + i] = "zero " .. zero
    local least = ranks.smallest(of_stage(group, zero))
    last[1 + i] = least and ("%d rank%s"):format(least, least == 1 and "" or "s") or "none of these"
  end
  out[1] = head
  for i = 1, #group, #stages do
    local row = {tostring(group[i].world)}
    for k = 1, #stages do row[1 + k] = ranks.text_of(group[i + k - 1]) end
    out[#out + 1] = row
  end
  out[#out + 1] = last
  for _, text in ipairs(report.columns(out)) do print(text) end
end

function ranks.run(experiment, given)
  local groups, all = solve(experiment, given), {}
  for i, group in ipairs(groups) do
    table.move(group, 1, #group, #all + 1, all)
    if given.csv ~= "-" and not given.json then
      if i > 1 then print() end
      show(group, ranks.stages(given))
    end
  end
  if given.json then
    for _, line in ipairs(all) do util.must_write("standard output", io.stdout:write(report.json(line, COLUMNS), "\n")) end
  elseif given.csv ~= "-" then
    print "-: not one sample, which needs so many; holds it: the smallest of these numbers of ranks with room for a sample on each"
  end
  if given.csv then csv.write(given.csv, COLUMNS, all) end
  return 0
end

return ranks
