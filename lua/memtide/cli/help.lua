-- memtide help: commands and their options, the options that a script declares, the tables of columns and settings.
local columns = require "memtide.results.columns"
local options = require "memtide.cli.options"
local report = require "memtide.results.report"
local script = require "memtide.sweep.script"
local script_options = require "memtide.sweep.script_options"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"

local help = {words = "[COMMAND [SCRIPT] or TOPIC]",
  text = "this text; of a script, the options that it declares; the topics are columns and settings",
  options = {options.safe, options.markdown}}

help.STATUSES = [[
Exit status: 0 done (cells that ran out of memory are results), 1 a cell has a row with error, diverged, crashed or
timeout, of this call or an earlier one, 2 wrong usage, 3 out of device memory, 4 stopped by --max-failures,
5 a claim of the script is refuted, 6 none is, but one is inconclusive, 64 a wrong option of the script's own,
65 a mistake in the script or a damaged file, 66 a file cannot be opened, read or written, 69 no such device,
70 a bug in memtide, 71 out of host memory, 75 stopped by SIGUSR1 or --until after the cells that ran,
130 interrupted (SIGINT), 143 terminated (SIGTERM, SIGHUP).
After 4, 75, 130 and 143, and after a kill, the same command goes on where it stopped.]]

-- ---- topics: each is a function that returns the lines of a table, the head first

local function column_lines()
  local lines = {{"group", "column", "unit", "what it says"}}
  for _, one in ipairs(columns.list) do
    local some = one.since == 0 and " (in files that need it)" or ""
    lines[#lines + 1] = {one.group, one.name, one.unit, one.text .. some}
  end
  return lines
end

local function words_of(setting)
  local words = {}
  for i, word in ipairs(setting.words) do words[i] = word ~= "budget" and word or "bytes" end
  return table.concat(words, ", ")
end

local ALLOWED = {word = words_of, word_or_bytes = words_of, flag = words_of,
  count = function(setting)
    if setting.most == settings.MOST then return setting.least .. " and more" end
    return ("%d to %d"):format(setting.least, setting.most)
  end,
  size = function() return "bytes" end, text = function() return "a name" end,
  optimizer = function() return "an optimizer" end, options = function() return "a table of options" end,
  scaler = function() return "a table of options, a number, false, true" end, mesh = function() return "a table of sizes" end,
}

local function setting_lines()
  local lines = {{"setting", "default", "values", "unit", "what it says"}}
  for _, one in ipairs(settings.list) do
    lines[#lines + 1] = {one.name, settings.text(one.default), ALLOWED[one.type](one), one.unit, one.text}
  end
  return lines
end

local TOPICS = {columns = column_lines, settings = setting_lines}
local TOPIC_NAMES = util.sorted_keys(TOPICS)

local function print_topic(name, given)
  local lines = TOPICS[name]()
  if given.markdown then report.print_markdown(lines, {true, true, true, true, true})
  else for _, line in ipairs(report.columns(lines, true)) do print(line) end end
  return 0
end

-- ---- commands

local function print_options(list)
  print("Options:")
  for _, option in ipairs(list) do
    local letter = option.letter and "-" .. option.letter .. ", " or "    "
    local name = letter .. "--" .. option.name .. (option.argument and " " .. option.argument or "")
    print(("  %-22s %s"):format(name, option.text))
  end
end

-- The options that the script declares
local function print_own(path)
  local experiment = script.load_experiment(path, {})
  if #experiment.options == 0 then return print(("\n%s declares no options."):format(path)) end
  print(("\nOptions of %s, after its name; with several values (8,16 or 8..64:8) they are axes:"):format(path))
  for _, line in ipairs(script_options.help(experiment.options)) do print(line) end
end

-- Prints the help of one command, or (name = nil) of all; and the options of the script at `path`, if given.
function help.print(commands, name, path)
  print("Predicts, measures and sweeps the memory of training steps.\n")
  for _, command in ipairs(name and {commands.of(name)} or commands.all()) do
    print(("  memtide %-26s %s"):format(command.name .. " " .. command.words, command.text))
  end
  if name then print()
  else
    print("  memtide SCRIPT.lua [ARGS]          a plain Lua program with the module at hand")
    print("  memtide -e CODE | -l MODULE | -i | -   as in lua: run code, require a module, prompt, standard input")
    print("  memtide --safe SCRIPT ...          a program that is not trusted: see --safe")
    print("  memtide --version\n")
    print("  memtide run article.lua --set batch=8,16 --memory 1GiB\n")
  end
  print_options(name and commands.of(name).options or commands.options())
  if path then print_own(path) end
  print("\n" .. help.STATUSES)
  return 0
end

function help.alone(words, given, commands)
  local name = words[1]
  if TOPICS[name] then return print_topic(name, given) end
  if name and not commands.is_command(name) then
    local known = table.move(TOPIC_NAMES, 1, #TOPIC_NAMES, #commands.names + 1, {table.unpack(commands.names)})
    util.fail_usage('unknown command "%s"%s; memtide help lists them', name, util.meant(name, known))
  end
  return help.print(commands, name, words[2])
end

help.completes = {COMMAND = {commands = true}, TOPIC = {words = table.concat(TOPIC_NAMES, " ")}}

return help
