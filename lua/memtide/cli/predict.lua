-- memtide predict: the cells of memtide run, without computing anything.
local options = require "memtide.cli.options"
local run = require "memtide.cli.run"

local predict = {words = "SCRIPT [-- ARGS]",
  text = "the same cells, nothing computed: what each will need, and whether it fits"}

predict.options = {options.csv, options.ROWS,
  {name = "jobs", argument = "N", take = options.whole("jobs", 1), text = "N workers (1)"},
  options.plain, options.markdown, options.json}

function predict.run(experiment, given) return run.all(experiment, "predict", given) end

return predict
