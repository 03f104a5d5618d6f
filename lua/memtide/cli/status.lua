-- memtide status: which cells have their rows.
local options = require "memtide.cli.options"
local status = require "memtide.sweep.status"

return {words = "SCRIPT or FILE.csv [-- ARGS]",
  text = "which cells are done, running, failed, stale or missing in the file; of a file alone, what its rows say",
  options = {options.csv, options.PLAN, options.json}, run = status.main,
  alone = function(words, given)
    return #words == 1 and words[1]:find("%.csv$") and status.of_file(words[1], given) or nil
  end}
