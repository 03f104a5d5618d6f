-- memtide tune: compiles every cell on a device that times the implementations that it can choose between. No step
-- runs.
local cell = require "memtide.net.cell"
local options = require "memtide.cli.options"
local selection = require "memtide.sweep.selection"
local util = require "memtide.base.util"
local worker = require "memtide.sweep.worker"

local tune = {words = "SCRIPT [-- ARGS]",
  text = "times what a GPU's libraries can choose between, for every op of the cells", options = {options.CELL}}

-- A cell that cannot be compiled is reported and skipped.
function tune.run(experiment, given)
  local cells, files, failed = selection.new(experiment, nil, given), {}, 0
  worker.check_devices(cells.devices)
  for k = 1, cells:count() do
    local one = cells:cell(k)
    local name = one.values.device
    if not files[name] then
      local file, problem = util.must(cell.device(name):tune())
      if problem then given.say(problem) end
      files[name] = file
    end
    given.say(("%d of %d: %s"):format(k, cells:count(), one.name))
    local good, problem = pcall(function() return cell.compile(cell.build(one)) end)
    if not good then
      local code = util.is_failure(problem) and problem.code or "script"
      if code == "device" or code == "script" then error(problem, 0) end
      given.say(problem.message)
      failed = 1
    end
  end
  for name, file in pairs(files) do print(("%s: %s"):format(name, file)) end
  return failed
end

return tune
