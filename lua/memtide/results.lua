-- Files of results as any version of memtide wrote them: rows as text, in the words of this one.
local csv = require "memtide.csv"
local statuses = require "memtide.statuses"

local results = {}

-- As csv.read, for a file of results.
function results.read(path, each)
  return csv.read(path, function(values, line)
    values.status = statuses.read(values)
    each(values, line)
  end)
end

return results
