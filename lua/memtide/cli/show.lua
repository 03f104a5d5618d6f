-- memtide show FILE.csv: the current rows of a file of results as a table for reading: the columns in which they differ.
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local estimate = require "memtide.sweep.estimate"
local options = require "memtide.cli.options"
local report = require "memtide.results.report"
local status = require "memtide.sweep.status"
local terminal = require "memtide.base.terminal"
local util = require "memtide.base.util"

local NAMES = {}
for i, one in ipairs(columns.list) do NAMES[i] = one.name end

local show = {words = "FILE.csv", text = "the rows of a file as a table: the columns in which they differ, in readable units",
  options = {options.markdown, options.json,
    {name = "columns", argument = "A,B,C", completes = {words = table.concat(NAMES, " ")},
      text = "these columns instead, in this order; all: every one; memtide help columns explains them"},
    {name = "sort", argument = "COLUMN", completes = {words = table.concat(NAMES, " ")},
      text = "the rows by this column, the least first; -COLUMN: the most first"}}}

-- They differ in every row, and say nothing to a reader who has not asked for them.
local UNASKED = {cell = true, started_at = true}

-- ---- which columns

local function has_column(all, name, what)
  for _, one in ipairs(all) do if one == name then return name end end
  util.fail_usage('show: --%s: the file has no column "%s"%s', what, name, util.meant(name, all))
end

-- The values of a column in all rows as one text
local function values_of(rows, name)
  local list = {}
  for i, row in ipairs(rows) do list[i] = row[name] or "" end
  return table.concat(list, "\0")
end

-- The names of the columns that are shown: those asked for, or the status and those that differ. Of columns with the same
-- values, as a peak and its prediction have them, one is left; the effective batch where it says more than the batch.
local function chosen(rows, all, asked)
  if asked == "all" then return all end
  local names = {}
  for name in (asked and asked .. "," or ""):gmatch "([^,]*)," do names[#names + 1] = has_column(all, name, "columns") end
  if asked then return names end
  local said = {}
  if report.differs(rows, "peak_bytes") then said[values_of(rows, "peak_bytes")] = "peak_bytes" end
  for _, name in ipairs(all) do
    local values = values_of(rows, name)
    said[values] = said[values] or name
    if name == "status" or report.differs(rows, name) and not UNASKED[name] and not columns.is_long(name) and said[values] == name then
      names[#names + 1] = name
    end
  end
  return names
end

-- ---- readable values

local SHOW = {
  bytes = function(value) return util.show_bytes(value) end,
  ms = function(value) return estimate.show(value / 1e3) end,
}

-- The text of a value, and whether it is a number
local function readable(name, text)
  local value, unit = columns.value(name, text), (columns.of[name] or {}).unit
  if type(value) ~= "number" then return terminal.harmless(text or ""), text == "" end
  if value ~= value or math.abs(value) == math.huge then return text, true end
  if SHOW[unit] then return SHOW[unit](value), true end
  return math.type(value) == "float" and ("%.6g"):format(value) or text, true
end

-- The case without the parts that the columns beside it show
local function short_case(row, names)
  local text = " " .. row.case .. " "
  for _, name in ipairs(names) do
    local from, to = text:find((" %s=%s "):format(name, row[name] or ""), 1, true)
    if from and name ~= "case" then text = text:sub(1, from) .. text:sub(to + 1) end
  end
  return (text:match "^%s*(.-)%s*$")
end

local function lines_of(rows, names, asked)
  local lines, words, said = {{}}, {}, false
  for k, name in ipairs(names) do lines[1][k] = name end
  for i, row in ipairs(rows) do
    local line = {}
    for k, name in ipairs(names) do
      local text, number = readable(name, row[name])
      if name == "case" and not asked then
        text = terminal.harmless(short_case(row, names))
        said = said or text ~= ""
      end
      line[k], words[k] = text, words[k] or not number
    end
    lines[i + 1] = line
  end
  if names[1] == "case" and not asked and not said then -- the columns beside it say it all
    for _, line in ipairs(lines) do table.remove(line, 1) end
    table.remove(words, 1)
  end
  return lines, words
end

-- A single row: its columns below each other
local function single(row, names)
  local lines = {}
  for _, name in ipairs(names) do
    local text = readable(name, row[name])
    if text ~= "" then lines[#lines + 1] = {name, text} end
  end
  return lines, {true, true}
end

-- ---- order

local function sort(rows, all, asked)
  local down, name = asked:match "^(-?)(.*)$"
  has_column(all, name, "sort")
  local keys = {}
  for i, row in ipairs(rows) do keys[row] = {tonumber(row[name]), row[name] or "", i} end
  table.sort(rows, function(a, b)
    local x, y = keys[a], keys[b]
    if (x[2] == "") ~= (y[2] == "") then return y[2] == "" end -- rows without a value come last
    local p, q = x[1], y[1]
    if not p or not q or p ~= p or q ~= q then p, q = x[2], y[2] end
    if p ~= q then
      if down == "-" then p, q = q, p end
      return p < q
    end
    return x[3] < y[3]
  end)
end

function show.alone(words, given)
  if #words ~= 1 then util.fail_usage("show: expected one file of results, found %d", #words) end
  local path = words[1]
  local found = status.load(path)
  if not found then error(util.failure(("there is no %s"):format(path), "file"), 0) end
  local has = {}
  for _, name in ipairs(found.columns) do has[name] = true end
  columns.need(path, has, {"case", "status"})
  local rows, all = found.list, found.columns
  if given.sort then sort(rows, all, given.sort) end
  local one = #rows == 1 and not given.columns
  local names = one and all or chosen(rows, all, given.columns)
  if given.json then
    for _, row in ipairs(rows) do
      local typed = {}
      for _, name in ipairs(names) do typed[name] = columns.value(name, row[name]) end
      print(report.json(typed, names))
    end
    return 0
  end
  local lines, texts
  if one then lines, texts = single(rows[1], names) else lines, texts = lines_of(rows, names, given.columns) end
  if given.markdown then
    if one then table.insert(lines, 1, {"column", "value"}) end
    report.print_markdown(lines, texts)
    return 0
  end
  local width = core.isatty(1) and core.window(1)
  if width and texts[1] then report.cut_names(lines, texts, width) end
  for _, line in ipairs(report.columns(lines, texts)) do print(width and terminal.cut(line, width) or line) end
  return 0
end

return show
