-- CSV files (RFC 4180): those that memtide writes, also after a Python script or a spreadsheet has saved them again. A
-- line break inside quotes is an error: memtide writes none.
local core = require "memtide.core"
local util = require "memtide.base.util"

local csv = {}

-- A value as the text of a field, before it is quoted.
function csv.text(value)
  if math.type(value) == "float" then return core.number(value) end
  return value == nil and "" or tostring(value)
end

-- values[1] to values[n], of which any may be nil, as a line with its "\n"
function csv.line(values, n)
  local out = {}
  for i = 1, n do out[i] = core.csv_field(csv.text(values[i])) end
  return table.concat(out, ",") .. "\n"
end

-- line without its end -> {field, ...}; nil: its quotes do not match.
csv.split = core.csv_split

function csv.damaged(path, number, format, ...)
  error(util.failure(('"%s", line %d: %s'):format(path, number, format:format(...)), "format"), 0)
end

local function open(path)
  local file, message = io.open(path, "rb")
  if file then message = select(2, file:read(0)) end -- a folder can be opened, but not read
  if not message then return file end
  error(util.failure(('cannot open "%s": %s'):format(path, (message:gsub("^.*: ", ""))), "file"), 0)
end

-- Calls take(values, line number) for every complete line, also the header; values is nil if the quotes do not match.
-- A last line without an end (a program was stopped, or is still writing) is left out; its number is returned, else
-- nil.
function csv.lines(path, take)
  local file <close> = open(path)
  local number = 0
  for line in file:lines("L") do
    local whole = line:match("^(.-)\r?\n$")
    number = number + 1
    if number == 1 and whole then whole = whole:gsub("^\xEF\xBB\xBF", "") end -- spreadsheets begin a file with it
    if not whole then return number end
    take(csv.split(whole), number)
  end
end

function csv.by_name(columns, list)
  local values = {}
  for i, name in ipairs(columns) do values[name] = list[i] end
  return values
end

-- Calls row({column = value}, line number) for every complete line after the header. Returns the list of columns, and
-- the number of a last line without an end. Raises if a line is damaged.
function csv.read(path, row)
  local columns
  local torn = csv.lines(path, function(values, number)
    if not values then csv.damaged(path, number, "its quotes do not match") end
    if not columns then columns = values
    elseif #values ~= #columns then csv.damaged(path, number, "expected %d values, found %d", #columns, #values)
    else row(csv.by_name(columns, values), number) end
  end)
  if not columns then csv.damaged(path, 1, "expected a header, found %s", torn and "half a line" or "nothing") end
  return columns, torn
end

-- Writes a file with these columns and a line for each row, {column = value}; "-": to standard output.
function csv.write(path, columns, rows)
  local out = {csv.line(columns, #columns)}
  for i, row in ipairs(rows) do
    local values = {}
    for k, name in ipairs(columns) do values[k] = row[name] end
    out[i + 1] = csv.line(values, #columns)
  end
  local text = table.concat(out)
  if path == "-" then return util.must_write("standard output", io.stdout:write(text)) end
  util.replace(path, function(put) put(text) end)
end

return csv
