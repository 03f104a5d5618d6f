-- The facts of a file of results that its pictures show: a point for each cell, from all its rows.
--
--   path, names      of the file, and its columns
--   rows             the last row of each cell and repeat, in the order of the file, as texts
--   points           {{rows, row = the first, memory, time = {median, low, high}, status, limit, predicted}, ...}
--   varying          the settings that differ between points
--
-- memory: bytes, measured or, where there is no measurement, predicted (`predicted` is true); time: milliseconds of a
-- step, with its 95 % interval where there are samples (low, high), else without. limit: bytes that a cell which did
-- not fit could have.
local columns = require "memtide.results.columns"
local report = require "memtide.results.report"
local results = require "memtide.results.results"
local samples = require "memtide.results.samples"
local stats = require "memtide.results.stats"

local rows = {}

local NEEDED = {"experiment", "case", "cell", "repeat", "status", "reason", "peak_bytes", "predicted_peak_bytes", "step_ms",
  "version"}
local DERIVED = {effective_batch = true} -- from other settings

local function read(path)
  local list, at = {}, {}
  local names, torn = results.read(path, function(row)
    local key = ("%s\0%s\0%s"):format(row.cell, row["repeat"], row.device)
    if not at[key] then
      at[key] = #list + 1
    end
    list[at[key]] = row
  end)
  local has = {}
  for _, name in ipairs(names) do has[name] = true end
  columns.need(path, has, NEEDED)
  return list, names, torn
end

local function numbers(list, column)
  local out = {}
  for _, row in ipairs(list) do out[#out + 1] = tonumber(row[column]) end
  return out
end

local function median(list) return list[1] and stats.median(list) end

-- {median, low, high} in milliseconds; nil: the cell has no time
local function time_of(list, index)
  local found = index and index:interval(list)
  if found and found.median > 0 then
    return {median = found.median * 1e3, low = found.low and found.low * 1e3, high = found.high and found.high * 1e3}
  end
  local middle = median(numbers(list, "step_ms"))
  return middle and middle > 0 and {median = middle} or nil
end

local function fill(point, index)
  local measured, predicted = median(numbers(point.rows, "peak_bytes")), median(numbers(point.rows, "predicted_peak_bytes"))
  point.memory, point.predicted = measured or predicted, measured == nil
  if point.memory == 0 then point.memory = nil end
  point.status = point.row.status
  point.time = point.status == "ok" and time_of(point.rows, index) or nil
  local reason = point.row.reason
  point.limit = tonumber(reason:match "^out of memory:.* limit (%d+)"
    or reason:match "^needs %d+ bytes, %d+ more than the (%d+)")
end

-- Those of the file's settings whose values differ between the rows
local function varying(list, names)
  local out = {}
  for _, name in ipairs(names) do
    if columns.is_setting(name) and not DERIVED[name] and report.differs(list, name) then out[#out + 1] = name end
  end
  return out
end

-- Reads a file of results. Raises where it is none, or is damaged. say: for a notice about an incomplete line
function rows.facts(path, say)
  local list, names, torn = read(path)
  if torn then say(("%s: the last line is incomplete, and left out"):format(path)) end
  local index, points, at = samples.read(path), {}, {}
  for _, row in ipairs(list) do
    local key = row.cell .. "\0" .. row.device
    local point = at[key]
    if not point then
      point = {rows = {}, row = row}
      at[key], points[#points + 1] = point, point
    end
    point.rows[#point.rows + 1] = row
  end
  for _, point in ipairs(points) do fill(point, index) end
  return {path = path, names = names, rows = list, points = points, varying = varying(list, names), samples = index}
end

-- ---- an axis, and what is left

-- The text that tells a point apart by these settings: "fp32, sqrt", with names where a word alone says too little
function rows.label(point, names)
  local words = {}
  for _, name in ipairs(names) do
    local value = point.row[name]
    if value ~= "" then words[#words + 1] = tonumber(value) and ("%s %s"):format(name, value) or value end
  end
  return table.concat(words, ", ")
end

local function others(list, name)
  local out = {}
  for _, other in ipairs(list) do if other ~= name then out[#out + 1] = other end end
  return out
end

-- The points as lines over the column `name`: {{label, points = {{x, point}, ... by x}}, ...}; nil: it is no number.
function rows.series(facts, name)
  local out, of, rest = {}, {}, others(facts.varying, name)
  for _, point in ipairs(facts.points) do
    local x = tonumber(point.row[name])
    if not x then return nil end
    local label = rows.label(point, rest)
    if not of[label] then
      of[label] = {label = label, points = {}}
      out[#out + 1] = of[label]
    end
    table.insert(of[label].points, {x = x, point = point})
  end
  for _, one in ipairs(out) do
    local order = {}
    for i, p in ipairs(one.points) do order[p] = i end
    table.sort(one.points, function(a, b) if a.x ~= b.x then return a.x < b.x end return order[a] < order[b] end)
  end
  return out
end

local function lines_of(series)
  local count = 0
  for _, one in ipairs(series or {}) do
    if one.points[1].x < one.points[#one.points].x then count = count + #one.points end
  end
  return count
end

-- The setting over which most points lie on lines; nil: over none half of them do, and each point stands alone.
function rows.axis(facts)
  local best, most = nil, math.max(2, #facts.points // 2) - 1
  for _, name in ipairs(facts.varying) do
    local count = lines_of(rows.series(facts, name))
    if count > most then best, most = name, count end
  end
  return best
end

return rows
