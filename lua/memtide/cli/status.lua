-- memtide status: which cells have their rows.
local options = require "memtide.cli.options"
local status = require "memtide.sweep.status"

return {words = "SCRIPT [-- ARGS]",
  text = "which cells are done, failed, stale or missing in the file; may be asked meanwhile",
  options = {options.csv, options.PLAN, options.json}, run = status.main}
