-- The command line: finds the command, runs it, prints an error as one line on stderr, returns the exit status.
local arguments = require "memtide.cli.arguments"
local commands = require "memtide.cli.commands"
local core = require "memtide.core"
local experiments = require "memtide.sweep.experiment"
local help = require "memtide.cli.help"
local hook = require "memtide.cli.hook"
local rank = require "memtide.sweep.rank"
local safe = require "memtide.sweep.safe"
local script = require "memtide.sweep.script"
local util = require "memtide.base.util"
local worker = require "memtide.sweep.worker"

-- Runs a command and returns its exit status. asked: the words of the command line
local function run_command(name, asked, state)
  local command = commands.of(name)
  local options = arguments.parse(asked, command)
  local words, alone = options.words, command.alone
  state.verbose = options.verbose
  if options.safe then safe.on() end
  if options.help then return help.print(commands, name, not alone and words[1] or nil) end
  arguments.check(command, options)
  local status = alone and alone(words, options, commands)
  if status then return status end
  if #words ~= 1 then
    util.fail_usage("%s: expected one script, found %d%s", name, #words,
      #words == 0 and script.here() or " (its own arguments stand after --)")
  end
  options.in_process = options.in_process or not asked.workers
  local experiment, text = script.load_experiment(words[1], options.args)
  options.script = {path = words[1], args = options.args, text = text}
  options.name = experiments.file_name(experiment)
  arguments.take_declared(options, experiment)
  state.options = options
  return command.run(experiment, options)
end

local function main(asked, state)
  local first = asked[1]
  if not first then
    if not core.isatty(0) then return script.plain(asked, state) end
    local here = script.here()
    help.print(commands)
    if here ~= "" then print("\nIn" .. here:sub(5)) end
    return
  end
  if first == "--help" or first == "-h" then return help.print(commands) end
  if first == "--worker" then return worker.serve() end
  if first == "--rank" then return rank.serve() end
  if first == "--safe" then -- an option of the command after it, or of a plain program
    table.remove(asked, 1)
    if commands.is_command(asked[1] or "") then table.insert(asked, 2, first) else safe.on() end
    return main(asked, state)
  end
  if first == "--version" then return print("memtide " .. core.version) end
  if commands.is_command(first) then return run_command(first, asked, state) end
  if first:sub(1, 2) == "--" and first ~= "--" then
    local one = commands.having(arguments.option(first))[1]
    util.fail_usage("%s: expected a command before it: memtide %s SCRIPT %s", first, one, first)
  end
  if not first:find("[-./]") and not script.exists(first) then commands.unknown_command(first) end
  return script.plain(asked, state)
end

-- ---- errors

local STATUS = {usage = 2, failures = 4, option = 64, script = 65, requeue = 75, interrupted = 130, terminated = 143}

local function explain_error(problem)
  local found = util.as_failure(problem)
  if found then return found end
  local text = util.text_of(problem)
  text = text:gsub("^memtide/[^:]*:%d+: (bad argument)", function(rest) return core.where() .. rest end)
  local failure = util.failure(text, text:match("^memtide/") and "internal" or "script")
  failure.traceback = debug.traceback("", 3)
  return failure
end

return function(asked)
  local state = {}
  local good, found = util.try(main, explain_error, asked, state)
  local status = good and (math.type(found) == "integer" and found or 0)
    or STATUS[found.code] or core.exit_status(found.code or "") or 70
  if not good then
    io.stdout:flush()
    io.stderr:write("memtide: ", util.printable(tostring(found.message), true), "\n")
    if state.verbose and found.traceback then io.stderr:write(found.traceback:gsub("^\n", ""), "\n") end
  end
  if state.options then hook.ended(state.options, status, not good and util.cut(found.message) or nil) end
  return status
end
