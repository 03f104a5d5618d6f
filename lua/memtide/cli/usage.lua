-- What the command line knows: its commands, its options, and the help that tells of them.
local declared = require "memtide.sweep.script_options"
local script = require "memtide.sweep.script"
local util = require "memtide.base.util"

local usage = {}

-- Options: {name, letter, argument, text, commands that have it (all: nil)}; without an argument it is a switch.
local ROWS = {run = true, predict = true, slurm = true}
local PLANNED = {run = true, predict = true, status = true, fit = true, cells = true, slurm = true, verify = true}
local CELLS = {explain = true, dump = true, tune = true}
for name in pairs(PLANNED) do CELLS[name] = true end
local SCRIPTS = {watch = true, help = true}
for name in pairs(CELLS) do SCRIPTS[name] = true end
local RUN = {run = true}
local SPREAD = {cells = true, slurm = true}
local SLURM = {slurm = true}
local SHOWS = {run = true, predict = true, status = true, watch = true, fit = true, compare = true}
local TABLES = {run = true, predict = true, watch = true}
usage.options = {
  {"device", nil, "D", "the device of every cell: cpu, cuda:0, cuda:h200 to plan only (default: the script's, or cpu)",
    CELLS},
  {"csv", nil, "FILE", "where rows go: a file that is resumed, or - for standard output (default: NAME.csv for run)",
    {run = true, predict = true, explain = true, status = true, watch = true, fit = true}},
  {"set", nil, "AXIS=V,V", "a setting or an axis instead of the script's; also 8..64:8, 8..512*2; may be repeated",
    CELLS},
  {"memory", nil, "SIZE", "as if the device had only this much: 512MiB, 8GB, 4096", PLANNED},
  {"steps", nil, "N", "timed steps of each cell", PLANNED},
  {"seed", nil, "N", "of parameters, data and dropout", PLANNED},
  {"dry-run", "n", nil, "the cells with their memory and time, what cannot fit and what is there already", RUN},
  {"try-oom", nil, nil, "runs also what is predicted not to fit", {run = true, slurm = true}},
  {"until", nil, "HH:MM", "starts nothing that cannot end by then; repeats behind the first of every cell", RUN},
  {"case", nil, "TEXT", "only cells whose name contains it", CELLS},
  {"devices", nil, "D,D", "a worker for each of these: every cell runs on the next that is free; all: every GPU", ROWS},
  {"shard", nil, "I/N", "only part I, 1 to N, of the cells; rows go to NAME.I-of-N.csv", RUN},
  {"cells", nil, "FILE", "the list of memtide cells: run --shard takes the parts from it, merge tells what is missing",
    {run = true, merge = true}},
  {"shards", nil, "N", "cells, slurm: how many parts the cells are dealt into (1)", SPREAD},
  {"output", "o", "PATH", "cells: the list (NAME.cells.csv); slurm: the folder (NAME.slurm)", SPREAD},
  {"time", nil, "T", "slurm: the time limit of a part, as sbatch has it", SLURM},
  {"partition", nil, "NAME", "slurm: where the jobs run", SLURM},
  {"gres", nil, "LIST", "slurm: what a part needs, such as gpu:1", SLURM},
  {"jobs", nil, "N", "predict: N workers (1)", {predict = true}},
  {"timeout", nil, "T", "ends a cell after 60s, 5m, 2h, or 5x: in multiples of its estimate; 5x,1h: whichever is first",
    ROWS},
  {"host-memory", nil, "SIZE", "of the host, for a worker: a cell that needs more has status oom", ROWS},
  {"max-failures", nil, "N", "stops when N cells in a row have failed", ROWS},
  {"retry", nil, "WORDS", "which rows of the file are made anew: none, all, stale, failed, or statuses (failed,stale)",
    ROWS},
  {"in-process", nil, nil, "cells in this process instead of workers: for debuggers", ROWS},
  {"no-claims", nil, nil, "the script's claims are not judged", RUN},
  {"on-done", nil, "CMD", "a shell command when the sweep has ended, with MEMTIDE_STATUS, MEMTIDE_CSV, MEMTIDE_OK ...",
    ROWS},
  {"on-fail", nil, "CMD", "this one instead, where the exit status is not 0", ROWS},
  {"once", nil, nil, "watch: what is there now", {watch = true}},
  {"plain", nil, nil, "on a terminal, too, a line for each cell instead of the screen", TABLES},
  {"markdown", nil, nil, "the table at the end as Markdown", TABLES},
  {"json", nil, nil, "one JSON object per row on standard output instead of the table", SHOWS},
  {"safe", nil, nil, "the script sees no os, no io and no files but those below its folder: for scripts of others",
    SCRIPTS},
  {"passes", nil, nil, "dump: the program after each pass", {dump = true}},
  {"network", nil, nil, "dump: the layers instead of the program", {dump = true}},
  {"plan", nil, nil, "dump: where every buffer lies, and the ledger at the peak", {dump = true}},
  {"describe", nil, "D", "devices: a GPU that is here as a description file, kernels/cuda/devices/NAME.json",
    {devices = true}},
  {"quiet", "q", nil, "nothing on standard error but errors"},
  {"verbose", "v", nil, "errors of a script with a traceback"},
  {"help", "h", nil, "this text"},
}
local by_name, by_letter = {}, {}
for _, option in ipairs(usage.options) do
  by_name[option[1]] = option
  if option[2] then by_letter[option[2]] = option end
end

-- {name, words behind it, text}
usage.commands = {
  {"run", "SCRIPT [-- ARGS]",
    "every cell of an experiment, one row each; what is in the file already is not run again"},
  {"predict", "SCRIPT [-- ARGS]", "the same cells, nothing computed: what each will need, and whether it fits"},
  {"status", "SCRIPT [-- ARGS]", "which cells are done, failed, stale or missing in the file; may be asked meanwhile"},
  {"watch", "SCRIPT or FILE.csv", "what a sweep that runs in another terminal is doing, until it ends"},
  {"fit", "SCRIPT [-- ARGS]", "the largest batch that fits, for every combination of techniques, and its time"},
  {"explain", "SCRIPT [-- ARGS]", "the memory of the first cell by hand: a row per layer, totals per category"},
  {"dump", "SCRIPT [-- ARGS]", "the step program of the first cell as text"},
  {"tune", "SCRIPT [-- ARGS]", "times what a GPU's libraries can choose between, for every op of the cells"},
  {"compare", "A.csv B.csv", "the cells of two files that did the same work: ratios of time and memory"},
  {"cells", "SCRIPT [-- ARGS]", "the list of all cells and their parts as a file, for run --shard on several machines"},
  {"slurm", "SCRIPT [-- ARGS]", "the parts as an array of Slurm jobs: a folder of scripts to submit"},
  {"merge", "OUT.csv IN.csv ...", "the rows and samples of several files as one"},
  {"verify", "FILE.csv [SCRIPT]", "whether a file of results is whole and agrees with itself, and with the script"},
  {"completion", "SHELL", "completions for bash, zsh or fish: eval \"$(memtide completion bash)\""},
  {"devices", "", "what is here, and what is missing and why"},
  {"help", "[COMMAND [SCRIPT]]", "this text; of a script, the options that it declares"},
}

local STATUSES = [[
Exit status: 0 done (cells that ran out of memory are results), 1 a cell has a row with error, diverged, crashed or
timeout, of this call or an earlier one, 2 wrong usage, 3 out of device memory, 4 stopped by --max-failures,
5 a claim of the script is refuted, 6 none is, but one is inconclusive, 64 a wrong option of the script's own,
65 a mistake in the script or a damaged file, 66 a file cannot be opened, read or written, 69 no such device,
70 a bug in memtide, 71 out of host memory, 75 stopped by SIGUSR1 or --until after the cells that ran,
130 interrupted (SIGINT), 143 terminated (SIGTERM, SIGHUP).
After 4, 75, 130 and 143, and after a kill, the same command goes on where it stopped.]]

-- Ends the program with a message: it was not asked as it wants to be.
function usage.fail(format, ...) error(util.failure(format:format(...), "usage"), 0) end

function usage.has(command, option) return not option[5] or option[5][command] end

-- The option of that name, or letter; nil: there is none.
function usage.option(name) return by_name[name] end
function usage.letter(letter) return by_letter[letter] end

-- The names of all commands, or of those that have the option.
function usage.names(option)
  local names = {}
  for _, use in ipairs(usage.commands) do
    if not option or usage.has(use[1], option) then names[#names + 1] = use[1] end
  end
  return names
end

function usage.is_command(word)
  for _, use in ipairs(usage.commands) do if use[1] == word then return true end end
  return false
end

function usage.unknown_command(word)
  usage.fail('unknown command "%s"%s; memtide help lists them', word, util.meant(word, usage.names()))
end

function usage.unknown_option(word, name)
  local names = {}
  for i, known in ipairs(usage.options) do names[i] = known[1] end
  usage.fail("unknown option %s%s", word, util.meant(name or word, names))
end

-- Of one command, or (nil) all
local function print_options(command)
  print("Options:")
  for _, option in ipairs(usage.options) do
    local letter = option[2] and "-" .. option[2] .. ", " or "    "
    local name = letter .. "--" .. option[1] .. (option[3] and " " .. option[3] or "")
    if not command or usage.has(command, option) then print(("  %-22s %s"):format(name, option[4])) end
  end
end

-- What the script declares
local function print_own(path)
  local experiment = script.load_experiment(path, {})
  if #experiment.options == 0 then return print(("\n%s declares no options."):format(path)) end
  print(("\nOptions of %s, behind its name; with several values (8,16 or 8..64:8) they are axes:"):format(path))
  for _, line in ipairs(declared.help(experiment.options)) do print(line) end
end

-- Of one command, or (nil) all; and of the script at `path`, if any
function usage.help(command, path)
  if command and not usage.is_command(command) then usage.unknown_command(command) end
  print("Predicts, measures and sweeps the memory of training steps.\n")
  for _, use in ipairs(usage.commands) do
    if not command or use[1] == command then
      print(("  memtide %-26s %s"):format(use[1] .. " " .. use[2], use[3]))
    end
  end
  if command then print()
  else
    print("  memtide SCRIPT.lua [ARGS]          a plain Lua program with the module at hand")
    print("  memtide -e CODE | -l MODULE | -i | -   as in lua: run code, require a module, prompt, standard input")
    print("  memtide --safe SCRIPT ...          a program that is not trusted: see --safe")
  print("  memtide --version\n")
    print("  memtide run article.lua --set batch=8,16 --memory 1GiB\n")
  end
  print_options(command)
  if path then print_own(path) end
  print("\n" .. STATUSES)
  return 0
end

return usage
