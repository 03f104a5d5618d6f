-- memtide dump: the step program of the first cell.
local columns = require "memtide.results.columns"
local first_cell = require "memtide.cli.first_cell"
local options = require "memtide.cli.options"
local util = require "memtide.base.util"

local dump = {words = "SCRIPT [-- ARGS]", text = "the step program of the first cell as text, of trainings one after the other",
  options = {options.CELL,
    {name = "passes", text = "the program after each pass"},
    {name = "network", text = "the layers instead of the program"},
    {name = "plan", text = "where every buffer lies, and the ledger at the peak"}}}

-- What the ledger will count at the peak with the cell's allocator
local function dump_peak(self)
  local peak = self.prediction.peak
  print(("ledger at the peak (%s, allocator %s): %d bytes"):format(peak.op, self.settings.allocator, peak.bytes))
  for _, category in ipairs(columns.categories) do print(("%12d %s"):format(peak.categories[category], category)) end
end

function dump.run(experiment, given)
  local first = first_cell(experiment, given)
  if first.settings.framework == "pytorch" and (given.plan or given.passes) then
    util.fail_usage("dump: PyTorch's step has no %s: its tensors come and go", given.plan and "plan" or "passes")
  end
  for _, one in ipairs(first.trainings) do
    if first.round then print(("# training %s"):format(one.name)) end
    if given.network then io.write(one.network:text())
    elseif given.plan then io.write((util.must(one.program:plan())))
    elseif given.passes then io.write(one.passes)
    else io.write(one.program:dump()) end
  end
  if given.plan then dump_peak(first) end
  return 0
end

return dump
