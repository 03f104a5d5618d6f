-- The first cell of a script, compiled: for memtide explain and memtide dump.
local cell = require "memtide.net.cell"
local max_batch = require "memtide.sweep.max_batch"
local selection = require "memtide.sweep.selection"
local worker = require "memtide.sweep.worker"

-- options: of the command line; options.passes: keep the program's text after each pass
return function(experiment, options)
  local cells = selection.new(experiment, nil, options)
  worker.check_devices(cells.devices)
  local first = cells:cell(1)
  if cells:count() > 1 then
    options.say(("the first of %d cells: %s; choose another with --case or --set"):format(cells:count(), first.name))
  end
  max_batch.settle(cell.build(first))
  return cell.compile(first, options.passes)
end
