-- memtide verify FILE.csv [SCRIPT]: checks that a results file is as memtide would have written it: every line, the
-- values of a row among each other, the samples beside it, and the cells of the script.
local cell = require "memtide.net.cell"
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local csv = require "memtide.results.csv"
local options = require "memtide.cli.options"
local report = require "memtide.results.report"
local results = require "memtide.results.results"
local row = require "memtide.sweep.row"
local samples = require "memtide.results.samples"
local selection = require "memtide.sweep.selection"
local status = require "memtide.sweep.status"
local statuses = require "memtide.results.statuses"
local util = require "memtide.base.util"

local verify = {words = "FILE.csv [SCRIPT]",
  text = "whether a file of results is whole and agrees with itself, and with the script", options = {options.PLAN, options.json}}
local Verify = {}
Verify.__index = Verify

function Verify:found(path, line, field, format, ...)
  self.findings = self.findings + 1
  local problem = format:format(...)
  if self.json then
    self.list[self.findings] = {file = path, line = line, field = field, problem = problem}
    return
  end
  print(util.printable(("%s:%d: %s: %s"):format(path, line, field, problem)))
end

function Verify:check_types(path, line, values, list, type_of)
  local before = self.findings
  for _, name in ipairs(list) do
    local expected = columns.wrong(type_of[name] or "value", values[name])
    if expected then self:found(path, line, name, 'expected %s, found "%s"', expected, values[name]) end
  end
  return self.findings == before
end

-- ---- lines

-- The first place where two lists of columns differ, and what is expected and found there; nil: they are equal.
local function difference(expected, found)
  for i = 1, math.max(#expected, #found) do
    if expected[i] ~= found[i] then return i, expected[i] or "nothing", found[i] or "nothing" end
  end
end

-- The columns that a results file should have: those of memtide and the script's own axes, in the format that is most
-- like `list`, the columns that it has.
local function results_columns(list)
  local best, most = nil, 0
  for names in results.formats(results.row_like(list) or util.must(core.row{})) do
    local place = difference(names, list)
    if not place then return names end
    if place >= most then best, most = names, place end
  end
  return best
end

-- Calls each(values, line) for every line without a fault. expected(names) returns the columns that the file should
-- have; type_of: their types; read(values), if given, changes values of earlier versions to those of this one. Returns
-- whether the header is good.
function Verify:lines(path, expected, type_of, each, read)
  local names
  local torn = csv.lines(path, function(list, line)
    if not list then return self:found(path, line, "line", "its quotes do not match") end
    if not names then
      names = list
      local place, wanted, name = difference(expected(list), list)
      if place then self:found(path, line, name, "column %d: expected %s, found %s", place, wanted, name) end
      self.good_header = not place
    elseif #list ~= #names then
      self:found(path, line, "line", "expected %d values, found %d", #names, #list)
    elseif self.good_header then
      local values = csv.by_name(names, list)
      if read then read(values) end
      if self:check_types(path, line, values, names, type_of) then each(values, line) end
    end
  end)
  if torn then self:found(path, torn, "line", "the last line has no end") end
  if not names then self:found(path, 1, "line", "there is no header") end
  return names and self.good_header
end

-- ---- what must hold between the values of a row

local function sum_of_categories(v)
  local sum = 0
  for _, category in ipairs(columns.categories) do
    local bytes = tonumber(v[category .. "_bytes"])
    if not bytes then return nil, category end
    sum = sum + bytes
  end
  return sum
end

local function near(a, b) return math.abs(a - b) <= 2e-5 * math.abs(b) end -- both are rounded to six digits

-- {field, test(v, measured)}, for rows with status ok (measured) or predicted; test returns whether the values are
-- good, and a format with its arguments for the message. v: the row's values, as numbers where they are numbers
local OF_RESULT = {
  {"predicted_peak_bytes", function(v)
    return v.predicted_peak_bytes, "there is no prediction"
  end},
  {"peak_bytes", function(v, measured)
    return not measured or v.peak_bytes == v.predicted_peak_bytes,
      "measured %s, predicted %s", v.peak_bytes, v.predicted_peak_bytes
  end},
  {"lower_bound_bytes", function(v)
    return not v.lower_bound_bytes or v.lower_bound_bytes <= v.predicted_peak_bytes,
      "%s is above the predicted peak %s", v.lower_bound_bytes, v.predicted_peak_bytes
  end},
  {"weights_bytes", function(v)
    local sum, lacking = sum_of_categories(v)
    local peak = v.peak_bytes or v.predicted_peak_bytes
    return sum == peak, sum and "the categories sum to %s, the peak is %s" or "there is no %s", sum or lacking, peak
  end},
  {"reserved_bytes", function(v)
    return not v.reserved_bytes or v.reserved_bytes >= v.allocated_bytes, "reserved %s, allocated %s of them",
      v.reserved_bytes, v.allocated_bytes
  end},
  {"untracked_bytes", function(v)
    return not v.device_used_bytes or v.untracked_bytes == v.device_used_bytes - v.reserved_bytes,
      "expected %s less %s, found %s", v.device_used_bytes, v.reserved_bytes, v.untracked_bytes
  end},
  {"effective_batch", function(v)
    local parts = cell.mesh{values = v}.data -- of a batch, one for each rank that has samples of its own
    return v.effective_batch == v.batch * v.accumulate * parts, "expected %s times %s%s, found %s", v.batch, v.accumulate,
      parts > 1 and " times " .. parts or "", v.effective_batch
  end},
  {"step_ms", function(v, measured)
    return not measured or v.steps and v.step_ms and v.step_ms_min <= v.step_ms and v.step_ms <= v.step_ms_p90,
      "%s steps of %s ms: the least is %s, nine of ten are below %s", v.steps, v.step_ms, v.step_ms_min, v.step_ms_p90
  end},
  {"graph_ms", function(v)
    return not v.graph_ms or v.graph_ms <= v.step_ms_p90, "%s ms of steps of which nine of ten are below %s ms", v.graph_ms, v.step_ms_p90
  end},
  {"samples_per_s", function(v)
    return not v.samples_per_s or near(v.samples_per_s, 1e3 * v.effective_batch / v.step_ms),
      "%s, but %s samples take %s ms", v.samples_per_s, v.effective_batch, v.step_ms
  end},
  {"loss_last", function(v, measured)
    local loss = v.loss_last
    return not measured or math.type(loss) and loss == loss and math.abs(loss) < math.huge,
      "expected a number in a row that is ok, found %s", loss
  end},
}

local NO_FINITE = {nan = -(0 / 0), inf = math.huge, ["-inf"] = -math.huge}

local function with_numbers(values)
  local out = {}
  for name, text in pairs(values) do
    if text ~= "" then out[name] = math.tointeger(tonumber(text)) or tonumber(text) or NO_FINITE[text] or text end
  end
  return out
end

function Verify:check_result(path, line, values)
  local v = with_numbers(values)
  local measured = values.status == "ok"
  for _, check in ipairs(OF_RESULT) do
    local field, test = check[1], check[2]
    local good, format, a, b, c, d = test(v, measured)
    if not good then
      self:found(path, line, field, format, tostring(a), tostring(b), tostring(c), tostring(d))
      if not v.predicted_peak_bytes then return end
    end
  end
end

local function is_same(a, b)
  for name, value in pairs(a) do if b[name] ~= value then return false end end
  return true
end

-- A cell that is run again gets another row. Two equal rows with a measured time are a copy: times are never the same
-- twice.
function Verify:check_again(path, line, values)
  local key = values.cell .. " " .. values["repeat"]
  local before = self.of[key]
  if before and values.step_ms ~= "" and is_same(values, before.values) then
    self:found(path, line, "cell", "%s, repeat %s: this row is the same as line %d", values.case, values["repeat"],
      before.line)
  elseif before then self.replaced = self.replaced + 1 end
  self.of[key] = {values = values, line = line}
end

function Verify:read_rows(path)
  self.of, self.replaced, self.rows, self.statuses = {}, 0, 0, {}
  return self:lines(path, results_columns, columns.type_of, function(values, line)
    self.rows = self.rows + 1
    self.statuses[values.status] = (self.statuses[values.status] or 0) + 1
    if statuses.of(values.status).good then self:check_result(path, line, values) end
    if values.reason == "" and not statuses.of(values.status).good then
      self:found(path, line, "reason", "there is none for the status %s", values.status)
    end
    self:check_again(path, line, values)
  end, function(values) values.status = statuses.read(values) end)
end

-- Reports rows of cells that could not be built if the file also has the cell's own row: an earlier version of memtide
-- left such rows.
function Verify:check_unbuilt(path)
  local built = {}
  local function settings_of(values) return values.cell:match("^[^-]*") .. " " .. values["repeat"] end
  for _, one in pairs(self.of) do
    if not cell.is_unbuilt(one.values.cell) then built[settings_of(one.values)] = one end
  end
  for _, key in ipairs(util.sorted_keys(self.of)) do
    local one = self.of[key]
    local other = cell.is_unbuilt(one.values.cell) and built[settings_of(one.values)]
    if other then
      self:found(path, one.line, "cell", "%s, repeat %s: this row's id is without a network, but line %d has the " ..
        "cell: memtide merge leaves this one out", one.values.case, one.values["repeat"], other.line)
    end
  end
end

-- ---- samples: they must give the steps and the median of their row

-- The seconds that counted in earlier versions: of each visit those that nothing disturbed, or all where these are fewer
-- than half.
local function counted_before(visits)
  local out = {}
  for i, visit in ipairs(visits) do
    local good, all = {}, {}
    for _, sample in ipairs(visit) do
      if sample.flag ~= "warmup" then all[#all + 1] = sample.seconds end
      if sample.flag == "" then good[#good + 1] = sample.seconds end
    end
    out[i] = 2 * #good >= #all and good or all
  end
  return out
end

-- The lists of seconds that the row may have been computed from. For each visit that began when the row says: the samples
-- of all visits until then that count, as now and as before; and all its own, as before of runs without rounds.
local function seconds_of(visits, started_at)
  local lists, seen = {}, {}
  for _, visit in ipairs(visits) do
    seen[#seen + 1] = visit
    if visit.started_at == started_at then
      local own = {}
      for _, sample in ipairs(visit) do if sample.flag ~= "warmup" then own[#own + 1] = sample.seconds end end
      table.move({own, samples.joined((samples.counted(seen))), samples.joined(counted_before(seen))}, 1, 3, #lists + 1, lists)
    end
  end
  return lists
end

function Verify:check_steps(path, index, one)
  local v, found = one.values, nil
  for _, seconds in ipairs(seconds_of(index:visits(v), v.started_at)) do
    local made = {}
    if #seconds > 0 then row.time_columns(made, seconds, 1, {}) end
    if made.steps == tonumber(v.steps) and made.step_ms == tonumber(v.step_ms) then return end
    found = found or made
  end
  found = found or {}
  self:found(path, one.line, "step_ms", "%s steps of %s ms, but the samples are %s of %s ms", v.steps, v.step_ms,
    tostring(found.steps or 0), tostring(found.step_ms))
end

function Verify:check_samples(path)
  if not samples.exist(path) then return end
  local before, name = self.findings, samples.path(path)
  local function count() self.samples = self.samples + 1 end
  self:lines(name, function(found) return samples.expected(#found) end, samples.type_of, count)
  if self.findings > before then return end
  local index = samples.read(path)
  for _, key in ipairs(util.sorted_keys(self.of)) do
    local one = self.of[key]
    if one.values.status == "ok" and one.values.steps ~= "" then self:check_steps(path, index, one) end
  end
end

-- ---- the cells of the script

-- The purpose of the rows, "run" or "predict": it is part of the cells' ids.
function Verify:purpose(experiment, given)
  if experiment.base.predict_only then return "predict" end
  if self.statuses.ok then return "run" end
  local purpose = "run" -- no row is ok, and a run has predicted ones, too: look for the ids
  status.each(selection.new(experiment, "predict", given), function(now)
    if self.of[now.cell .. " " .. now["repeat"]] then purpose = "predict" end
  end)
  return purpose
end

function Verify:check_cells(path, experiment, given)
  local rows, names, known = status.load(path), status.names(experiment), {}
  status.each(selection.new(experiment, self:purpose(experiment, given), given), function(now, one)
    known[now.cell:match("^[^-]*") .. " " .. now["repeat"]] = true
    local found = status.of_row(now, rows, names)
    if found.state ~= "done" then
      self:found(path, 1, "cell", "%s, repeat %d is %s%s", one.name, one.repeat_number, found.state,
        found.why ~= "" and ": " .. found.why or "")
    end
  end)
  for _, key in ipairs(util.sorted_keys(self.of)) do
    local one = self.of[key]
    if not known[one.values.cell:match("^[^-]*") .. " " .. one.values["repeat"]] then
      self:found(path, one.line, "cell", "%s, repeat %s is no cell of the script", one.values.case,
        one.values["repeat"])
    end
  end
end

-- Prints what is wrong with the file. experiment: the script's, or nil. Returns the exit status; 1: something is wrong.
local function examine(path, experiment, given)
  local self = setmetatable({findings = 0, samples = 0, list = {}, json = given.json}, Verify)
  local whole_header = self:read_rows(path)
  if whole_header then self:check_unbuilt(path) end
  if whole_header then self:check_samples(path) end
  if whole_header and experiment and self.findings == 0 then self:check_cells(path, experiment, given) end
  if self.json then
    print(report.json({file = path, rows = self.rows, replaced_rows = self.replaced, samples = self.samples,
      findings = self.list}, {"file", "rows", "replaced_rows", "samples", "findings"}))
    return self.findings > 0 and 1 or 0
  end
  local replaced = self.replaced > 0 and (", %d of them replaced by later ones"):format(self.replaced) or ""
  print(("%s: %d rows%s, %d samples: %s"):format(path, self.rows, replaced, self.samples,
    self.findings == 0 and "nothing found" or ("%d found"):format(self.findings)))
  return self.findings > 0 and 1 or 0
end

function verify.alone(words, given)
  given.file = table.remove(words, 1)
  if not given.file then util.fail_usage("verify: expected a file of results") end
  return not words[1] and examine(given.file, nil, given) or nil
end

function verify.run(experiment, given) return examine(given.file, experiment, given) end

return verify
