-- Files of results as any version of memtide wrote them: rows as text, in the words of this one.
local core = require "memtide.core"
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

-- The value of a text by the kind of its column, as columns.def has it: the text of a setting or of an axis ("value")
-- may stand for a number or a flag. nil: there is none.
function results.value(kind, text)
  if text == nil or text == "" then return nil end
  if kind == "value" and (text == "true" or text == "false") then return text == "true" end
  if kind == "text" then return text end
  return math.tointeger(tonumber(text)) or tonumber(text) or text
end

-- A row with the axes that the columns of a file have; nil and what is wrong: there can be none, also where an axis is
-- called as a column is that came later.
function results.row_like(columns)
  local own, inside = {}, false
  for _, name in ipairs(columns) do
    if name == "status" then inside = false end
    if inside then own[#own + 1] = name end
    if name == "graph" then inside = true end
  end
  local good, row, problem = pcall(core.row, own)
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
