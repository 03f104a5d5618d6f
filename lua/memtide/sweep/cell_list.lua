-- memtide cells: writes the cells of a sweep and their parts to a file. It builds networks, but opens no device.
local csv = require "memtide.results.csv"
local literal = require "memtide.base.literal"
local selection = require "memtide.sweep.selection"
local shards = require "memtide.sweep.shards"
local status = require "memtide.sweep.status"
local util = require "memtide.base.util"

local cell_list = {}

-- The value of a column; raises if it has a line break, because each cell is one line of the file.
local function writable(now, column)
  local value = now[column]
  if type(value) == "string" and value:find("[\n\r]") then
    error(util.failure(("a list of cells cannot hold a line break: %s of the cell %s is %s"):format(column,
      literal.of(now.case), literal.of(value)), "script"), 0)
  end
  return value
end

-- Writes the list of the experiment's cells in `of` parts to `path`. Returns the list of the parts' numbers of cells,
-- the number of all cells, and whether the list went to standard output.
function cell_list.write(experiment, options, of, path)
  local cells = selection.new(experiment, experiment.base.predict_only and "predict" or "run", options)
  local parts, counts = shards.split(cells, of)
  local columns = table.move(shards.columns, 1, #shards.columns, 1, {})
  local names = status.names(experiment)
  table.move(names, 1, #names, #columns + 1, columns)
  local to_output = util.replace(path, function(write)
    write(csv.line(columns, #columns))
    status.each(cells, function(now, one, k)
      local values = {}
      now.shard = parts[k]
      if one.failed then now.cell = now.cell:match("^[^-]*") end -- without a network, only the settings are known
      for i, column in ipairs(columns) do values[i] = shards.guarded(writable(now, column)) end
      write(csv.line(values, #columns))
    end)
  end)
  return counts, cells:count(), to_output
end

-- "36 cells in 4 parts of 9", "37 cells in 4 parts of 9 to 10"
function cell_list.text(counts, all)
  local least, most = math.min(table.unpack(counts)), math.max(table.unpack(counts))
  local range = least == most and tostring(least) or ("%d to %d"):format(least, most)
  return ("%d cells in %d part%s of %s"):format(all, #counts, #counts == 1 and "" or "s", range)
end

function cell_list.main(experiment, options)
  local path = options.output or options.name .. ".cells.csv"
  local counts, all, to_output = cell_list.write(experiment, options, options.shards or 1, path)
  local tell = to_output and options.say or print
  tell(("%s: %s"):format(path, cell_list.text(counts, all)))
  return 0
end

return cell_list
