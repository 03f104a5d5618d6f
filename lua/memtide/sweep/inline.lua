-- Runs cells in this process, one after the other: for debuggers, and where the program cannot start itself. It calls
-- the same hooks as pool.lua. What would end a worker ends the sweep.
local protocol = require "memtide.sweep.protocol"
local util = require "memtide.base.util"
local worker = require "memtide.sweep.worker"

local inline = {}

function inline.run(cells, hooks)
  worker.check_devices(cells.devices)
  for task in hooks.next do
    hooks.give(task)
    local lost -- why the device failed: nothing it says now is reliable
    local tell = protocol.teller(function(message)
      if message.word == "done" then lost = message.code == "device" and message.columns.reason end
      local answer, record = hooks.hear(task, message)
      if record then record() end -- nil if the cell will be visited again
      return answer
    end)
    function tell.note(text, i, n)
      if not hooks.tick then return end
      hooks.watch(task, i and ("%s %d of %d"):format(text, i, n) or text)
      hooks.look()
    end
    worker.run(cells, task.request, tell)
    if lost then error(util.failure(lost, "device"), 0) end
  end
end

return inline
