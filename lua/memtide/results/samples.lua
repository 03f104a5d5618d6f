-- The side file of a sweep, NAME.samples.csv: a line for every step that was timed, with the state of the machine. It
-- is only appended to: all lines of a visit of a cell at once, before the cell's row, so that no measurement is lost.
-- The next run moves a line that was cut short to NAME.samples.csv.torn.
local csv = require "memtide.results.csv"
local stats = require "memtide.results.stats"
local util = require "memtide.base.util"

local samples = {}
local File = {}
File.__index = File

-- {name, type of columns.lua}. `flag`: why a sample does not count, in the words of evidence.lua; empty: it counts.
local OF_VISIT = {{"cell", "id"}, {"repeat", "index"}, {"round", "index"}, {"version", "name"}, {"started_at", "time"}}
local OF_SAMPLE = {{"step", "index"}, {"seconds", "seconds"}, {"flag", "flags"}, {"switches", "whole"},
  {"preempted", "whole"}, {"steal_ms", "number"}, {"load", "number"}, {"cpu_mhz", "number"}, {"gpu_mhz", "number"},
  {"gpu_memory_mhz", "number"}, {"gpu_celsius", "number"}, {"gpu_throttle", "text"}, {"graph_seconds", "number"}}
local OLDER = 1 -- how many of the last columns files of older versions lack; such a file goes on without them
samples.columns, samples.type_of = {}, {}
for _, list in ipairs{OF_VISIT, OF_SAMPLE} do
  for _, column in ipairs(list) do
    samples.columns[#samples.columns + 1], samples.type_of[column[1]] = column[1], column[2]
  end
end
local HEADER = csv.line(samples.columns, #samples.columns)

-- The columns that a file must have whose header has `n` of them: all, or those of an older version's.
function samples.expected(n)
  local all = #samples.columns
  return table.move(samples.columns, 1, n == all - OLDER and n or all, 1, {})
end

-- Raises unless the file `name` has these columns.
function samples.check(name, found)
  for i, column in ipairs(samples.expected(#found)) do
    if found[i] ~= column then csv.damaged(name, 1, "expected a column %s, found %s", column, found[i]) end
  end
end

function samples.path(path) return (path:gsub("%.csv$", "") .. ".samples.csv") end

-- Is there a side file? One without a byte, such as /dev/null, is none.
function samples.exist(path)
  local file <close> = io.open(samples.path(path), "rb")
  return file ~= nil and file:read(0) ~= nil
end

-- Moves the text after the end of the last complete line to PATH.torn; returns whether there was any.
local function repair(path)
  local file = io.open(path, "rb")
  if not file then return false end
  local text = file:read("a") or ""
  file:close()
  local whole, rest = text:match("^(.*\n)(.*)$")
  if not whole then whole, rest = "", text end
  if rest == "" then return false end
  util.replace(path .. ".torn", function(write) write(rest) end)
  util.replace(path, function(write) write(whole) end)
  return true
end

local function ends_in_line(path)
  local file = io.open(path, "rb")
  if not file then return true end
  local empty = file:seek("end") == 0
  local last = not empty and file:seek("end", -1) and file:read(1)
  file:close()
  return empty or last == "\n"
end

-- Opens the file beside the rows of `path` to append to it. Second value: was a torn line moved?
function samples.open(path)
  local self = setmetatable({path = samples.path(path)}, File)
  local torn = not ends_in_line(self.path) and repair(self.path)
  local file <close> = io.open(self.path, "rb")
  local header = file and file:read("L")
  local expected = samples.expected(header and select(2, header:gsub(",", "")) + 1)
  self.n = #expected
  if header and header ~= csv.line(expected, self.n) then
    csv.damaged(self.path, 1, "these are not the columns of samples: expected %s", HEADER:gsub("\n", ""))
  end
  self.fresh = not header
  return self, torn
end

-- Appends the samples of a visit. visit: {cell =, repeat =, round =, version =, started_at =}; list: {{step =,
-- seconds =, ...}, ...}
function File:append(visit, list)
  local lines, values, n = {self.fresh and HEADER or ""}, {}, self.n
  for i, column in ipairs(OF_VISIT) do values[i] = visit[column[1]] end
  for _, sample in ipairs(list) do
    for i, column in ipairs(OF_SAMPLE) do values[#OF_VISIT + i] = sample[column[1]] end
    lines[#lines + 1] = csv.line(values, n)
  end
  local text = table.concat(lines)
  if not self.file then
    self.file = util.must_write(self.path, io.open(self.path, "ab"))
    self.file:setvbuf("full", 1 << 16)
  end
  util.must_write(self.path, self.file:write(text))
  util.must_write(self.path, self.file:flush())
  self.fresh = false
end

function File:close()
  if self.file then self.file:close() end
  self.file = nil
end

-- ---- reading

-- Seconds of the samples that count, of all visits of a cell: {{seconds, ...} of each visit, ...}; field: "graph_seconds": those
-- of their graphs, where that is known. What was disturbed does not count, unless so few others remain that their median has no
-- interval: a disturbed time is better than none. Second value: {timed = after the warm-up, disturbed = those of them with a
-- flag, counted = those that count}.
function samples.counted(visits, field)
  local good, all, count = {}, {}, {timed = 0, disturbed = 0}
  for i, list in ipairs(visits) do
    good[i], all[i] = {}, {}
    for _, sample in ipairs(list) do
      if sample.flag ~= "warmup" then
        local value, disturbed = sample[field or "seconds"], sample.flag ~= ""
        all[i][#all[i] + 1] = value
        if not disturbed then good[i][#good[i] + 1] = value end
        count.timed, count.disturbed = count.timed + 1, count.disturbed + (disturbed and 1 or 0)
      end
    end
  end
  local enough = stats.rank(count.timed - count.disturbed) ~= nil
  count.counted = enough and count.timed - count.disturbed or count.timed
  return enough and good or all, count
end

-- The times of all visits in one list
function samples.joined(visits)
  local out = {}
  for _, seconds in ipairs(visits) do table.move(seconds, 1, #seconds, #out + 1, out) end
  return out
end

local Index = {}
Index.__index = Index

local function key_of(cell, number, version) return ("%s %s %s"):format(cell, number, version) end

local function whole(text) return math.tointeger(tonumber(text)) end

-- Reads the file beside `path`: visits by cell, repeat and version; nil: there is no file. They are in the order of the
-- file, which is the order of time even if clocks were set back. A visit ends where the number of the step falls: two
-- may have begun in the same second. wanted(cell): should this cell's samples be kept? nil: all are.
function samples.read(path, wanted)
  if not samples.exist(path) then return nil end
  local name, self = samples.path(path), setmetatable({of = {}}, Index)
  local columns = csv.read(name, function(values, line)
    local seconds, round, step = tonumber(values.seconds), whole(values.round), whole(values.step)
    if not seconds or seconds < 0 or not round or not step then
      csv.damaged(name, line, "expected a round, a step and seconds, found %s, %s and %s", values.round, values.step,
        values.seconds)
    end
    if wanted and not wanted(values.cell) then return end
    local key = key_of(values.cell, values["repeat"], values.version)
    local visits = self.of[key] or {}
    self.of[key] = visits
    local visit = visits[#visits]
    if not visit or round ~= visit.round or values.started_at ~= visit.started_at or step <= visit.last then
      visit = {round = round, started_at = values.started_at}
      visits[#visits + 1] = visit
    end
    visit.last = step
    visit[#visit + 1] = {seconds = seconds, flag = values.flag, graph_seconds = tonumber(values.graph_seconds or "")}
  end)
  samples.check(name, columns)
  return self
end

-- The visits of a row: {{round =, started_at =, last = its last step, sample, ...}, ...}
function Index:visits(row) return self.of[key_of(row.cell, row["repeat"], row.version)] or {} end

-- The times that count, {{seconds, ...} of each visit, ...}, as stats.interval takes them. rows: one row, or several of
-- the same work.
function Index:rounds(rows)
  local out = {}
  for _, row in ipairs(rows) do
    for _, seconds in ipairs((samples.counted(self:visits(row)))) do out[#out + 1] = seconds end
  end
  return out
end

-- How much was disturbed while these rows were measured: {timed, disturbed, counted}, summed up; cells: how many rows had
-- so few others that disturbed times count, too.
function Index:disturbed(rows)
  local out = {timed = 0, disturbed = 0, counted = 0, cells = 0}
  for _, row in ipairs(rows) do
    local _, count = samples.counted(self:visits(row))
    for name, value in pairs(count) do out[name] = out[name] + value end
    if count.counted > count.timed - count.disturbed then out.cells = out.cells + 1 end
  end
  return out
end

-- The same in words; nil: nothing was timed.
function samples.told(count)
  if count.timed == 0 then return nil end
  local text = ("%d of %d timed steps were disturbed"):format(count.disturbed, count.timed)
  if count.disturbed == 0 then return text end
  if count.cells == 0 then return text .. " and do not count" end
  return ("%s and do not count, except in %d row%s, where fewer than %d others remain"):format(text, count.cells,
    count.cells == 1 and "" or "s", stats.least())
end

function Index:interval(rows) return stats.interval(self:rounds(rows)) end

return samples
