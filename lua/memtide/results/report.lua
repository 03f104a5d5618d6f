-- Results as text: the table at the end, JSON.
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local csv = require "memtide.results.csv"
local terminal = require "memtide.base.terminal"
local statuses = require "memtide.results.statuses"
local util = require "memtide.base.util"

local report = {}

local SCREENFUL = 40 -- rows of the table that a terminal shows

-- ---- JSON: one object per row

local ESCAPES = {['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t"}

-- Valid UTF-8, as JSON needs it: a byte that belongs to no character becomes U+FFFD.
local function as_utf8(text)
  local parts, at = {}, 1
  local good, bad = utf8.len(text)
  while not good do
    parts[#parts + 1] = text:sub(at, bad - 1) .. "\u{FFFD}"
    at = bad + 1
    good, bad = utf8.len(text, at)
  end
  return table.concat(parts) .. text:sub(at)
end

local function quoted(text)
  return '"' .. as_utf8(text):gsub('[%c"\\]', function(c) return ESCAPES[c] or ("\\u%04x"):format(c:byte()) end) .. '"'
end

local json_value

-- A list, or an object with its names sorted; an empty table is a list.
local function json_table(t)
  local parts, list = {}, t[1] ~= nil or next(t) == nil
  if list then for i, value in ipairs(t) do parts[i] = json_value(value) end
  else for i, key in ipairs(util.sorted_keys(t)) do parts[i] = quoted(key) .. ":" .. json_value(t[key]) end end
  return (list and "[%s]" or "{%s}"):format(table.concat(parts, ","))
end

function json_value(value)
  if type(value) == "table" then return json_table(value) end
  if math.type(value) == "integer" or type(value) == "boolean" then return tostring(value) end
  if type(value) == "number" then
    return value == value and math.abs(value) ~= math.huge and core.number(value) or quoted(core.number(value))
  end
  return quoted(tostring(value))
end

-- One JSON object: the row's values in the columns `list`, in this order, without nil ones.
function report.json(row, list)
  local members = {}
  for _, name in ipairs(list) do
    if row[name] ~= nil then members[#members + 1] = quoted(name) .. ":" .. json_value(row[name]) end
  end
  return "{" .. table.concat(members, ",") .. "}"
end

-- ---- the table

local function percent(value, base)
  if not value or not base or base == 0 then return "" end
  return ("%+.0f %%"):format(100 * (value - base) / base)
end

-- {status, bytes, ms, emulated, reason} of a row; its values may be texts.
function report.result(row)
  local function number(name) return tonumber(row[name]) end
  return {status = row.status, bytes = number "peak_bytes" or number "predicted_peak_bytes", ms = number "step_ms",
    emulated = row.emulated ~= "" and row.emulated or nil, reason = row.reason ~= "" and row.reason or nil}
end

local names_of = setmetatable({}, {__mode = "k"})

-- Those columns of `list` that say what a cell is; rows with the same columns share one list.
local function telling(list)
  local names = names_of[list]
  if names then return names end
  names = {}
  for _, name in ipairs(list) do
    local tells = name == "repeat" or columns.is_setting(name) or not columns.is_fixed(name)
    if tells and not columns.is_long(name) then names[#names + 1] = name end
  end
  names_of[list] = names
  return names
end

-- What the table needs of a row, in little memory: result(row), and what[i], its value in column names[i], or "".
-- list: all columns of the file, in their order.
function report.summary(row, list)
  local one, names, what = report.result(row), telling(list), {}
  for i, name in ipairs(names) do what[i] = row[name] == nil and "" or row[name] end
  one.case, one.what, one.names = row.case, what, names
  return one
end

-- Do rows, tables by the columns' names, differ in a column?
function report.differs(rows, name)
  for _, row in ipairs(rows) do if row[name] ~= rows[1][name] then return true end end
  return false
end

-- The places of those columns whose values are not the same in all rows. The effective batch is left out if accumulate
-- is the same in all rows; a cell that could not be built has no model, which is no difference.
local function varying(rows)
  local places, differs, names = {}, {}, rows[1] and rows[1].names or {}
  for i, name in ipairs(names) do
    for _, row in ipairs(rows) do
      local value = csv.text(row.what[i])
      if value ~= csv.text(rows[1].what[i]) and (name ~= "model" or value ~= "") then differs[name] = true end
    end
  end
  if not differs.accumulate then differs.effective_batch = nil end
  for i, name in ipairs(names) do if differs[name] then places[#places + 1] = i end end
  return places
end

-- The name of a cell without the parts that the table shows in columns
local function label(row)
  local text = " " .. row.case .. " "
  for i, name in ipairs(row.names) do
    local from, to = text:find((" %s=%s "):format(name, csv.text(row.what[i])), 1, true)
    if from then text = text:sub(1, from) .. text:sub(to + 1) end
  end
  return (text:gsub("^ +", ""):gsub(" +$", ""))
end

local function labels_of(rows, places)
  local out, said = {}, false
  for i, row in ipairs(rows) do
    out[i] = #places > 0 and label(row) or row.case
    said = said or out[i] ~= ""
  end
  return said and out or nil
end

local function any(rows, holds)
  for _, row in ipairs(rows) do if holds(row) then return true end end
  return false
end

-- Those of the places whose values the labels do not tell: rows of one label have several.
local function not_told(rows, places, labels)
  local out = {}
  for _, place in ipairs(places) do
    local of = {}
    for i, row in ipairs(rows) do
      local value = csv.text(row.what[place])
      if of[labels[i]] and of[labels[i]] ~= value then
        out[#out + 1] = place
        break
      end
      of[labels[i]] = value
    end
  end
  return out
end

-- {head =, words = is it text?, value = function(row, its number)} of every column. A prediction has no times. narrow: without
-- the settings that the names of the cases stand for.
local function columns_of(rows, narrow)
  local base, places, list = rows[1], varying(rows), {}
  local labels = labels_of(rows, places)
  if narrow and labels then places = not_told(rows, places, labels) end
  local function add(head, words, value) list[#list + 1] = {head = head, words = words, value = value} end
  if labels then add("case", true, function(_, i) return labels[i] end) end
  for _, place in ipairs(places) do
    local function value(row) return csv.text(row.what[place]) end
    add(base.names[place], any(rows, function(row) return not tonumber(value(row)) and value(row) ~= "" end), value)
  end
  add("status", true, function(row) return row.status end)
  add("memory", false, function(row) return row.bytes and util.show_bytes(row.bytes) end)
  add("vs first", false, function(row, i) return i > 1 and percent(row.bytes, base.bytes) end)
  if any(rows, function(row) return row.ms end) then
    add("step", false, function(row) return row.ms and ("%.1f ms"):format(row.ms) end)
    add("vs first", false, function(row, i) return i > 1 and percent(row.ms, base.ms) end)
  end
  local function emulated(row) return row.emulated end
  if any(rows, emulated) then add("emulated", true, emulated) end
  local function reason(row) return not statuses.of(row.status).good and row.reason end
  if any(rows, reason) then add("reason", true, reason) end
  return list
end

-- Lines of texts, the head first; and the set of columns that are text.
local function table_rows(rows, narrow)
  local lines, words = {{}}, {}
  for k, column in ipairs(columns_of(rows, narrow)) do
    lines[1][k], words[k] = column.head, column.words
    for i, row in ipairs(rows) do
      lines[i + 1] = lines[i + 1] or {}
      lines[i + 1][k] = terminal.harmless(column.value(row, i) or "")
    end
  end
  return lines, words
end

-- Lines of texts, padded to columns. left: which columns are aligned to the left; nil: the first, true: all, or a set
-- {[column] = true}.
function report.columns(lines, left)
  local widths, out = {}, {}
  for _, line in ipairs(lines) do
    for k, text in ipairs(line) do widths[k] = math.max(widths[k] or 0, terminal.width(text)) end
  end
  for i, line in ipairs(lines) do
    local parts = {}
    for k, text in ipairs(line) do
      local pad = (" "):rep(widths[k] - terminal.width(text))
      local at_left = left == true or (left and left[k] or not left and k == 1)
      parts[k] = at_left and text .. pad or pad .. text
    end
    out[i] = table.concat(parts, "  "):gsub("%s+$", "")
  end
  return out
end

-- Cuts the names in the first column of the lines as far as the width needs it, but not below terminal.NAME columns.
-- left: as for report.columns.
function report.cut_names(lines, left, width)
  local whole, name = 0, 0
  for i, text in ipairs(report.columns(lines, left)) do
    whole, name = math.max(whole, terminal.width(text)), math.max(name, terminal.width(lines[i][1]))
  end
  local room = math.max(name - math.max(whole - width, 0), terminal.NAME)
  for _, line in ipairs(lines) do line[1] = terminal.cut(line[1], room) end
end

-- A table of Markdown as a list of lines. lines: the head first; words: the set of columns that are text
function report.markdown(lines, words)
  local out, rule = {}, {}
  for k in ipairs(lines[1]) do rule[k] = words[k] and ":--" or "--:" end
  local function put(line) out[#out + 1] = "| " .. table.concat(line, " | ") .. " |" end
  for i, line in ipairs(lines) do
    local cells = {}
    for k in ipairs(lines[1]) do cells[k] = (line[k] or ""):gsub("|", "\\|") end
    put(cells)
    if i == 1 then put(rule) end
  end
  return out
end

function report.print_markdown(lines, words)
  for _, line in ipairs(report.markdown(lines, words)) do print(line) end
end

-- The width of the widest line
local function width_of(lines, words)
  local most = 0
  for _, line in ipairs(report.columns(lines, words)) do most = math.max(most, terminal.width(line)) end
  return most
end

-- Prints the table. rows: summaries of the first ones of `count` rows. On a terminal a row is cut to one line, and
-- cells that did not end well are red where colour is wanted. options: markdown, csv.
function report.print(rows, count, options)
  local colour, fits = terminal.colour(1), core.isatty(1) and not options.markdown
  local shown = table.move(rows, 1, fits and math.min(#rows, SCREENFUL) or #rows, 1, {})
  local lines, words = table_rows(shown)
  if options.markdown then return report.print_markdown(lines, words) end
  local width = fits and core.window(1)
  if width and width_of(lines, words) > width then lines, words = table_rows(shown, true) end
  if width and words[1] then report.cut_names(lines, words, width) end
  for i, line in ipairs(report.columns(lines, words)) do
    if width then line = terminal.cut(line, width) end
    print(terminal.red(line, colour and shown[i - 1] and not statuses.of(shown[i - 1].status).good))
  end
  if count > #shown then
    local where = options.csv and " in " .. options.csv or ": --csv FILE keeps all"
    print(("... and %d rows more%s"):format(count - #shown, where))
  end
end

return report
