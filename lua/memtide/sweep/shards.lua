-- A sweep in parts, for machines that work on it side by side: which cells are whose. The parts can be frozen in a list
-- of the cells, a CSV file with a line for each of them: its part, and what it is.
local csv = require "memtide.results.csv"
local pace = require "memtide.sweep.pace"
local stats = require "memtide.results.stats"
local util = require "memtide.base.util"

local shards = {}

local SEED = 1 -- of the order in which cells of equal work are dealt

-- "3/8" -> {part = 3, of = 8}; nil: it is none.
function shards.parse(text)
  local part, of = text:match("^(%d+)/(%d+)$")
  part, of = math.tointeger(tonumber(part)), math.tointeger(tonumber(of))
  if not part or not of or part < 1 or part > of then return nil end
  return {part = part, of = of}
end

-- The rows of a part: NAME.3-of-8.csv
function shards.path(name, shard) return ("%s.%d-of-%d.csv"):format(name, shard.part, shard.of) end

local FORMULA = "[=+%-@\t]"

-- The text of a value in a list. A spreadsheet would compute what begins with = + - @, so a ' stands before that, as in
-- files of results; before one of the text's own, too, so that shards.read gives back what there was.
function shards.guarded(value)
  return type(value) == "string" and value:find("^'*" .. FORMULA) and "'" .. value or value
end

local function unguarded(text) return (text:gsub("^'('*" .. FORMULA .. ")", "%1")) end

local function least(loads)
  local best = 1
  for i = 2, #loads do if loads[i] < loads[best] then best = i end end
  return best
end

-- works[k]: of cell k -> its part, 1 to n. The most work first, each to the part that has the least so far. Of cells of
-- equal work the order is drawn: else an axis as long as there are parts would give each of them one of its values.
function shards.deal(works, n)
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
    local part = least(loads)
    parts[k], loads[part], counts[part] = part, loads[part] + works[k], counts[part] + 1
  end
  return parts, counts
end

-- The part of every cell of a selection.
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

shards.columns = {"shard", "experiment", "case", "cell", "repeat"} -- and the settings

-- {{shard =, case =, cell =, ...}, ..., of = parts}
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

-- Raises where a cell is another than the list says; changes: see status.lua.
function shards.check(path, now, changes)
  if changes ~= "" then changed(path, "%s of the cell %s changed", changes, now.case) end
end

-- What can be said before networks are built: how many cells there are, and their names.
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

-- The places of a part's cells among a selection's; with a list of cells at `path`, also what it says of each.
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
