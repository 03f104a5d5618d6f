-- The columns of a cell's row, as {column = value}: those that identify the cell, predictions, measurements.
local cell = require "memtide.net.cell"
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local exponents = require "memtide.net.exponents"
local estimate = require "memtide.sweep.estimate"
local settings = require "memtide.net.settings"
local stats = require "memtide.results.stats"
local util = require "memtide.base.util"

local row = {}

local function peak_columns(out, peak)
  for _, category in ipairs(columns.categories) do out[category .. "_bytes"] = peak.categories[category] end
  out.peak_op = peak.op
end

-- A setting's value for a column: numbers, true and false stay, also in JSON; anything else becomes text.
function row.column_value(value)
  if value == nil or type(value) == "boolean" or math.type(value) then return value end
  return settings.text(value)
end

-- The columns that identify the cell; device: where it runs, if that is not the device of its settings.
function row.identity(self, id, device)
  local v = self.values
  local out = {
    experiment = self.experiment.name, case = self.name, cell = id, ["repeat"] = self.repeat_number,
    model = self.model_name or v.model_name, effective_batch = v.batch ~= "max" and cell.effective_batch(self) or nil,
    seed = self.seed or v.seed or 1, version = core.version, started_at = os.date("!%Y-%m-%dT%H:%M:%SZ"),
  }
  for _, name in ipairs(settings.columns) do out[name] = row.column_value(v[name]) end
  for _, name in ipairs(self.experiment:own_axes()) do out[name] = row.column_value(v[name]) end
  out.device = device or out.device
  return out
end

-- Further digits of a time are noise, and those of a share nobody reads.
local function six_digits(x) return tonumber(("%.6g"):format(x)) end

-- The columns of several ranks
local function rank_columns(self, out, found)
  local sent, seconds = cell.transfer(self)
  if not sent then return end
  out.predicted_peak_rank, out.predicted_sum_bytes, out.predicted_sent_bytes = found.rank, found.sum, sent
  out.predicted_communication_ms = seconds and six_digits(seconds * 1e3)
end

-- The columns of the compiled cell's prediction.
function row.predicted(self)
  local found, info = self.prediction, cell.device(self.values.device):info()
  local out = {device_name = info and info.name, driver = info and info.driver, emulated = cell.emulated(self),
    status = found.fits and "predicted" or "oom", reason = found.reason, lower_bound_bytes = found.lower_bound,
    batch = self.values.batch, effective_batch = cell.effective_batch(self),
    cost = estimate.cost(self)} -- not a column: for estimates
  if found.fits then
    out.predicted_peak_bytes = found.peak.bytes
    peak_columns(out, found.peak)
    out.host_bytes = found.host
    rank_columns(self, out, found)
    for _, name in ipairs{"max_memory_allocated", "max_memory_reserved", "device_bytes"} do out[name] = found[name] end
  end
  return out
end

-- Sets the columns of times from the seconds of steps, at least one, of `batch` samples each, and those of their graphs, if they
-- have any.
function row.time_columns(out, seconds, batch, graphs)
  assert(#seconds > 0)
  local sorted = stats.sorted(seconds)
  local median = util.quantile(sorted, 0.5)
  out.steps, out.step_ms, out.step_ms_min = #sorted, six_digits(median * 1e3), six_digits(sorted[1] * 1e3)
  out.step_ms_p90 = six_digits(util.quantile(sorted, 0.9) * 1e3)
  if median > 0 then out.samples_per_s = six_digits(batch / median) end
  if #graphs > 0 then out.graph_ms = six_digits(util.quantile(stats.sorted(graphs), 0.5) * 1e3) end
end

-- Of the bytes of each rank: the most, the first rank that has them, and the sum
local function of_ranks(bytes)
  local most, sum = 1, 0
  for k, one in ipairs(bytes) do
    if one > bytes[most] then most = k end
    sum = sum + one
  end
  return bytes[most], most - 1, sum
end

-- The columns of a run; found: what cell.run has returned.
function row.measured(self, found)
  local out = {status = found.status, reason = found.reason}
  if not found.memory then return out end
  out.peak_bytes = found.memory.peak.bytes
  out.allocated_bytes, out.reserved_bytes = found.memory.used, found.memory.held
  out.device_used_bytes = found.device_used
  if found.device_used then out.untracked_bytes = found.device_used - found.memory.held end
  peak_columns(out, found.memory.peak)
  out.host_bytes = found.memory.host
  row.time_columns(out, found.seconds, cell.effective_batch(self), found.graphs)
  out.loss_first, out.loss_last = found.losses[1], found.losses[#found.losses]
  if found.exponents then
    out.underflow_share, out.gradient_histogram = six_digits(found.exponents.underflow_share or 0), exponents.text(found.exponents)
  end
  if found.peaks then
    -- ranks have fewer threads than the process that predicted the cell
    out.predicted_peak_bytes, out.predicted_peak_rank, out.predicted_sum_bytes = of_ranks(found.predicted)
    out.peak_rank, out.rank_peaks = found.peak_rank, table.concat(found.peaks, " ")
    out.ranks_bytes = select(3, of_ranks(found.peaks))
  end
  out.test_accuracy, out.loss_scale, out.skipped_steps = found.accuracy, found.loss_scale, found.skipped_steps
  return out
end

return row
