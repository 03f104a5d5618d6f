-- How results look on a terminal and in a pipe: progress, the table at the end, JSON.
local core = require "memtide.core"
local util = require "memtide.util"

local report = {}

-- ---- JSON: one object per row

local ESCAPES = {['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t"}

local function quoted(text)
  return '"' .. text:gsub('[%c"\\]', function(c) return ESCAPES[c] or ("\\u%04x"):format(c:byte()) end) .. '"'
end

local function json_value(value)
  if math.type(value) == "integer" or type(value) == "boolean" then return tostring(value) end
  if type(value) == "number" then
    return value == value and math.abs(value) ~= math.huge and core.number(value) or quoted(core.number(value))
  end
  return quoted(tostring(value))
end

function report.json(row, columns)
  local members = {}
  for _, column in ipairs(columns) do
    if row[column] ~= nil then members[#members + 1] = quoted(column) .. ":" .. json_value(row[column]) end
  end
  return "{" .. table.concat(members, ",") .. "}"
end

-- ---- progress, on stderr

local LINE = 79 -- a line that wraps could not be updated in place

local function outcome(row)
  local bytes, ms = row.peak_bytes or row.predicted_peak_bytes, row.step_ms
  local words = {row.status}
  if bytes then words[#words + 1] = util.show_bytes(bytes) end
  if ms then words[#words + 1] = ("%.1f ms/step"):format(ms) end
  if row.status ~= "ok" and row.reason then words[#words + 1] = row.reason end
  return table.concat(words, ", ")
end

-- {begin(k, name, ends), step(k, name, note), done(k, name, row, ends), finish()}: one line updated in place on a
-- terminal, a line per cell otherwise; without step nobody is watching. ends: when the sweep will, if that is known
function report.progress(total, options)
  local nothing = function() end
  -- a full disk is told before the time of a cell is spent
  local function check() util.must_write("standard output", io.stdout:flush()) end
  if options.quiet then return {begin = check, done = nothing, finish = nothing} end
  local function title(k, name) return ("[%d/%d] %s"):format(k, total, name) end
  if not core.isatty(2) then
    local function done(k, name, row, ends)
      io.stderr:write(title(k, name), ": ", outcome(row), ends and "; " .. ends or "", "\n")
    end
    return {begin = check, done = done, finish = nothing}
  end
  local ends = ""
  local function show(text) io.stderr:write("\r\27[K", text:sub(1, LINE)) end
  return {
    begin = function(k, name, text)
      check()
      ends = text and text .. ": " or ""
      show(ends .. title(k, name))
    end,
    step = function(k, name, note) show(("%s%s: %s"):format(ends, title(k, name), note)) end,
    done = nothing,
    finish = function() show("") end,
  }
end

-- ---- the table

local function percent(value, base)
  if not value or not base or base == 0 then return "" end
  return ("%+.0f %%"):format(100 * (value - base) / base)
end

-- What the table needs of a row.
function report.summary(row)
  return {case = row.case, status = row.status, bytes = row.peak_bytes or row.predicted_peak_bytes, ms = row.step_ms}
end

-- A prediction has no times.
local function table_rows(rows)
  local base, timed = rows[1], false
  for _, row in ipairs(rows) do timed = timed or row.ms ~= nil end
  local lines = {{"case", "status", "memory", "vs first", timed and "step" or nil, timed and "vs first" or nil}}
  for i, row in ipairs(rows) do
    lines[i + 1] = {row.case, row.status,
      row.bytes and util.show_bytes(row.bytes) or "", i > 1 and percent(row.bytes, base.bytes) or "",
      timed and (row.ms and ("%.1f ms"):format(row.ms) or "") or nil,
      timed and (i > 1 and percent(row.ms, base.ms) or "") or nil}
  end
  return lines
end

-- Lines of cells as columns: the first left, the others right, or all of them left.
function report.columns(lines, left)
  local widths, out = {}, {}
  for _, line in ipairs(lines) do
    for k, text in ipairs(line) do widths[k] = math.max(widths[k] or 0, utf8.len(text) or #text) end
  end
  for i, line in ipairs(lines) do
    local parts = {}
    for k, text in ipairs(line) do
      local pad = (" "):rep(widths[k] - (utf8.len(text) or #text))
      parts[k] = (k == 1 or left) and text .. pad or pad .. text
    end
    out[i] = table.concat(parts, "  "):gsub("%s+$", "")
  end
  return out
end

-- Cells that did not end well stand out where colour is wanted.
local function painted(line, row, colour)
  if not colour or not row or row.status == "ok" then return line end
  return "\27[31m" .. line .. "\27[0m"
end

local function wants_colour()
  local no = os.getenv("NO_COLOR")
  return core.isatty(1) and (no == nil or no == "") and os.getenv("TERM") ~= "dumb"
end

-- rows: summaries of the first of `count` rows
function report.print(rows, count)
  local colour = wants_colour()
  for i, line in ipairs(report.columns(table_rows(rows))) do print(painted(line, rows[i - 1], colour)) end
  if count > #rows then print(("... and %d rows more: --csv FILE keeps all"):format(count - #rows)) end
end

return report
