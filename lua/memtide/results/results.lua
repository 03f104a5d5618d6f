-- Files of results as any version of memtide wrote them: rows as text, in the words of this one.
local core = require "memtide.core"
local columns = require "memtide.results.columns"
local csv = require "memtide.results.csv"
local statuses = require "memtide.results.statuses"

local results = {}

-- As csv.read, for a file of results.
function results.read(path, each)
  return csv.read(path, function(values, line)
    values.status = statuses.read(values)
    each(values, line)
  end)
end

-- A row with the axes that the columns `names` of a file have; nil and what is wrong: there can be none, also where an
-- axis is called as a column is that came later.
function results.row_like(names)
  local good, row, problem = pcall(core.row, columns.own(names))
  if good and row then return row end
  return nil, good and problem or row
end

-- An iterator over the columns of the row in files of each format, the newest last.
function results.formats(row)
  local format = 0
  return function()
    format = format + 1
    return row:columns(format)
  end
end

return results
