-- memtide cells: the list of a sweep's cells and their parts.
local cell_list = require "memtide.sweep.cell_list"
local options = require "memtide.cli.options"

return {words = "SCRIPT [-- ARGS]",
  text = "the list of all cells and their parts as a file, for run --shard on several machines",
  options = {options.PLAN, options.PARTS}, run = cell_list.main}
