-- memtide run: runs every cell of an experiment and judges the script's claims.
local claims = require "memtide.sweep.claims"
local core = require "memtide.core"
local measure = require "memtide.results.measure"
local options = require "memtide.cli.options"
local preview = require "memtide.cli.preview"
local ranks = require "memtide.sweep.ranks"
local report = require "memtide.results.report"
local samples = require "memtide.results.samples"
local shards = require "memtide.sweep.shards"
local sweep = require "memtide.sweep.sweep"
local terminal = require "memtide.base.terminal"
local util = require "memtide.base.util"

local run = {words = "SCRIPT [-- ARGS]",
  text = "every cell of an experiment, one row each; what is in the file already is not run again"}

-- The next moment at which the clock shows HH:MM, as os.time counts
local function take_until(given, text)
  local hour, minute = text:match("^(%d%d?):(%d%d)$")
  if not hour or tonumber(hour) > 23 or tonumber(minute) > 59 then
    util.fail_usage('--until: expected a time of day such as 07:30, found "%s"', text)
  end
  local now = os.time()
  local at = os.date("*t", now)
  at.hour, at.min, at.sec = tonumber(hour), tonumber(minute), 0
  if os.time(at) <= now then at.day = at.day + 1 end
  given["until"] = os.time(at)
end

local function take_shard(given, text)
  given.shard = shards.parse(text)
  if not given.shard then util.fail_usage('--shard: expected I/N, part I of N, found "%s"', text) end
end

run.options = {options.csv, options.ROWS,
  {name = "dry-run", letter = "n",
    text = "the cells with their memory and time, what cannot fit and what is there already"},
  options.try_oom,
  {name = "until", argument = "HH:MM", take = take_until,
    text = "starts nothing that cannot end by then; repeats after the first of every cell"},
  {name = "shard", argument = "I/N", take = take_shard,
    text = "only part I, 1 to N, of the cells; rows go to NAME.I-of-N.csv"},
  options.cells,
  {name = "quick", sets = measure.names, text = "one visit of each cell: without the script's rounds, confidence and time_limit"},
  {name = "no-claims", text = "the script's claims are not judged"},
  options.plain, options.markdown, options.json}

function run.check(given)
  if given.cells and not given.shard then util.fail_usage("run: --cells wants --shard") end
end

-- Prints the verdicts on the script's claims; returns their exit status.
local function conclude(judge, given, index)
  local verdicts = judge:verdicts(index)
  if given.json then
    for _, one in ipairs(verdicts) do print(report.json(claims.values(one), claims.columns)) end
  else
    local put = given.csv == "-" and given.say or print
    if given.csv ~= "-" then print() end
    local lines = claims.lines(verdicts)
    for _, line in ipairs(given.markdown and report.markdown(lines, {true, true, true, true, true}) or report.columns(lines, true)) do
      put(line)
    end
  end
  return claims.status(verdicts)
end

-- ---- how many steps were disturbed

local MOST = 1000 -- rows of which it is told: a sweep's memory does not grow with its cells

-- To be called with every row: keeps what tells the row's samples from others. measured: a list, and a set of cells' ids
local function note(measured, row)
  if not row.steps or #measured > MOST then return end
  measured[#measured + 1] = {cell = row.cell, ["repeat"] = row["repeat"], version = row.version}
  measured.ids[row.cell] = true
end

local function tell_disturbed(measured, index, given)
  local told = index and #measured <= MOST and samples.told(index:disturbed(measured))
  local width = told and core.isatty(2) and core.window(2)
  if told then given.say(width and terminal.cut(told, math.max(width - #"memtide: ", 1)) or told) end
end

-- Runs or predicts every cell; purpose: "run" or "predict"; judged: are the script's claims judged? Returns the exit status.
function run.all(experiment, purpose, given, judged)
  judged = judged and #experiment.claims > 0 and not given.no_claims
  local judge = judged and not given.shard and claims.judge(experiment) -- one part has not all rows
  local measured = {ids = {}}
  function given.seen(row)
    note(measured, row)
    if judge then judge:row(row) end
  end
  local found = sweep.run(experiment, purpose, given)
  if given.csv ~= "-" and not given.json then report.print(found.rows, found.count, given) end
  local function wanted(id) return measured.ids[id] or judge and judge:about(id) end
  local index = measured[1] and given.csv ~= "-" and samples.read(given.csv, wanted) or nil
  tell_disturbed(measured, index, given)
  if found.resumed > 0 then
    local text = "%d of %d cells were in %s already; remove the file to start over"
    given.say(text:format(found.resumed, found.count, given.csv))
  end
  local claimed = judge and conclude(judge, given, index) or 0
  return found.failed and 1 or claimed
end

function run.run(experiment, given)
  if ranks.started_with() > 1 then
    util.fail_usage("run: found %d processes, started by mpirun or srun: start memtide once, and say world = %d in the script, or --set world=%d",
      ranks.started_with(), ranks.started_with(), ranks.started_with())
  end
  local name = given.name
  if experiment.base.predict_only and not given.dry_run then
    given.say("the experiment says predict_only: nothing is computed")
    return run.all(experiment, "predict", given, true)
  end
  given.csv = given.csv or given.shard and shards.path(name, given.shard) or name .. ".csv"
  if given.dry_run then return preview.main(experiment, given) end
  if given["until"] then given.costs = preview.costs(experiment, given) end
  return run.all(experiment, "run", given, true)
end

return run
