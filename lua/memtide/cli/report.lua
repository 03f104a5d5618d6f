-- memtide report: a file of results as one page of HTML, with the pictures of the scripts' steps.
local alive = require "memtide.picture.alive"
local arena = require "memtide.picture.arena"
local arguments = require "memtide.cli.arguments"
local claims = require "memtide.sweep.claims"
local columns = require "memtide.results.columns"
local core = require "memtide.core"
local first_cell = require "memtide.cli.first_cell"
local gradients = require "memtide.picture.gradients"
local options = require "memtide.cli.options"
local page = require "memtide.picture.page"
local pareto = require "memtide.picture.pareto"
local profile = require "memtide.net.profile"
local ranks = require "memtide.picture.ranks"
local rows = require "memtide.picture.rows"
local script = require "memtide.sweep.script"
local step = require "memtide.picture.step"
local sweep = require "memtide.picture.sweep"
local tables = require "memtide.sweep.profile_tables"
local tide = require "memtide.picture.tide"
local util = require "memtide.base.util"

local report = {words = "FILE.csv [SCRIPT ...]", completes = {FILE = {files = "*.csv"}},
  text = "a file of results as one page of HTML: what ran, claims, pictures, rows",
  options = {options.CELL, options.output, options.steps,
    {name = "profile", text = "measures where the time of each script's step goes, as memtide profile does, and shows it"}}}

local SLOWEST = 20 -- ops that the page shows

local function load_script(path, given)
  local experiment = script.load_experiment(path, given.args)
  arguments.take_declared(given, experiment)
  return experiment
end

-- ---- claims

-- A row with values instead of texts, as claims.judge takes it
local function typed(row)
  local out = {}
  for name, text in pairs(row) do out[name] = columns.value(name, text) end
  return out
end

-- The verdicts on the claims of a script about the rows of its experiment; nil: it has none.
local function verdicts_of(experiment, facts)
  if #experiment.claims == 0 then return nil end
  local judge = claims.judge(experiment)
  for _, row in ipairs(facts.rows) do
    if row.experiment == experiment.name then judge:row(typed(row)) end
  end
  return {experiment = experiment.name, verdicts = judge:verdicts(facts.samples)}
end

-- ---- pictures

local function add_step(sections, facts, what)
  local function add(title, text, picture) sections[#sections + 1] = {title = title, text = text, picture = picture} end
  add(what .. ": the tide", "Memory over the ops of one step. Point at an op to read its layer and its line of the script.",
    tide.picture(facts))
  add(what .. ": alive at the peak", "From modules to tensors, each as wide as its bytes.", alive.picture(facts))
  add(what .. ": the arena", facts.pytorch and "A rectangle for each tensor, in the segments that the caching allocator has."
    or "A rectangle for each buffer: how long it lives, and at which address.", arena.picture(facts))
end

-- given, with one more setting before those that were given
local function with(given, name, value)
  local set = {{name, value}}
  for _, one in ipairs(given.set) do if one[1] ~= name then set[#set + 1] = one end end
  return setmetatable({set = set}, {__index = given})
end

-- PyTorch's step of the same cell, or why there is none
local function add_pytorch(sections, path, given)
  local quiet = setmetatable({say = function() end}, {__index = with(given, "framework", "pytorch")})
  local good, found = util.try(function() return step.facts(first_cell(load_script(path, given), quiet)) end)
  if good then return add_step(sections, found, "Eager PyTorch") end
  if util.is_interrupt(found) then error(found, 0) end
  sections[#sections + 1] = {title = "Eager PyTorch", text = "There is no step of PyTorch to show: " .. util.text_of(found)}
end

-- Runs the cell's step, and shows where its time goes
local function add_profile(sections, one)
  tables.check("report: --profile", one)
  local roof = profile.roof(one)
  local found = profile.measure(one, roof)
  local ops, left = tables.op_lines(found, SLOWEST)
  local what, limits, how = tables.head(one, found, roof)
  sections[#sections + 1] = {title = "Where the time goes", text = ("%s; %s; %s."):format(what, limits, how),
    tables = {tables.layer_lines(tables.layers(one, found.ops), found, roof), ops},
    notes = table.move(tables.sums(found), 1, 9, left > 0 and 2 or 1, {left > 0 and ("and %d faster ops"):format(left) or nil})}
end

-- What the ranks of the script's cells need, where several train one
local function add_ranks(sections, path, given)
  local picture = ranks.picture(ranks.facts(load_script(path, given), given))
  if not picture then return end
  sections[#sections + 1] = {title = "What each rank has at its peak", picture = picture,
    text = "As predicted. Ranks that need the same are one bar."}
end

local function add_script(sections, path, given)
  local experiment = load_script(path, given)
  add_ranks(sections, path, given)
  local one = first_cell(experiment, given)
  if given.profile then add_profile(sections, one) end
  add_step(sections, step.facts(one), one.settings.framework == "pytorch" and "Eager PyTorch" or "memtide's step")
  if one.settings.framework ~= "pytorch" then add_pytorch(sections, path, given) end
end

-- ---- the command

function report.check(given)
  if given.steps and not given.profile then util.fail_usage "report: --steps is of what --profile measures" end
  if given.output and given.output ~= "-" and not given.output:find "%.html?$" then
    util.fail_usage('report: --output: expected a name that ends in .html, found "%s"', given.output)
  end
end

function report.alone(words, given, commands)
  if not words[2] and given.own[1] then commands.unknown_option(given.own[1].word, given.own[1].name) end
  local path = words[1] or util.fail_usage("report: expected a file of results, and scripts")
  if given.profile and not words[2] then util.fail_usage "report: --profile: expected a script whose step is measured" end
  local facts = rows.facts(path, given.say)
  if not facts.rows[1] then error(util.failure(path .. ": there are no rows", "file"), 0) end
  local verdicts, sections = {}, {{title = "The sweep", picture = sweep.picture(facts)}}
  local front, why = pareto.picture(facts)
  sections[2] = {title = "Memory against time", picture = front, text = why}
  local histograms = gradients.picture(facts)
  if histograms then sections[3] = {title = "Exponents of the gradients", picture = histograms} end
  for i = 2, #words do
    verdicts[#verdicts + 1] = verdicts_of(load_script(words[i], given), facts)
    add_script(sections, words[i], given)
  end
  local text = page.text(facts, verdicts, sections, core.version)
  if (given.output or "-") == "-" then util.must_write("standard output", io.stdout:write(text))
  else util.replace(given.output, function(write) write(text) end) end
  return 0
end

return report
