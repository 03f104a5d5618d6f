-- memtide cells: the cells of a sweep and their parts, frozen in a file. Builds networks, opens no device.
local csv = require "memtide.csv"
local plan = require "memtide.plan"
local shards = require "memtide.shards"
local status = require "memtide.status"

local freeze = {}

-- Of a cell that cannot be built, only the settings are known.
local function id_of(now, one) return one.failed and now.cell:match("^[^-]*") or now.cell end

-- Writes the list of the experiment's cells in `of` parts to `path`; returns how many cells each part has.
function freeze.write(experiment, options, of, path)
  local cells = plan.new(experiment, experiment.base.predict_only and "predict" or "run", options)
  local parts, counts = shards.split(cells, of)
  local columns = table.move(shards.columns, 1, #shards.columns, 1, {})
  local names = status.names(experiment)
  table.move(names, 1, #names, #columns + 1, columns)
  csv.replace(path, function(write)
    write(csv.line(columns, #columns))
    status.each(cells, function(now, one, k)
      local values = {}
      now.shard, now.cell = parts[k], id_of(now, one)
      for i, column in ipairs(columns) do values[i] = now[column] end
      write(csv.line(values, #columns))
    end)
  end)
  return counts, cells:count()
end

-- "36 cells in 4 parts of 9", "37 cells in 4 parts of 9 to 10"
function freeze.text(counts, all)
  local least, most = math.min(table.unpack(counts)), math.max(table.unpack(counts))
  local range = least == most and tostring(least) or ("%d to %d"):format(least, most)
  return ("%d cells in %d part%s of %s"):format(all, #counts, #counts == 1 and "" or "s", range)
end

function freeze.main(experiment, options)
  local path = options.output or experiment.name .. ".cells.csv"
  print(("%s: %s"):format(path, freeze.text(freeze.write(experiment, options, options.shards or 1, path))))
  return 0
end

return freeze
