-- Parses the words of the command line into options, and checks them.
local commands = require "memtide.cli.commands"
local key_of, SET = require "memtide.cli.options".key_of, require "memtide.cli.options".set
local script_options = require "memtide.sweep.script_options"
local util = require "memtide.base.util"

local arguments = {}

-- "--name=value" -> name, letter, value; "-n" -> nil, "n"
local function parts_of(word)
  local name, value = word:match("^%-%-([%w_-]+)=(.*)$")
  return name or word:match("^%-%-([%w_-]+)$"), word:match("^%-(%a)$"), value
end

-- The option that the word names (nil: none), its name and its value. An option of `command` comes before one of the
-- same name of other commands.
local function option_of(word, command)
  local name, letter, value = parts_of(word)
  local option = command and commands.option(command, name, letter) or commands.option(nil, name, letter)
  return option, option and option.name or name, value
end

-- The option that the word names; raises if there is none.
function arguments.option(word)
  local option, name = option_of(word)
  if not option then commands.unknown_option(word, name) end
  return option
end

-- Raises if something is given a second time: one of the two values would be left out without a word. key: what the option
-- gives, a setting's name or the option itself.
local function once(options, key, word)
  local earlier = options.by[key]
  if earlier == word then util.fail_usage("%s is given twice: expected once, with all its values", word) end
  if earlier then util.fail_usage("%s: %s gives that already: expected one of them", word, earlier) end
  options.by[key] = word
end

-- After the script's name, an option that memtide does not know may be one that the script declares. It is kept as
-- {word, name, value} and judged when the script has been read; the next word is its value unless it is an option.
local function take_own(options, words, i)
  local word, after = words[i], words[i + 1]
  local _, name, value = option_of(word)
  if not name or #options.words == 0 then commands.unknown_option(word, name) end
  once(options, key_of(name), "--" .. name)
  if not value and after and not after:find("^%-%-") then value, i = after, i + 1 end
  options.own[#options.own + 1] = {word = word, name = name, value = value}
  return i
end

local function take_option(options, words, i, command)
  local option, name, value = option_of(words[i], command)
  if not option then return take_own(options, words, i) end
  if option.argument and not value then i, value = i + 1, words[i + 1] end
  if option.argument and not value then util.fail_usage("--%s: %s is missing", name, option.argument) end
  if not option.argument and value then util.fail_usage("--%s takes no value", name) end
  for _, key in ipairs(option.sets or option.argument and not option.repeated and {"--" .. name} or {}) do
    once(options, key, "--" .. name)
  end
  if option.take then option.take(options, value) else options[key_of(name)] = value or true end
  if option == SET then
    local setting = options.set[#options.set][1]
    if not SET.tried[setting] then once(options, setting, "--set " .. setting) end
  end
  options.given[#options.given + 1] = {name = name, value = value}
  return i
end

-- {command, option, ..., script, options, ..., "--", arguments, ...} -> options: values by name, and
--   words   those that are no options      args   those after "--"
--   given   {{name =, value = text}, ...}: memtide's options in their order
--   own     {{word =, name =, value =}, ...}: options that the script must declare
--   by      {[setting or option] = the word that gives it}
--   say     a function that prints a notice, unless --quiet
function arguments.parse(words, command)
  local options, i = {set = {}, words = {}, args = {}, own = {}, given = {}, by = {}}, 2
  while i <= #words do
    local word = words[i]
    if word == "--" then
      table.move(words, i + 1, #words, 1, options.args)
      break
    elseif word:sub(1, 1) == "-" and word ~= "-" then
      i = take_option(options, words, i, command)
    else
      options.words[#options.words + 1] = word
    end
    i = i + 1
  end
  options.say = function(text)
    if not options.quiet then io.stderr:write("memtide: ", util.printable(text, true), "\n") end
  end
  return options
end

-- If the script declares options, words after "--" that look like options are its own too.
local function take_arguments(options)
  local i = 1
  while i <= #options.args do
    if options.args[i]:find("^%-%-.") then i = take_own(options, options.args, i) end
    i = i + 1
  end
end

-- Sets options.declared: {name, values} of each option that the script declares and the command line gives. Raises if
-- one is not declared.
function arguments.take_declared(options, experiment)
  options.declared = {}
  if #experiment.options > 0 then take_arguments(options) end
  for _, given in ipairs(options.own) do
    local option = script_options.find(experiment.options, given.name)
    if not option and #experiment.options == 0 then commands.unknown_option(given.word, given.name) end
    local one = script_options.take(experiment.options, option, given)
    options.declared[#options.declared + 1] = one
  end
end

-- Raises if an option was given that the command does not use, or if options do not go together.
function arguments.check(command, options)
  local fail, own = util.fail_usage, options.own[1]
  if own and not command.words:find "SCRIPT" then commands.unknown_option(own.word, own.name) end
  for _, given in ipairs(options.given) do
    local option = commands.option(command, given.name)
    if not option then
      local having = commands.having(commands.option(nil, given.name))
      fail("%s: --%s is no option of this command; of: %s", command.name, given.name, table.concat(having, ", "))
    end
  end
  if options.json and options.csv == "-" then
    fail("%s: --json and --csv - both write to standard output: expected one of them", command.name)
  end
  if options.devices and options.in_process then
    fail("%s: --devices wants workers, not --in-process", command.name)
  end
  if command.check then command.check(options) end
end

return arguments
