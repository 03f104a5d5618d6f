-- The commands that work on an experiment, and the list of devices.
local cell = require "memtide.net.cell"
local claims = require "memtide.sweep.claims"
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local fit = require "memtide.sweep.max_batch"
local freeze = require "memtide.sweep.cell_list"
local plan = require "memtide.sweep.selection"
local preview = require "memtide.cli.preview"
local report = require "memtide.results.report"
local samples = require "memtide.results.samples"
local shards = require "memtide.sweep.shards"
local slurm = require "memtide.cli.slurm"
local status = require "memtide.sweep.status"
local sweep = require "memtide.sweep.sweep"
local techniques = require "memtide.cli.fit"
local util = require "memtide.base.util"
local verify = require "memtide.cli.verify"
local watch = require "memtide.cli.watch"
local worker = require "memtide.sweep.worker"

local commands = {}

-- The verdicts on the script's claims, shown; their exit status.
local function conclude(judge, options)
  local function wanted(id) return judge:about(id) end
  local verdicts = judge:verdicts(options.csv ~= "-" and samples.read(options.csv, wanted) or nil)
  if options.json then
    for _, one in ipairs(verdicts) do print(report.json(claims.values(one), claims.columns)) end
  else
    local put = options.csv == "-" and options.say or print
    if options.csv ~= "-" then print() end
    for _, line in ipairs(report.columns(claims.lines(verdicts))) do put(line) end
  end
  return claims.status(verdicts)
end

local function run_all(experiment, purpose, options)
  local judged = purpose == "run" and #experiment.claims > 0 and not options.no_claims
  local judge = judged and not options.shard and claims.judge(experiment) -- a part cannot tell
  options.seen = judge and function(values) judge:row(values) end
  local found = sweep.run(experiment, purpose, options)
  if options.csv ~= "-" and not options.json then report.print(found.rows, found.count, options) end
  if found.resumed > 0 then
    local text = "%d of %d cells were in %s already; remove the file to start over"
    options.say(text:format(found.resumed, found.count, options.csv))
  end
  local claimed = judge and conclude(judge, options) or 0
  return found.failed and 1 or claimed
end

function commands.run(experiment, options)
  local name = options.name
  if experiment.base.predict_only and not options.dry_run then
    options.say("the experiment says predict_only: nothing is computed")
    return run_all(experiment, "predict", options)
  end
  options.csv = options.csv or options.shard and shards.path(name, options.shard) or name .. ".csv"
  if options.dry_run then return preview.main(experiment, options) end
  if options["until"] then options.costs = preview.costs(experiment, options) end
  return run_all(experiment, "run", options)
end

function commands.predict(experiment, options) return run_all(experiment, "predict", options) end

-- Compiles every cell on a device that times what it can choose between; nothing is run. A cell that cannot be
-- compiled is told and left out.
function commands.tune(experiment, options)
  local cells, files, failed = plan.new(experiment, nil, options), {}, 0
  worker.check_devices(cells.devices)
  for k = 1, cells:count() do
    local one = cells:cell(k)
    local name = one.values.device
    if not files[name] then
      local file, problem = util.must(cell.device(name):tune())
      if problem then options.say(problem) end
      files[name] = file
    end
    options.say(("%d of %d: %s"):format(k, cells:count(), one.name))
    local good, problem = pcall(function() return cell.compile(cell.build(one)) end)
    if not good then
      local code = util.is_failure(problem) and problem.code or "script"
      if code == "device" or code == "script" then error(problem, 0) end
      options.say(problem.message)
      failed = 1
    end
  end
  for name, file in pairs(files) do print(("%s: %s"):format(name, file)) end
  return failed
end

function commands.status(experiment, options) return status.main(experiment, options) end

function commands.cells(experiment, options) return freeze.main(experiment, options) end

function commands.slurm(experiment, options) return slurm.main(experiment, options) end

function commands.verify(experiment, options) return verify.main(options.file, experiment, options) end

function commands.watch(_, options) return watch.main(options.csv or options.name .. ".csv", options) end

function commands.fit(experiment, options) return techniques.main(experiment, options) end

-- The first cell, compiled.
local function first_cell(experiment, options)
  local cells = plan.new(experiment, nil, options)
  worker.check_devices(cells.devices)
  local first = cells:cell(1)
  if cells:count() > 1 then
    options.say(("the first of %d cells: %s; choose another with --case or --set"):format(cells:count(), first.name))
  end
  fit.settle(cell.build(first))
  return cell.compile(first, options.passes)
end

function commands.explain(experiment, options)
  return require "memtide.cli.explain".main(first_cell(experiment, options), options)
end

-- The plan, and what the ledger will say at the peak under the cell's allocator.
local function dump_plan(self)
  local peak = self.prediction.peak
  io.write((util.must(self.program:plan())))
  print(("ledger at the peak (%s, allocator %s): %d bytes"):format(peak.op, self.settings.allocator, peak.bytes))
  for _, category in ipairs(columns.categories) do print(("%12d %s"):format(peak.categories[category], category)) end
end

function commands.dump(experiment, options)
  local first = first_cell(experiment, options)
  if options.network then io.write(first.network:text())
  elseif options.plan then dump_plan(first)
  elseif options.passes then io.write(first.passes)
  else io.write(first.program:dump()) end
  return 0
end

-- name, or why not -> one line; the device's information, if it can be had
local function show_device(name, note)
  local device, reason = core.device(name)
  local info, no_info
  if device then info, no_info = device:info() end
  if not info then
    local why = (reason or no_info):gsub("^device '[^']*' is not available: ", "")
    return print(("%-9s not available: %s"):format(name, why))
  end
  local memory = info.memory_total and util.show_bytes(info.memory_total)
  if info.memory_free then memory = ("%s, %s of them free"):format(memory, util.show_bytes(info.memory_free)) end
  local parts = {}
  local emulated = table.concat(info.emulated, " and ")
  if emulated ~= "" then emulated = emulated .. " emulated in fp32" end
  for _, part in ipairs{note or "", info.name, info.detail or "", info.driver, memory or "", emulated} do
    if part ~= "" then parts[#parts + 1] = part end
  end
  print(("%-9s %s"):format(name, table.concat(parts, ", ")))
  if info.warning then print(("%-9s warning: %s"):format("", info.warning)) end
  return info
end

-- Every device that is here or described: what it is, or why it cannot be had. --describe: one as a description file.
function commands.devices(options)
  if options.describe then
    print((util.must(util.must(core.device(options.describe)):describe())))
    return 0
  end
  show_device("cpu")
  local first = show_device("cuda:0")
  for i = 1, first and first.count - 1 or 0 do show_device("cuda:" .. i) end
  for _, name in ipairs(core.offline_devices()) do show_device(name, "planning only") end
  return 0
end

return commands
