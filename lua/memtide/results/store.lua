-- Where a sweep's rows go: a CSV file or standard output, with samples and logs of cells beside the file. Only one
-- sweep at a time can have a file open.
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local csv = require "memtide.results.csv"
local samples = require "memtide.results.samples"
local statuses = require "memtide.results.statuses"
local util = require "memtide.base.util"

local store = {}
local Store = {}
local LONGEST = 2 * util.MOST_TEXT -- bytes of a value: a reason that was cut, the attempt and the path of the log
Store.__index = Store

-- Opens the place for rows with these own columns. purpose: "run", "predict" or another command; options: csv (nil:
-- nowhere, "-": standard output), say(text) for notices. Raises if the file cannot be opened or another sweep uses it.
function store.open(own_columns, purpose, options)
  local self = setmetatable({path = options.csv, say = options.say, before = 0}, Store)
  self.row = util.must(core.row(own_columns))
  self.columns = self.row:columns()
  self.to_output = self.path == "-"
  if self.to_output then io.stdout:write(self.row:header()) end
  if not self.path or self.to_output then return self end
  self.lock = util.must(core.lock(self.path .. ".lock", self.path))
  local torn
  self.file, torn = util.must(core.csv(self.path, self.row))
  if torn == true then
    self.say(("%s: an incomplete last line was moved to %s.torn"):format(self.path, self.path))
  end
  self.before = self.file:rows() -- rows of earlier runs
  if purpose == "run" then
    self.samples, torn = samples.open(self.path)
    if torn then
      self.say(("%s: an incomplete last line was moved to %s.torn"):format(self.samples.path, self.samples.path))
    end
  end
  if purpose == "predict" then self.file:flush_late() end
  return self
end

-- The texts of a row of the file, by column; nil: there is no such row or column.
function Store:texts(id, number)
  return setmetatable({}, {__index = function(_, column) return self.file:value(id, number, column) end})
end

-- Status and version of a row of the file; nil: there is no such row.
function Store:outcome(id, number)
  if not self.file or not self.file:value(id, number, "status") then return nil end
  local values = self:texts(id, number)
  return statuses.read(values), values.version
end

-- The row of a cell as it is in the file, {column = value}; now: the values that the cell has now.
function Store:read(now)
  local values, texts = {}, self:texts(now.cell, now["repeat"])
  for _, column in ipairs(self.columns) do
    local known, text = now[column], texts[column]
    -- the text 4 may be the number or the string: the cell knows which
    if known ~= nil and text == csv.text(known) then values[column] = known
    else values[column] = columns.value(column, text) end
  end
  values.status = statuses.read(texts)
  return values
end

-- The id of the latest row with the settings of `id`, whatever its network; nil: there is none.
function Store:latest(id, number) return self.file and self.file:latest(id, number) end

-- Changes the id of a row: it was written when the cell could not be built, and `to` is the cell's id now.
function Store:rename(id, number, to) util.must(self.file:rename(id, number, to)) end

function Store:append(values)
  self.row:clear()
  for _, column in ipairs(self.columns) do
    local value = values[column]
    util.must(self.row:set(column, type(value) == "string" and util.cut(value, LONGEST) or value))
  end
  if self.to_output then io.stdout:write(self.row:line()) end
  if not self.file then return end
  local done, message, code = self.file:append(self.row)
  if done then return end
  self.say("this row could not be written: " .. self.row:line():gsub("\n$", ""))
  error(util.failure(message, code), 0)
end

-- The samples of a visit of a cell: see samples.lua.
function Store:append_samples(visit, list) if self.samples then self.samples:append(visit, list) end end

-- Writes the log of a cell's worker to a file beside the rows and returns its path. If the rows go to no file, the log
-- is said (options.say) and nil is returned.
function Store:keep_log(process, values)
  local header = ("cell %s: %s\n%s: %s\n\n"):format(values.cell, values.case, values.status, values.reason or "")
  if not self.file then
    self.say((header .. process:log(util.MOST_TEXT)):gsub("%s+$", ""))
    return nil
  end
  local folder, name = self.path:gsub("%.csv$", "") .. ".logs", values.cell .. ".log"
  util.must(process:save_log(folder, name, header))
  return folder .. "/" .. name
end

function Store:flush() if self.file then util.must(self.file:flush()) end end

function Store:close()
  if self.file then self.file:close() end
  if self.samples then self.samples:close() end
  if self.lock then self.lock:close() end
  self.file, self.samples, self.lock = nil, nil, nil
end
Store.__close = Store.close

return store
