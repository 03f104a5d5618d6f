-- memtide merge OUT.csv A.csv B.csv ...: merges the rows of several files, and their samples, with one row for each
-- cell and repeat. OUT.csv is read too if it exists, so that nothing is lost. The input files do not change.
local cell = require "memtide.net.cell"
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local csv = require "memtide.results.csv"
local options = require "memtide.cli.options"
local results = require "memtide.results.results"
local samples = require "memtide.results.samples"
local shards = require "memtide.sweep.shards"
local statuses = require "memtide.results.statuses"
local util = require "memtide.base.util"

local merge = {words = "OUT.csv IN.csv ...", text = "the rows and samples of several files as one",
  options = {options.cells}}
local Merge = {}
Merge.__index = Merge

local NEEDED = {"cell", "repeat", "case", "status", "reason", "version", "started_at"}
local SHOWN = 20 -- lines about conflicts, and about missing cells

local function key_of(values) return values.cell .. " " .. values["repeat"] end

-- The same key for all networks with these settings
local function settings_of(values) return values.cell:match("^[^-]*") .. " " .. values["repeat"] end

-- ---- rows

-- Adds the names that are new to `all`, each after the name that comes before it in `names`.
local function add_columns(all, names)
  local place = {}
  local function index() for i, name in ipairs(all) do place[name] = i end end
  index()
  for i, name in ipairs(names) do
    if not place[name] then
      table.insert(all, (place[names[i - 1]] or 0) + 1, name)
      index()
    end
  end
end

-- A result ranks above a skipped cell, and that above a failure.
local function rank(row) return statuses.of(row.values.status).rank end

-- Does row b replace row a of the same cell? In one file the later row counts, as for memtide run.
local function replaces(a, b)
  if a.path == b.path then return true end
  if rank(a) ~= rank(b) then return rank(b) > rank(a) end
  return b.values.started_at > a.values.started_at
end

local function is_same(a, b)
  for name, value in pairs(a.values) do if value ~= (b.values[name] or "") then return false end end
  for name, value in pairs(b.values) do if value ~= (a.values[name] or "") then return false end end
  return true
end

local function place_text(row)
  local v = row.values
  return ("%s line %d (%s, %s)"):format(row.path, row.line, v.status, v.started_at)
end

function Merge:conflict(kept, left)
  self.conflicts = self.conflicts + 1
  if self.conflicts > SHOWN then return end
  self.say(("two rows of the cell %s, repeat %s: kept is %s, left out is %s"):format(kept.values.case,
    kept.values["repeat"], place_text(kept), place_text(left)))
end

function Merge:take(row)
  local key = key_of(row.values)
  local old = self.rows[key]
  if not old then self.order[#self.order + 1] = key end
  if old and is_same(old, row) then
    self.same = self.same + 1
    return
  end
  local better = not old or replaces(old, row)
  if old and old.path ~= row.path then
    if better then self:conflict(row, old) else self:conflict(old, row) end
  end
  if better then self.rows[key] = row end
end

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

function Merge:read(path)
  local rows = {}
  local names, torn = results.read(path, function(values, line)
    rows[#rows + 1] = {path = path, line = line, values = values}
  end)
  local known = {}
  for _, name in ipairs(names) do known[name] = true end
  columns.need(path, known, NEEDED)
  if torn then self.say(path .. ": the last line is incomplete, and left out") end
  local like, problem = results.row_like(names)
  if not like then csv.damaged(path, 1, "%s", problem) end
  add_columns(self.columns, names)
  for _, row in ipairs(rows) do self:take(row) end
  self.read_files[#self.read_files + 1] = path
end

-- Reads `out`, if it exists, and the inputs. A missing input is reported: that part of a sweep may not have begun.
function Merge:read_all(out, inputs)
  if exists(out) then self:read(out) end
  for _, path in ipairs(inputs) do
    if exists(path) then self:read(path)
    else
      self.lacking = self.lacking + 1
      self.say(path .. ": there is no such file; left out")
    end
  end
  if self.lacking == #inputs then error(util.failure("merge: none of the files is there", "file"), 0) end
end

-- If a cell could not be built in one part but was built in another, the row of the other part is kept.
function Merge:drop_unbuilt()
  local built, order = {}, {}
  for _, row in pairs(self.rows) do
    if not cell.is_unbuilt(row.values.cell) then built[settings_of(row.values)] = row end
  end
  for _, key in ipairs(self.order) do
    local row = self.rows[key]
    local other = cell.is_unbuilt(row.values.cell) and built[settings_of(row.values)]
    if other then
      self:conflict(other, row)
      self.rows[key] = nil
    else order[#order + 1] = key end
  end
  self.order = order
end

-- ---- samples: each row keeps the samples of the file that the row comes from

-- Calls line(values) for every line of the samples beside `path`.
function Merge:each_sample(path, line)
  local name = samples.path(path)
  local found, torn = csv.read(name, line)
  samples.check(name, found)
  if torn then self.say(name .. ": the last line is incomplete, and left out") end
end

-- Samples without a row belong to a cell that was interrupted: those of the first file that has them are kept.
function Merge:write_samples(out)
  local owner, any = {}, false
  for key, row in pairs(self.rows) do owner[key] = row.path end
  for _, path in ipairs(self.read_files) do any = any or samples.exist(path) end
  if not any then return end
  util.replace(samples.path(out), function(write)
    write(csv.line(samples.columns, #samples.columns))
    for _, path in ipairs(self.read_files) do
      if samples.exist(path) then
        self:each_sample(path, function(values)
          local key, list = key_of(values), {}
          owner[key] = owner[key] or path
          if owner[key] ~= path then return end
          for i, name in ipairs(samples.columns) do list[i] = values[name] end
          write(csv.line(list, #samples.columns))
        end)
      end
    end
  end)
end

-- ---- missing cells

-- The cells of the list that have no row, and the keys of those that have one. A cell whose worker died before the
-- network was built is found by its settings.
function Merge:missing(list)
  local of_settings, missing, listed = {}, {}, {}
  for key, row in pairs(self.rows) do
    if cell.is_unbuilt(row.values.cell) then of_settings[settings_of(row.values)] = key end
  end
  for _, one in ipairs(list) do
    local key = key_of(one)
    key = self.rows[key] and key or of_settings[settings_of(one)]
    if key then listed[#listed + 1] = key else missing[#missing + 1] = one end
  end
  return missing, listed
end

-- Sorts the rows: first those of the list in its order, then the others.
function Merge:sort(listed)
  local seen, order = {}, {}
  for _, keys in ipairs{listed, self.order} do
    for _, key in ipairs(keys) do
      if not seen[key] then
        seen[key], order[#order + 1] = true, key
      end
    end
  end
  self.order = order
end

function Merge:write_rows(out)
  util.replace(out, function(write)
    write(csv.line(self.columns, #self.columns))
    for _, key in ipairs(self.order) do
      local values, list = self.rows[key].values, {}
      for i, name in ipairs(self.columns) do list[i] = values[name] end
      write(csv.line(list, #self.columns))
    end
  end)
end

-- "12 ok, 1 oom"
local function status_text(rows)
  local counts, words = {}, {}
  for _, row in pairs(rows) do counts[row.values.status] = (counts[row.values.status] or 0) + 1 end
  for _, word in ipairs(util.sorted_keys(counts)) do words[#words + 1] = ("%d %s"):format(counts[word], word) end
  return table.concat(words, ", ")
end

function Merge:tell(out, missing)
  if self.conflicts > SHOWN then self.say(("... and %d more"):format(self.conflicts - SHOWN)) end
  print(("%s: %d rows (%s) of %d files; %d the same, %d in conflict"):format(out, #self.order, status_text(self.rows),
    #self.read_files, self.same, self.conflicts))
  for i, one in ipairs(missing) do
    if i > SHOWN then break end
    print(util.printable(("missing: %s, repeat %s, of part %s"):format(one.case, one["repeat"], one.shard)))
  end
  if #missing > 0 then print(("%d cells are missing"):format(#missing)) end
end

-- words: {out, input, ...}; given: cells, say. Returns the exit status; 1: a file or a cell is missing.
function merge.alone(words, given)
  if #words < 2 then util.fail_usage("merge: expected the file to write and those to read, found %d", #words) end
  local out, seen = words[1], {}
  for _, path in ipairs(words) do
    if seen[path] then util.fail_usage("merge: %s is named twice", path) end
    seen[path] = true
  end
  local list = given.cells and shards.read(given.cells) or {}
  local self = setmetatable({say = given.say, rows = {}, order = {}, columns = util.must(core.row{}):columns(),
    read_files = {}, same = 0, conflicts = 0, lacking = 0}, Merge)
  local _ <close> = util.must(core.lock(out .. ".lock", out))
  self:read_all(out, table.move(words, 2, #words, 1, {}))
  self:drop_unbuilt()
  local missing, listed = self:missing(list)
  self:sort(listed)
  self:write_samples(out)
  self:write_rows(out)
  self:tell(out, missing)
  return (#missing > 0 or self.lacking > 0) and 1 or 0
end

return merge
