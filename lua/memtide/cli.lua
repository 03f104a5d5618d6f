-- The command line: what was asked for, help, exit statuses, and errors as one line on stderr.
local commands = require "memtide.commands"
local compare = require "memtide.compare"
local completion = require "memtide.completion"
local core = require "memtide.core"
local declared = require "memtide.declared"
local hook = require "memtide.hook"
local merge = require "memtide.merge"
local plan = require "memtide.plan"
local script = require "memtide.script"
local shards = require "memtide.shards"
local util = require "memtide.util"
local verify = require "memtide.verify"
local watch = require "memtide.watch"
local worker = require "memtide.worker"

-- ---- options: {name, letter, argument, text, commands that have it (all: nil)}; without an argument it is a switch

local ROWS = {run = true, predict = true, slurm = true}
local PLANNED = {run = true, predict = true, status = true, fit = true, cells = true, slurm = true, verify = true}
local CELLS = {explain = true, dump = true, tune = true}
for name in pairs(PLANNED) do CELLS[name] = true end
local RUN = {run = true}
local SPREAD = {cells = true, slurm = true}
local SLURM = {slurm = true}
local SHOWS = {run = true, predict = true, status = true, watch = true, fit = true, compare = true}
local TABLES = {run = true, predict = true, watch = true}
local OPTIONS = {
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
for _, option in ipairs(OPTIONS) do
  by_name[option[1]] = option
  if option[2] then by_letter[option[2]] = option end
end

local USES = {
  {"run", "SCRIPT [-- ARGS]",
    "every cell of an experiment, one row each; what is in the file already is not run again"},
  {"predict", "SCRIPT [-- ARGS]", "the same cells, nothing computed: the predicted columns"},
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
Exit status: 0 done (cells that ran out of memory are results), 1 a cell ended in error, nan, a crash or a timeout,
2 wrong usage, 3 out of device memory, 4 stopped by --max-failures, 5 a claim of the script is refuted,
6 none is, but one is inconclusive, 64 a wrong option of the script's own, 65 a mistake in the script or a damaged file,
66 a file cannot be opened, read or written, 69 no such device, 70 a bug in memtide, 71 out of host memory,
75 stopped by SIGUSR1 or --until behind the cells that ran, 130 interrupted (SIGINT), 143 terminated (SIGTERM, SIGHUP).
After 4, 75, 130 and 143, and after a kill, the same command goes on where it stopped.]]

local function usage(format, ...) error(util.failure(format:format(...), "usage"), 0) end

local function has_option(command, option) return not option[5] or option[5][command] end

-- Of one command, or (nil) all
local function print_options(command)
  print("Options:")
  for _, option in ipairs(OPTIONS) do
    local letter = option[2] and "-" .. option[2] .. ", " or "    "
    local name = letter .. "--" .. option[1] .. (option[3] and " " .. option[3] or "")
    if not command or has_option(command, option) then print(("  %-22s %s"):format(name, option[4])) end
  end
end

-- What the script declares
local function print_own(path)
  local experiment = script.load_experiment(path, {})
  if #experiment.options == 0 then return print(("\n%s declares no options."):format(path)) end
  print(("\nOptions of %s, behind its name; with several values (8,16 or 8..64:8) they are axes:"):format(path))
  for _, line in ipairs(declared.help(experiment.options)) do print(line) end
end

local function names_of(uses, option)
  local names = {}
  for _, use in ipairs(uses) do
    if not option or has_option(use[1], option) then names[#names + 1] = use[1] end
  end
  return names
end

local function is_command(word)
  for _, use in ipairs(USES) do if use[1] == word then return true end end
  return false
end

local function unknown_command(word)
  usage('unknown command "%s"%s; memtide help lists them', word, util.meant(word, names_of(USES)))
end

-- Of one command, or (nil) all; with options.words[1], of a script
local function help(command, options)
  print("Predicts, measures and sweeps the memory of training steps.\n")
  for _, use in ipairs(USES) do
    if not command or use[1] == command then
      print(("  memtide %-26s %s"):format(use[1] .. " " .. use[2], use[3]))
    end
  end
  if command then print()
  else
    print("  memtide SCRIPT.lua [ARGS]          a plain Lua program with the module at hand")
    print("  memtide -e CODE | -l MODULE | -i | -   as in lua: run code, require a module, prompt, standard input")
    print("  memtide --version\n")
    print("  memtide run article.lua --set batch=8,16 --memory 1GiB\n")
  end
  print_options(command)
  if options and options.words[1] then print_own(options.words[1]) end
  print("\n" .. STATUSES)
end

-- help [COMMAND [SCRIPT]]
local function help_of(words)
  if words[1] and not is_command(words[1]) then unknown_command(words[1]) end
  return help(words[1], {words = {words[2]}})
end

-- ---- parsing

local function take_set(options, text)
  local axis, words = text:match("^([^=]+)=(.+)$")
  if not axis then usage('--set: expected AXIS=VALUE,VALUE, found "%s"', text) end
  options.set[#options.set + 1] = {axis, words}
end

local function key_of(name) return (name:gsub("-", "_")) end

local function whole(name, least)
  return function(options, text)
    local value = math.tointeger(tonumber(text))
    if not value or value < least then
      usage('--%s: expected a whole number of at least %d, found "%s"', name, least, text)
    end
    options[key_of(name)] = value
  end
end

local function size(name)
  return function(options, text)
    local bytes = util.bytes(text)
    if not bytes or bytes == 0 then usage('--%s: expected a size such as 512MiB, found "%s"', name, text) end
    options[key_of(name)] = bytes
  end
end

-- {seconds = most, times = most in multiples of the estimate}
local function take_timeout(options, text)
  options.timeout = {}
  for word in (text .. ","):gmatch("([^,]*),") do
    local times, seconds = tonumber(word:match("^([%d.]+)x$")), util.seconds(word)
    if not times and not seconds or (times or seconds) <= 0 then
      usage('--timeout: expected a time such as 60s, 5m or 5x, found "%s"', word)
    end
    options.timeout[times and "times" or "seconds"] = times or seconds
  end
end

-- The next time the clock shows HH:MM, as os.time has it
local function take_until(options, text)
  local hour, minute = text:match("^(%d%d?):(%d%d)$")
  if not hour or tonumber(hour) > 23 or tonumber(minute) > 59 then
    usage('--until: expected a time of day such as 07:30, found "%s"', text)
  end
  local now = os.time()
  local at = os.date("*t", now)
  at.hour, at.min, at.sec = tonumber(hour), tonumber(minute), 0
  if os.time(at) <= now then at.day = at.day + 1 end
  options["until"] = os.time(at)
end

local TAKE = {
  set = take_set, steps = whole("steps", 1), seed = whole("seed", 0), jobs = whole("jobs", 1),
  memory = size("memory"), ["host-memory"] = size("host-memory"), ["max-failures"] = whole("max-failures", 1),
  timeout = take_timeout, ["until"] = take_until, shards = whole("shards", 1),
  shard = function(options, text)
    options.shard = shards.parse(text)
    if not options.shard then usage('--shard: expected I/N, part I of N, found "%s"', text) end
  end,
  retry = function(options, text)
    local again, expected = plan.retry(text)
    if not again then usage('--retry: expected %s, found "%s"', expected, text) end
    options.retry = again
  end,
  devices = function(options, text)
    options.devices = {}
    for name in (text .. ","):gmatch("([^,]*),") do options.devices[#options.devices + 1] = name end
  end,
}

-- "--name=value" -> name, value; "-n" -> the name that it stands for
local function name_of(word)
  local name, value = word:match("^%-%-([%w_-]+)=(.*)$")
  local letter = by_letter[word:match("^%-(%a)$") or ""]
  return name or word:match("^%-%-([%w_-]+)$") or letter and letter[1], value
end

local function unknown_option(word, name)
  local names = {}
  for _, known in ipairs(OPTIONS) do names[#names + 1] = known[1] end
  usage("unknown option %s%s", word, util.meant(name or word, names))
end

local function option_of(word)
  local name, value = name_of(word)
  local option = by_name[name or ""]
  if not option then unknown_option(word, name) end
  return option, value
end

-- Behind the script, what is no option of memtide's may be one that the script declares: {word, name, value}, judged
-- when the script has been read. A word behind it that is no option is its value.
local function take_own(options, arguments, i)
  local word, after = arguments[i], arguments[i + 1]
  local name, value = name_of(word)
  if not name or #options.words == 0 then unknown_option(word, name) end
  if not value and after and not after:find("^%-%-") then value, i = after, i + 1 end
  options.own[#options.own + 1] = {word = word, name = name, value = value}
  return i
end

local function take_option(options, arguments, i)
  local name, value = name_of(arguments[i])
  local option = by_name[name or ""]
  if not option then return take_own(options, arguments, i) end
  if option[3] and not value then i, value = i + 1, arguments[i + 1] end
  if option[3] and not value then usage("--%s: %s is missing", name, option[3]) end
  if not option[3] and value then usage("--%s takes no value", name) end
  if TAKE[name] then TAKE[name](options, value) else options[key_of(name)] = value or true end
  options.given[#options.given + 1] = {name = name, value = value}
  return i
end

-- {command, option, ..., script, options, ..., "--", arguments, ...} -> options; options.words, options.args, and
-- options.given: {{name =, value = text}, ...}, memtide's own as they were given
local function parse(arguments, from)
  local options, i = {set = {}, words = {}, args = {}, own = {}, given = {}}, from
  while i <= #arguments do
    local word = arguments[i]
    if word == "--" then
      table.move(arguments, i + 1, #arguments, 1, options.args)
      break
    elseif word:sub(1, 1) == "-" and word ~= "-" then
      i = take_option(options, arguments, i)
    else
      options.words[#options.words + 1] = word
    end
    i = i + 1
  end
  options.say = function(text) if not options.quiet then io.stderr:write("memtide: ", text, "\n") end end
  return options
end

-- Of the words behind "--" those that look like options are the script's, where it declares some.
local function take_arguments(options)
  local i = 1
  while i <= #options.args do
    if options.args[i]:find("^%-%-.") then i = take_own(options, options.args, i) end
    i = i + 1
  end
end

-- options.declared: {name, values} of what the script declares and the command line says.
local function take_declared(options, experiment)
  options.declared = {}
  if #experiment.options > 0 then take_arguments(options) end
  for _, given in ipairs(options.own) do
    local option = declared.find(experiment.options, given.name)
    if not option and #experiment.options == 0 then unknown_option(given.word, given.name) end
    local one = declared.take(experiment.options, option, given)
    options.declared[#options.declared + 1] = one
  end
end

-- An option that the command would not look at is a mistake, not a wish that is left out in silence.
local function check_options(command, options)
  for _, option in ipairs(OPTIONS) do
    local given = options[key_of(option[1])]
    if given and (option[1] ~= "set" or #given > 0) and not has_option(command, option) then
      usage("%s: --%s is no option of this command; of: %s", command, option[1],
        table.concat(names_of(USES, option), ", "))
    end
  end
  if options.json and options.csv == "-" then
    usage("%s: --json and --csv - both write to standard output: expected one of them", command)
  end
  if options.devices and options.device then usage("%s: expected --device or --devices, found both", command) end
  if command == "run" and options.cells and not options.shard then usage("run: --cells wants --shard") end
  if options.devices and options.in_process then usage("%s: --devices wants workers, not --in-process", command) end
end

local function run_command(name, arguments, state)
  local options = parse(arguments, 2)
  state.verbose = options.verbose
  if options.help then return help(name, options) end
  check_options(name, options)
  if name == "help" then return help_of(options.words) end
  if name == "completion" then return completion.main(options.words[1], USES, OPTIONS) end
  if name == "devices" then return commands.devices(options) end
  local words = options.words
  if name == "compare" then
    if #words ~= 2 then usage("compare: expected two files of results, found %d", #words) end
    return compare.main(words[1], words[2], options)
  end
  if name == "merge" then
    if #words < 2 then usage("merge: expected the file to write and those to read, found %d", #words) end
    return merge.main(words, options)
  end
  if name == "verify" then
    options.file = table.remove(words, 1)
    if not options.file then usage("verify: expected a file of results") end
    if not words[1] then return verify.main(options.file, nil, options) end
  end
  if #words ~= 1 then
    usage("%s: expected one script, found %d (its own arguments stand behind --)", name, #words)
  end
  options.in_process = options.in_process or not arguments.workers
  local path = words[1]
  if name == "watch" and path:find("%.csv$") then return watch.main(path, options) end
  local experiment, text = script.load_experiment(path, options.args)
  options.script = {path = path, args = options.args, text = text}
  take_declared(options, experiment)
  state.options = options
  return commands[name](experiment, options)
end

local function main(arguments, state)
  local first = arguments[1]
  if not first then
    if not core.isatty(0) then return script.plain(arguments, state) end
    return help()
  end
  if first == "--help" or first == "-h" then return help() end
  if first == "--worker" then return worker.serve() end
  if first == "--version" then return print("memtide " .. core.version) end
  if is_command(first) then return run_command(first, arguments, state) end
  if first:sub(1, 2) == "--" and first ~= "--" then
    usage("%s: expected a command before it: memtide %s SCRIPT %s", first, names_of(USES, option_of(first))[1], first)
  end
  if not first:find("[-./]") and not script.exists(first) then
    unknown_command(first)
  end
  return script.plain(arguments, state)
end

-- ---- errors

local STATUS = {usage = 2, failures = 4, option = 64, script = 65, requeue = 75, interrupted = 130, terminated = 143}

local function explain_error(problem)
  if util.is_failure(problem) then return problem end
  local text = tostring(problem)
  text = text:gsub("^memtide/[^:]*:%d+: (bad argument)", function(rest) return core.where() .. rest end)
  local interrupted = text:match("interrupted$") ~= nil
  local code = interrupted and "interrupted" or text:match("^memtide/") and "internal" or "script"
  local failure = util.failure(interrupted and "interrupted" or text, code)
  failure.traceback = debug.traceback("", 3)
  return failure
end

return function(arguments)
  local state = {}
  local good, found = xpcall(main, explain_error, arguments, state)
  local status = good and (math.type(found) == "integer" and found or 0)
    or STATUS[found.code] or core.exit_status(found.code or "") or 70
  if not good then
    io.stdout:flush()
    io.stderr:write("memtide: ", found.message, "\n")
    if state.verbose and found.traceback then io.stderr:write(found.traceback:gsub("^\n", ""), "\n") end
  end
  if state.options then hook.ended(state.options, status, not good and found.message or nil) end
  return status
end
