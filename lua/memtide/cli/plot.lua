-- memtide plot: a picture of a step, or of a file of results, as SVG or PNG.
local first_cell = require "memtide.cli.first_cell"
local options = require "memtide.cli.options"
local output = require "memtide.picture.output"
local step = require "memtide.picture.step"
local theme = require "memtide.picture.theme"
local util = require "memtide.base.util"

-- of: what the picture is made of
local KINDS = {
  tide = {of = "script", picture = "memtide.picture.tide"},
  arena = {of = "script", picture = "memtide.picture.arena"},
  alive = {of = "script", picture = "memtide.picture.alive"},
}
local NAMES = util.sorted_keys(KINDS)

local plot = {words = "KIND SCRIPT|FILE [-- ARGS]",
  text = "a picture as .svg or .png: " .. table.concat(NAMES, ", "),
  completes = {KIND = {words = table.concat(NAMES, " ")}},
  options = {options.CELL, options.output}}

function plot.check(given)
  output.check("plot", given.output)
end

-- The kind of picture stands before the script, which the command line loads after this.
function plot.alone(words, given)
  local name = table.remove(words, 1)
  given.kind = name and KINDS[name] or util.fail_usage("plot: expected a kind of picture (%s)%s", table.concat(NAMES, ", "),
    name and (', found "%s"%s'):format(name, util.meant(name, NAMES)) or "")
end

function plot.run(experiment, given)
  local facts = step.facts(first_cell(experiment, given))
  output.write(require(given.kind.picture).picture(facts, theme.style), given.output)
  return 0
end

return plot
