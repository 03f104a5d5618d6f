-- A sweep in parts, for several machines: which cells each part has. A list of cells, a CSV file with a line for each
-- cell, can fix the parts.
local csv = require "memtide.results.csv"
local pace = require "memtide.sweep.pace"
local stats = require "memtide.results.stats"
local util = require "memtide.base.util"

local shards = {}

local SEED = 1 -- for the order in which cells of equal work are dealt

-- "3/8" -> {part = 3, of = 8}; nil: this is no part.
function shards.parse(text)
  local part, of = text:match("^(%d+)/(%d+)$")
  part, of = math.tointeger(tonumber(part)), math.tointeger(tonumber(of))
  if not part or not of or part < 1 or part > of then return nil end
  return {part = part, of = of}
end

-- The file of a part's rows: NAME.3-of-8.csv
function shards.path(name, shard) return ("%s.%d-of-%d.csv"):format(name, shard.part, shard.of) end

local FORMULA = "[=+%-@\t]"

-- The text of a value in a list. A spreadsheet would compute text that begins with = + - @, so such text gets a leading
-- ', as in results files; so does text that already begins with ' and a formula, so that shards.read returns the
-- original.
function shards.guarded(value)
  return type(value) == "string" and value:find("^'*" .. FORMULA) and "'" .. value or value
end

local function unguarded(text) return (text:gsub("^'('*" .. FORMULA .. ")", "%1")) end

-- works[k]: the work of cell k -> {[k] = its part, 1 to n}, {[part] = number of cells}. The cells with the most work
-- come first, each to the part with the least work so far. The order of cells of equal work is random: otherwise an
-- axis with n values would give each part only one of them.
function shards.deal(works, n)
  assert(n >= 1)
  local order, place, loads, counts, parts = {}, {}, {}, {}, {}
  for k = 1, #works do order[k] = k end
  order = stats.shuffled(order, SEED)
  for i, k in ipairs(order) do place[k] = i end
  table.sort(order, function(a, b)
    if works[a] ~= works[b] then return works[a] > works[b] end
    return place[a] < place[b]
  end)
  for i = 1, n do loads[i], counts[i] = 0, 0 end
  for _, k in ipairs(order) do
    local part = 1
    for i = 2, n do if loads[i] < loads[part] then part = i end end
    parts[k], loads[part], counts[part] = part, loads[part] + works[k], counts[part] + 1
  end
  return parts, counts
end

-- The part of every cell of a selection, as shards.deal; raises if there are fewer cells than parts.
function shards.split(cells, n)
  local works = {}
  if n > cells:count() then
    error(util.failure(("expected at most as many parts as there are cells, %d, found %d"):format(cells:count(), n),
      "usage"), 0)
  end
  for k = 1, cells:count() do works[k] = pace.work(cells:cell(k).values) end
  return shards.deal(works, n)
end

-- ---- the list of cells

shards.columns = {"shard", "experiment", "case", "cell", "repeat"} -- then the settings

-- Reads a list: {{shard =, case =, cell =, ...}, ..., of = number of parts}; raises if it is damaged.
function shards.read(path)
  local list = {of = 0}
  local columns, torn = csv.read(path, function(values, line)
    local part = math.tointeger(tonumber(values.shard))
    if not part or part < 1 or not values.cell or not values.case or not values["repeat"] then
      csv.damaged(path, line, "expected the columns %s of a list of memtide cells", table.concat(shards.columns, ", "))
    end
    for name, text in pairs(values) do values[name] = unguarded(text) end
    list.of = math.max(list.of, part)
    list[#list + 1] = values
  end)
  if torn or #list == 0 then csv.damaged(path, #list + 2, "the list of cells is incomplete") end
  for i, column in ipairs(shards.columns) do
    if columns[i] ~= column then csv.damaged(path, 1, "expected a column %s, found %s", column, columns[i]) end
  end
  return list
end

local function changed(path, format, ...)
  local why = format:format(...)
  error(util.failure(("%s: the script or the command line is not what the list was made of: %s"):format(path, why),
    "script"), 0)
end

-- Raises if a cell differs from its line in the list; now: its columns; changes: see status.changes.
function shards.check(path, now, changes)
  if changes ~= "" then changed(path, "%s of the cell %s changed", changes, now.case) end
end

-- Raises unless the list has these cells, judged by what is known before networks are built: their number and names.
local function check_names(path, list, cells)
  if #list ~= cells:count() then changed(path, "it lists %d cells, there are %d", #list, cells:count()) end
  for k, listed in ipairs(list) do
    local one = cells:cell(k)
    local name = ("%s (repeat %d)"):format(one.name, one.repeat_number)
    local old = ("%s (repeat %s)"):format(listed.case, listed["repeat"])
    if listed.experiment ~= one.experiment.name then
      changed(path, "it is of the experiment %s, this is %s", listed.experiment, one.experiment.name)
    end
    if name ~= old then changed(path, "cell %d was %s, it is %s", k, old, name) end
  end
end

-- The numbers of a part's cells in a selection; with a list of cells at `path` (or nil), also their lines in the list.
function shards.choose(cells, shard, path)
  local list, chosen, listed, parts = path and shards.read(path), {}, {}, {}
  if list then
    if shard.of ~= list.of then
      error(util.failure(("--shard %d/%d: %s has %d parts"):format(shard.part, shard.of, path, list.of), "usage"), 0)
    end
    check_names(path, list, cells)
    for k, one in ipairs(list) do parts[k] = math.tointeger(tonumber(one.shard)) end
  else
    parts = shards.split(cells, shard.of)
  end
  for k, part in ipairs(parts) do
    if part == shard.part then
      chosen[#chosen + 1] = k
      if list then listed[#chosen] = list[k] end
    end
  end
  return chosen, list and listed
end

return shards
