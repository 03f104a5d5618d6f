-- Claims: what a script says about its cells, judged by the rows. Every claim compares a value of one cell with that of
-- another, as a ratio:
--
--   {claim = "...", source = "...", of = "peak_bytes", ratio = {a, b}, expect = 0.5, tolerance = 0.2}
--   {claim = "...", of = "step_ms", less = {a, b}, holds_on = "GPUs with tensor cores"}
--   {claim = "...", of = "loss_last", equal = {a, b}, tolerance = 1e-4}
--
-- a and b: the name of a cell or of a case, or a table of settings that only one cell has; the table may have an `of`
-- of its own. One of the two may be a number in the column's unit, such as the bytes of a card. of: a column, or a list of
-- columns that are summed. tolerance: relative to what is expected. holds_on: the kind of machine for which it is
-- claimed, where the verdict hangs on the machine; it stands beside the verdict.
local row_columns = require "memtide.results.columns"
local core = require "memtide.core"
local literal = require "memtide.base.literal"
local settings = require "memtide.net.settings"
local stats = require "memtide.results.stats"
local util = require "memtide.base.util"

local claims = {}

local KEYS = {"claim", "source", "of", "ratio", "less", "equal", "expect", "tolerance", "holds_on"}
claims.keys = KEYS
local RELATIONS = {"ratio", "less", "equal"}
local TIME = "step_ms" -- the column that has samples
local NO_CLAIM = {step_ms_min = true, step_ms_p90 = true, graph_ms = true, samples_per_s = true}

-- ---- checks of the script's claims; place: "claims[3]", for messages

local function check_columns(where, place, of, columns)
  local list = type(of) == "string" and {of} or of
  local good = literal.is_table(list) and #list > 0
  for _, name in ipairs(good and list or {}) do good = good and type(name) == "string" end
  if not good then
    util.fail_at(where, "%s: of: expected a column or a list of columns, found %s", place, literal.of(of))
  end
  for _, name in ipairs(list) do
    if NO_CLAIM[name] or name == TIME and #list > 1 then
      util.fail_at(where, "%s: of: %s: of times, only step_ms can be claimed, by itself", place, name)
    end
    if not columns[name] then
      util.fail_at(where, '%s: of: there is no column "%s"%s', place, name, util.meant(name, columns))
    end
  end
  return list
end

-- Is `cell` the cell that this side of a claim names?
local function is_meant(side, cell)
  if side.name then return cell.name == side.name or cell.values.case == side.name end
  for key, value in pairs(side.settings) do
    if settings.text(cell.values[key]) ~= settings.text(value) then return false end
  end
  return true
end

-- The name of the one cell that a side means; nil and why: there is none, or there are several.
local function resolve(experiment, side)
  local found, count
  local positions = experiment:positions()
  for i = 1, positions and #positions or experiment:count() do
    local cell = experiment:cell(positions and positions[i] or i)
    if is_meant(side, cell) and cell.name ~= found then found, count = cell.name, (count or 0) + 1 end
  end
  if count == 1 then return found end
  return nil, ("%s is %s"):format(side.text, count and ("any of %d cells"):format(count) or "no cell of this sweep")
end

local function check_side(self, where, place, side, of, columns)
  local out = {text = literal.of(side)}
  if math.type(side) then
    out.number, out.columns = side, {}
    return out
  end
  if type(side) == "string" then out.name = side
  elseif literal.is_table(side) and next(side) ~= nil then
    out.settings = {}
    for key, value in pairs(side) do
      if key == "of" then of = value
      elseif settings.known[key] then out.settings[key] = settings.check(where, place, key, value)
      else out.settings[key] = value end
    end
  else
    util.fail_at(where, "%s: expected a case's name, a table of settings or a number, found %s", place, out.text)
  end
  out.columns = check_columns(where, place, of, columns)
  local cell, why = resolve(self, out)
  if not cell then util.fail_at(where, "%s: expected a cell, but %s", place, why) end
  return out
end

local function relation_of(where, place, claim)
  local found
  for _, name in ipairs(RELATIONS) do
    if claim[name] ~= nil then
      if found then util.fail_at(where, "%s: expected one relation, found %s and %s", place, found, name) end
      found = name
    end
  end
  if not found then util.fail_at(where, "%s: expected one of %s", place, table.concat(RELATIONS, ", ")) end
  if not literal.is_table(claim[found]) or #claim[found] ~= 2 then
    util.fail_at(where, "%s: %s: expected two cells, {a, b}, found %s", place, found, literal.of(claim[found]))
  end
  return found
end

local function check_number(where, place, claim, name, default)
  local value = claim[name]
  if value == nil then value = default end
  if not math.type(value) or value < 0 or value ~= value then
    util.fail_at(where, "%s: %s: expected a number of at least 0, found %s", place, name, literal.of(value))
  end
  return value
end

-- The range of the ratio that is claimed: from low to high, ends included; open: the upper end is not included.
local BAND = {
  ratio = function(expect, tolerance) return {low = expect * (1 - tolerance), high = expect * (1 + tolerance)} end,
  equal = function(_, tolerance) return {low = 1 - tolerance, high = 1 + tolerance} end,
  less = function() return {low = 0, high = 1, open = true} end,
}

local function check_text(where, place, claim, name, needed)
  local text = claim[name]
  if type(text) == "string" and text ~= "" or text == nil and not needed then return text end
  util.fail_at(where, "%s: %s: expected text, found %s", place, name, literal.of(text))
end

-- The columns that the rows will have: a list that is also a set.
local function columns_of(experiment)
  local columns = util.must(core.row(experiment:own_axes())):columns()
  for _, name in ipairs(columns) do columns[name] = true end
  return columns
end

-- Checks the claims of an experiment and returns them; check_list: axes.check_list.
function claims.check(experiment, list, check_list)
  local where, out, columns = experiment.where, {}, list and columns_of(experiment)
  for i, claim in ipairs(check_list(where, "claims", list or {}, 'a list of claims {{claim = "...", ...}, ...}')) do
    local place = ("claims[%d]"):format(i)
    if not literal.is_table(claim) then
      util.fail_at(where, "%s: expected a table, found %s", place, literal.of(claim))
    end
    util.check_keys(place, claim, KEYS)
    local relation = relation_of(where, place, claim)
    local self = {claim = check_text(where, place, claim, "claim", true),
      source = check_text(where, place, claim, "source"), holds_on = check_text(where, place, claim, "holds_on"), sides = {}}
    for k, side in ipairs(claim[relation]) do
      local at = ("%s: %s[%d]"):format(place, relation, k)
      self.sides[k] = check_side(experiment, where, at, side, claim.of, columns)
    end
    if self.sides[1].number and self.sides[2].number then
      util.fail_at(where, "%s: %s: expected a cell, found two numbers", place, relation)
    end
    local expect = check_number(where, place, claim, "expect", relation ~= "ratio" and 1 or nil)
    self.band = BAND[relation](expect, check_number(where, place, claim, "tolerance", 0))
    out[i] = self
  end
  return out
end

-- ---- verdicts

local Judge = {}
Judge.__index = Judge

function claims.judge(experiment)
  return setmetatable({experiment = experiment, claims = experiment.claims}, Judge)
end

-- Finds the cells that the claims mean, after the command line has changed the experiment.
local function find_cells(self)
  if self.cells then return end
  self.rows, self.cells, self.ids = {}, {}, {}
  for _, claim in ipairs(self.claims) do
    for _, side in ipairs(claim.sides) do
      local name, why
      if not side.number then name, why = resolve(self.experiment, side) end
      self.cells[side] = {name = name, why = why}
      if name then self.rows[name] = {} end
    end
  end
end

local function copied(row)
  local out = {}
  for column, value in pairs(row) do out[column] = value end
  return out
end

-- To be called with every row of the sweep: keeps those that a claim is about.
function Judge:row(row)
  find_cells(self)
  local rows = self.rows[row.case]
  if not rows then return end
  rows[#rows + 1], self.ids[row.cell] = copied(row), true
end

-- Is a row of this cell among the rows that were kept?
function Judge:about(cell) return self.ids ~= nil and self.ids[cell] == true end

-- What a row without a run has, too: predictions, and what is alive at the predicted peak
local PREDICTED = {}
for _, group in ipairs{"predicted", "peak"} do
  for _, own in ipairs{false, true} do
    for _, name in ipairs(row_columns.group(group, own)) do PREDICTED[name] = true end
  end
end

local FORETOLD = {predicted = true, skipped = true} -- skipped: the prediction is more than the device has

-- May the row be judged by these columns? A prediction is whole without a run.
local function is_settled(row, names)
  for _, name in ipairs(names) do
    if row.status ~= "ok" and not (FORETOLD[row.status] and PREDICTED[name]) then return false end
  end
  return true
end

-- The value of a side with its interval {median, low, high}; nil and why: there is none. A cell has a row per repeat.
local function value_of(self, side, samples)
  local cell = self.cells[side]
  if side.number then return stats.exact(side.number) end
  if not cell.name then return nil, cell.why end
  local rows = self.rows[cell.name]
  if not rows[1] then return nil, ("%s was not run"):format(side.text) end
  for _, row in ipairs(rows) do
    if not is_settled(row, side.columns) then return nil, ("%s: %s"):format(cell.name, row.status) end
  end
  if side.columns[1] == TIME then
    local found = samples and samples:interval(rows)
    if not found or not found.low then return nil, ("%s: too few samples"):format(cell.name) end
    return found
  end
  local sum = 0
  for _, column in ipairs(side.columns) do
    local value = rows[1][column]
    if not math.type(value) then return nil, ("%s: no number in column %s"):format(cell.name, column) end
    sum = sum + value
  end
  return stats.exact(sum)
end

-- The interval of the ratio is inside the band (REPRODUCED), outside (REFUTED) or across one of its ends.
local function verdict_of(ratio, band)
  local function below(x) return band.open and x < band.high or not band.open and x <= band.high end
  if ratio.low >= band.low and below(ratio.high) then return "REPRODUCED" end
  if ratio.high < band.low or not below(ratio.low) then return "REFUTED" end
  return "INCONCLUSIVE"
end

-- The emulated types in the cells that the claim is about, "bf16", and the device, "processor" or "GPU"; nil: no type
-- is emulated.
local function emulation(self, claim)
  local types, device = {}, nil
  for _, side in ipairs(claim.sides) do
    for _, row in ipairs(self.rows[self.cells[side].name] or {}) do
      if row.emulated then types[row.emulated], device = true, row.device == "cpu" and "processor" or "GPU" end
    end
  end
  return device and table.concat(util.sorted_keys(types), " and "), device
end

local function is_of_time(claim)
  for _, side in ipairs(claim.sides) do if side.columns[1] == TIME then return true end end
  return false
end

local function judge_one(self, claim, samples)
  local out = {claim = claim.claim, source = claim.source, band = claim.band, verdict = "INCONCLUSIVE", holds_on = claim.holds_on}
  out.emulated, out.device = emulation(self, claim)
  -- another machine may give another verdict
  out.hardware = is_of_time(claim) or out.emulated ~= nil or claim.holds_on ~= nil
  local a, why_a = value_of(self, claim.sides[1], samples)
  local b, why_b = value_of(self, claim.sides[2], samples)
  if not a or not b then
    out.reason = why_a or why_b
    return out
  end
  out.ratio = stats.ratio(a, b)
  if not out.ratio then out.reason = ("there is no ratio of %g and %g"):format(a.median, b.median)
  else out.verdict = verdict_of(out.ratio, claim.band) end
  return out
end

-- Returns {{claim, source, band, verdict, ratio or nil, reason or nil}, ...}; samples: those of samples.read, or nil.
function Judge:verdicts(samples)
  local out = {}
  find_cells(self)
  for i, claim in ipairs(self.claims) do out[i] = judge_one(self, claim, samples) end
  return out
end

-- ---- output

local function ratio_text(found)
  if not found.ratio then return found.reason end
  local r = found.ratio
  if r.low == r.high then return ("%.4g"):format(r.median) end
  return ("%.3g [%.3g, %.3g]"):format(r.median, r.low, r.high)
end

local function band_text(band)
  if band.open then return ("< %g"):format(band.high) end
  return band.low == band.high and ("%g"):format(band.low) or ("%.6g to %.6g"):format(band.low, band.high)
end

local function verdict_text(found)
  if not found.emulated then return found.verdict end
  return ("%s (%s %s emulated on this %s)"):format(found.verdict, found.emulated,
    found.emulated:find " and " and "are" or "is", found.device)
end

-- The verdicts as lines, for report.columns
function claims.lines(verdicts)
  local lines = {{"claim", "verdict", "claimed", "measured"}}
  for i, found in ipairs(verdicts) do
    lines[i + 1] = {found.claim, verdict_text(found), band_text(found.band), ratio_text(found)}
    if found.hardware then
      lines[1][5], lines[i + 1][5] = "depends on", found.holds_on and "hardware: claimed for " .. found.holds_on or "hardware"
    end
  end
  return lines
end

-- A verdict as values by name, for report.json
claims.columns = {"claim", "source", "verdict", "claimed_low", "claimed_high", "ratio", "ratio_low", "ratio_high",
  "hardware", "holds_on", "emulated", "reason"}
function claims.values(found)
  local ratio = found.ratio or {}
  return {claim = found.claim, source = found.source, verdict = found.verdict, claimed_low = found.band.low,
    claimed_high = found.band.high, ratio = ratio.median, ratio_low = ratio.low, ratio_high = ratio.high,
    hardware = found.hardware, holds_on = found.holds_on, emulated = found.emulated, reason = found.reason}
end

-- The exit status: a refuted claim counts before inconclusive ones.
local STATUS = {REFUTED = 5, INCONCLUSIVE = 6}
function claims.status(verdicts)
  local least
  for _, found in ipairs(verdicts) do
    local status = STATUS[found.verdict]
    if status and (not least or status < least) then least = status end
  end
  return least or 0
end

return claims
