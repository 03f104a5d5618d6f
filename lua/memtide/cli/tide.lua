-- memtide tide: memory over the ops of a step, in the terminal.
local blocks = require "memtide.picture.blocks"
local core = require "memtide.core"
local first_cell = require "memtide.cli.first_cell"
local options = require "memtide.cli.options"
local step = require "memtide.picture.step"
local terminal = require "memtide.base.terminal"
local util = require "memtide.base.util"

local STANDARD, WIDTH = 1, 80 -- output; columns where it is no terminal

local tide = {words = "SCRIPT [-- ARGS]", text = "memory over the ops of the first cell's step, in the terminal",
  options = {options.CELL}}

function tide.run(experiment, given)
  local facts = step.facts(first_cell(experiment, given))
  local width = core.window(STANDARD)
  for _, line in ipairs(blocks.lines(facts, {width = width or WIDTH, unicode = terminal.unicode(),
    colour = terminal.colour(STANDARD)})) do
    util.must_write("standard output", io.stdout:write(line, "\n"))
  end
  return 0
end

return tide
