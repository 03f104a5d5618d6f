-- Cells run in this process, one after the other: for debuggers, and where the program cannot be started again. The
-- same hooks as the pool's; what ends a worker ends the sweep.
local util = require "memtide.base.util"
local worker = require "memtide.sweep.worker"

local inline = {}

function inline.run(cells, hooks)
  worker.check_devices(cells.devices)
  for task in hooks.next do
    hooks.give(task)
    local lost -- what the device says now, nobody can trust
    worker.run(cells, task.request, {
      note = function(text, i, n)
        if not hooks.tick then return end
        hooks.watch(task, i and ("%s %d of %d"):format(text, i, n) or text)
        hooks.look()
      end,
      built = function(columns, failed)
        return hooks.hear(task, {word = "built", columns = columns, failed = failed}).go
      end,
      skipped = function() hooks.hear(task, {word = "skipped"}) end,
      columns = function(columns) hooks.hear(task, {word = "columns", columns = columns}) end,
      samples = function(list) hooks.hear(task, {word = "samples", list = list}) end,
      done = function(columns, code, unbuilt)
        lost = code == "device" and columns.reason
        local _, record = hooks.hear(task, {word = "done", columns = columns, code = code, unbuilt = unbuilt})
        if record then record() end -- none yet where the cell is visited again
      end,
    })
    if lost then error(util.failure(lost, "device"), 0) end
  end
end

return inline
