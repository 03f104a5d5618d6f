-- Runs or predicts every cell of an experiment: one row each, appended as soon as it is there, resumed from the file.
local cell = require "memtide.cell"
local core = require "memtide.core"
local report = require "memtide.report"
local settings = require "memtide.settings"
local util = require "memtide.util"

local sweep = {}

sweep.categories = {"weights", "gradients", "optimizer", "activations", "activation_gradients", "input",
  "workspace", "other"}

-- ---- rows: {column = value}

local function peak_columns(row, peak)
  for _, category in ipairs(sweep.categories) do row[category .. "_bytes"] = peak.categories[category] end
  row.peak_op = peak.op
end

-- Numbers stay numbers, also in JSON.
local function column_value(value)
  if value == nil or math.type(value) then return value end
  return settings.text(value)
end

local function first_columns(self, id)
  local v = self.values
  local row = {
    experiment = self.experiment.name, case = self.name, cell = id, ["repeat"] = self.repeat_number,
    model = self.model_name, effective_batch = v.batch * v.accumulate, seed = self.seed, version = core.version,
    started_at = os.date("!%Y-%m-%dT%H:%M:%SZ"),
  }
  for _, name in ipairs(settings.names) do row[name] = column_value(v[name]) end
  for _, name in ipairs(self.experiment:own_axes()) do row[name] = column_value(v[name]) end
  return row
end

local function predicted_columns(self, row)
  local found, info = self.prediction, cell.device(self.values.device):info()
  row.device_name, row.driver = info and info.name, info and info.driver
  row.status, row.reason = found.fits and "ok" or "oom", found.reason
  row.lower_bound_bytes = found.lower_bound
  if found.fits then
    row.predicted_peak_bytes = found.peak.bytes
    peak_columns(row, found.peak)
  end
end

-- A clock's noise need not fill a column.
local function six_digits(x) return tonumber(("%.6g"):format(x)) end

local function time_columns(row, seconds)
  local sorted = table.move(seconds, 1, #seconds, 1, {})
  table.sort(sorted)
  local median = util.quantile(sorted, 0.5)
  row.steps, row.step_ms, row.step_ms_min = #sorted, six_digits(median * 1e3), six_digits(sorted[1] * 1e3)
  row.step_ms_p90 = six_digits(util.quantile(sorted, 0.9) * 1e3)
  if median > 0 then row.samples_per_s = six_digits(row.effective_batch / median) end
end

local function measured_columns(row, found)
  row.status, row.reason = found.status, found.reason
  if not found.memory then return end
  row.peak_bytes = found.memory.peak.bytes
  row.allocated_bytes, row.reserved_bytes = found.memory.used, found.memory.held
  row.device_used_bytes = found.device_used
  if found.device_used then row.untracked_bytes = found.device_used - found.memory.held end
  peak_columns(row, found.memory.peak)
  time_columns(row, found.seconds)
  row.loss_first, row.loss_last = found.losses[1], found.losses[#found.losses]
  row.test_accuracy = found.accuracy
end

local function fill(self, row, purpose, progress)
  cell.compile(self)
  local reason = not self.prediction.fits and self.prediction.reason
  -- the limit says where it does not fit; this, how much it needs
  if reason then self.prediction = cell.predict(self) end
  predicted_columns(self, row)
  if reason then row.status, row.reason = "oom", reason end
  if purpose ~= "run" then return nil end
  local found = cell.run(self, progress)
  measured_columns(row, found)
  return found.code
end

-- ---- one cell

local function message_of(problem)
  if util.is_failure(problem) then return problem.message, problem.code end
  return tostring(problem)
end

-- The cell's row, and the code of what went wrong. Never raises, but for an interrupt: what goes wrong in one cell is
-- that cell's row.
local function make_row(self, id, purpose, progress)
  local row = first_columns(self, id)
  if self.failed then
    row.status, row.reason = "error", self.failed
    return row
  end
  local good, problem = pcall(fill, self, row, purpose, progress)
  if good then return row, problem end
  local message, code = message_of(problem)
  if message:find("interrupted", 1, true) then error(problem, 0) end
  row.status, row.reason = code == "oom" and "oom" or "error", message
  return row, code
end

local function release(self)
  for _, key in ipairs{"eval", "program", "network"} do
    if self[key] then self[key]:close() end
    self[key] = nil
  end
  collectgarbage()
end

-- Builds every network first: a script in which no cell can be built is a mistake, not a result.
local function build_all(cells, options)
  local first, built = nil, 0
  for _, self in ipairs(cells) do
    self.memory = options.memory
    local good, problem = pcall(cell.build, self)
    if good then built = built + 1
    else
      first = first or problem
      self.failed, self.model_name, self.seed = message_of(problem), self.values.model_name, self.values.seed or 1
    end
  end
  if built == 0 and first then error(first, 0) end
end

-- ---- all cells

local function open_file(options, row, purpose)
  if options.csv == "-" or not options.csv then return nil end
  local file, torn = util.must(core.csv(options.csv, row))
  if torn == true then
    options.say(("%s: an incomplete last line was moved to %s.torn"):format(options.csv, options.csv))
  end
  if purpose == "predict" then file:flush_late() end
  return file
end

-- Of an earlier run's row: what a second run would only find again. Other cells are run anew, and the later row counts.
local SETTLED = {ok = true, oom = true, nan = true, skipped = true}

-- The row that an earlier run left, read back for the table; nil and its status when the cell is to be run anew.
local function earlier(file, id, number, columns)
  local status = file and file:value(id, number, "status")
  if not SETTLED[status] then return nil, status end
  local row = {}
  for _, column in ipairs(columns) do
    local text = file:value(id, number, column)
    if text ~= "" then row[column] = math.tointeger(tonumber(text)) or tonumber(text) or text end
  end
  row.cell = id
  return row
end

local function write(values, row, columns, file, options)
  for _, column in ipairs(columns) do util.must(row:set(column, values[column])) end
  if file then util.must(file:append(row)) end
  if options.csv == "-" then io.stdout:write(row:line()) end
end

-- Returns the rows, and how many of them were there before. purpose: "run" or "predict".
function sweep.run(self, purpose, options)
  local cells, rows, resumed, again = options.cells or self:cells(), {}, 0, 0
  if #cells == 0 then util.fail_at(self.where, "experiment: there is no cell to run") end
  build_all(cells, options)
  local row = util.must(core.row(self:own_axes()))
  local columns, file = row:columns(), open_file(options, row, purpose)
  local progress = report.progress(#cells, options)
  if options.csv == "-" then io.stdout:write(row:header()) end
  local code
  for i, current in ipairs(cells) do
    local id = cell.id(current, purpose)
    local values, unsettled = earlier(file, id, current.repeat_number, columns)
    if values then
      resumed = resumed + 1
    else
      again = again + (unsettled and 1 or 0)
      progress.begin(i, current.name)
      values, code = make_row(current, id, purpose, progress.step)
      row:clear()
      write(values, row, columns, file, options)
      progress.done(values)
    end
    if options.json then io.stdout:write(report.json(values, columns), "\n") end
    rows[i] = values
    release(current)
    if code == "device" then break end -- no later cell could trust it
  end
  progress.finish()
  if again > 0 then
    options.say(("%d of %d cells had ended in an error, a crash or a timeout in %s: they were run again"):format(again,
      #rows, options.csv))
  end
  if file then
    util.must(file:flush())
    file:close()
  end
  if code == "device" then error(util.failure(rows[#rows].reason, code), 0) end
  return rows, resumed
end

return sweep
