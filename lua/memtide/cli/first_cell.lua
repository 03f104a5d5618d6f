-- The first cell of a script, compiled: for memtide explain and memtide dump.
local cell = require "memtide.net.cell"
local max_batch = require "memtide.sweep.max_batch"
local selection = require "memtide.sweep.selection"
local util = require "memtide.base.util"
local worker = require "memtide.sweep.worker"

-- Of several ranks one is shown: the first, or that of --rank.
local function choose_rank(self, options)
  local world = self.values.world
  if options.rank and options.rank >= world then
    util.fail_usage("--rank: expected less than world = %d, found %d", world, options.rank)
  end
  if world == 1 then return end
  self.rank = options.rank or 0
  options.say(("rank %d of %d; choose another with --rank"):format(self.rank, world))
end

-- options: of the command line; options.passes: keep the program's text after each pass
return function(experiment, options)
  local cells = selection.new(experiment, nil, options)
  worker.check_devices(cells.devices)
  local first = cells:cell(1)
  if cells:count() > 1 then
    options.say(("the first of %d cells: %s; choose another with --case or --set"):format(cells:count(), first.name))
  end
  max_batch.settle(cell.build(first))
  choose_rank(first, options)
  return cell.compile(first, options.passes)
end
