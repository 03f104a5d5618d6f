-- memtide plot: a picture of a step, of a recording of PyTorch's memory, or of a file of results, as SVG or PNG.
local first_cell = require "memtide.cli.first_cell"
local options = require "memtide.cli.options"
local output = require "memtide.picture.output"
local ranks = require "memtide.picture.ranks"
local rows = require "memtide.picture.rows"
local step = require "memtide.picture.step"
local theme = require "memtide.picture.theme"
local util = require "memtide.base.util"
local vega = require "memtide.picture.vega"

-- of: what the picture is made of: of the first cell of a script, of all its cells, of a file. Its module has
-- picture(facts, style, axis), which gives nil and why where there is nothing to draw; vega: the function of picture/vega.lua
local KINDS = {
  tide = {of = "script", picture = "memtide.picture.tide"},
  arena = {of = "script", picture = "memtide.picture.arena"},
  alive = {of = "script", picture = "memtide.picture.alive"},
  ranks = {of = "cells", picture = "memtide.picture.ranks"},
  sweep = {of = "file", picture = "memtide.picture.sweep", vega = "sweep"},
  gradients = {of = "file", picture = "memtide.picture.gradients"},
  pareto = {of = "file", picture = "memtide.picture.pareto", vega = "pareto"},
}
local NAMES = util.sorted_keys(KINDS)

local cells = {} -- options that choose a script's cell
for _, one in ipairs(options.CELL) do cells[one.name] = true end

local plot = {words = "KIND SCRIPT|FILE.csv|FILE.pickle [-- ARGS]",
  text = "a picture as .svg or .png, of results also as .vl.json (Vega-Lite): " .. table.concat(NAMES, ", "),
  completes = {KIND = {words = table.concat(NAMES, " ")}},
  options = {options.CELL, options.output, options.gpu,
    {name = "x", argument = "COLUMN", text = "plot sweep: the column along the axis (default: the best one)"}}}

function plot.check(given)
  output.check("plot", given.output)
end

local function draw(kind, facts, given)
  local function made(picture, why) return picture or error(util.failure(why, "file"), 0) end
  if output.is_vega(given.output) then output.text(vega.text(made(vega[kind.vega](facts, given.x))), given.output)
  else output.write(made(require(kind.picture).picture(facts, theme.style, given.x)), given.output) end
  return 0
end

local function plot_file(words, given, commands)
  if given.own[1] then commands.unknown_option(given.own[1].word, given.own[1].name) end
  if #words ~= 1 then util.fail_usage("plot: expected one file of results, found %d", #words) end
  local facts = rows.facts(words[1], given.say)
  if not facts.rows[1] then error(util.failure(words[1] .. ": there are no rows", "file"), 0) end
  return draw(given.kind, facts, given)
end

local function plot_recording(words, given, commands)
  if given.own[1] then commands.unknown_option(given.own[1].word, given.own[1].name) end
  if #words ~= 1 then util.fail_usage("plot: expected one recording, found %d", #words) end
  for _, one in ipairs(given.given) do
    if cells[one.name] then util.fail_usage("plot: --%s is of a script, %s is a recording", one.name, words[1]) end
  end
  return draw(given.kind, step.recorded(words[1], given.gpu), given)
end

-- The kind of picture stands before the script, which the command line loads after this.
function plot.alone(words, given, commands)
  local name = table.remove(words, 1)
  given.kind = name and KINDS[name] or util.fail_usage("plot: expected a kind of picture (%s)%s", table.concat(NAMES, ", "),
    name and (', found "%s"%s'):format(name, util.meant(name, NAMES)) or "")
  if output.is_vega(given.output) and not given.kind.vega then
    util.fail_usage("plot: .vl.json is of sweep and pareto; expected a name that ends in .svg or .png")
  end
  if given.kind.of == "file" then return plot_file(words, given, commands) end
  if given.x then util.fail_usage("plot: --x is of sweep") end
  if words[1] and words[1]:find "%.pickle$" and given.kind.of == "script" then return plot_recording(words, given, commands) end
  if given.gpu then util.fail_usage "plot: --gpu is of a recording, a .pickle" end
end

function plot.run(experiment, given)
  local facts = given.kind.of == "cells" and ranks.facts(experiment, given) or step.facts(first_cell(experiment, given))
  return draw(given.kind, facts, given)
end

return plot
