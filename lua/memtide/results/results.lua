-- Results files of any version of memtide: rows as text, with the names that this version uses.
local core = require "memtide.core"
local columns = require "memtide.results.columns"
local csv = require "memtide.results.csv"
local statuses = require "memtide.results.statuses"

local results = {}

-- As csv.read, for a results file.
function results.read(path, each)
  return csv.read(path, function(values, line)
    values.status = statuses.read(values)
    each(values, line)
  end)
end

-- A Row with the axes of a file whose columns are `names`; nil and a message if there can be none, for example because
-- an axis has the name of a column that was added later.
function results.row_like(names)
  local good, row, problem = pcall(core.row, columns.own(names))
  if good and row then return row end
  return nil, good and problem or row
end

-- An iterator over the lists of the row's columns in files of each format, the newest last.
function results.formats(row)
  local format = 0
  return function()
    format = format + 1
    return row:columns(format)
  end
end

return results
