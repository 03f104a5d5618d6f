-- The commands. Each is a file of this folder with its name:
--   words    the words after its name, for help and completion
--   text     what it does
--   options  its own options, and those of options.lua that it has
--   run      run(experiment, options) -> exit status: for the script that the words name
--   alone    alone(words, options, commands) -> exit status: for words that name no script; nil: they do name one
--   check    check(options): raises if options do not go together
--   completes  {WORD = {words = "a b"} or {files = "*.csv"}}: what may stand in place of a word
local options = require "memtide.cli.options"
local util = require "memtide.base.util"

local commands = {}

commands.names = {"new", "run", "predict", "status", "watch", "fit", "explain", "profile", "tide", "plot", "report", "dump", "tune",
  "show", "compare", "cells", "slurm", "merge", "verify", "import", "snapshot", "calibrate", "completion", "stubs", "devices", "help"}

local known = {}
for _, name in ipairs(commands.names) do known[name] = true end

function commands.is_command(name) return known[name] ~= nil end

local loaded = {}

-- The command with that name, its options as one list; options that every command has come last.
function commands.of(name)
  if not loaded[name] then
    local command = require("memtide.cli." .. name)
    loaded[name] = setmetatable({name = name, options = options.flat{command.options, options.ALL}},
      {__index = command})
  end
  return loaded[name]
end

-- All of them, in the order of the help.
function commands.all()
  local list = {}
  for i, name in ipairs(commands.names) do list[i] = commands.of(name) end
  return list
end

-- ---- options

-- The option with that name or letter of the command (nil: of any command); nil: there is none.
function commands.option(command, name, letter)
  for _, one in ipairs(command and {command} or commands.all()) do
    for _, option in ipairs(one.options) do
      if option.name == name or letter and option.letter == letter then return option end
    end
  end
end

-- The options of all commands, each once; options that every command has come last.
function commands.options()
  local list, seen = {}, {}
  for _, option in ipairs(options.ALL) do seen[option] = true end
  for _, command in ipairs(commands.all()) do
    for _, option in ipairs(command.options) do
      if not seen[option] then seen[option], list[#list + 1] = true, option end
    end
  end
  return table.move(options.ALL, 1, #options.ALL, #list + 1, list)
end

-- The names of the commands that have the option.
function commands.having(option)
  local names = {}
  for _, command in ipairs(commands.all()) do
    if commands.option(command, option.name) then names[#names + 1] = command.name end
  end
  return names
end

-- ---- mistakes

function commands.unknown_command(word)
  util.fail_usage('unknown command "%s"%s; memtide help lists them', word, util.meant(word, commands.names))
end

function commands.unknown_option(word, name)
  local names = {}
  for i, option in ipairs(commands.options()) do names[i] = option.name end
  util.fail_usage("unknown option %s%s", word, util.meant(name or word, names))
end

return commands
