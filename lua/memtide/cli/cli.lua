-- The command line: which command is meant, exit statuses, and errors as one line on stderr.
local arguments = require "memtide.cli.arguments"
local commands = require "memtide.cli.commands"
local compare = require "memtide.cli.compare"
local completion = require "memtide.cli.completion"
local core = require "memtide.core"
local experiments = require "memtide.sweep.experiment"
local hook = require "memtide.cli.hook"
local merge = require "memtide.cli.merge"
local safe = require "memtide.sweep.safe"
local script = require "memtide.sweep.script"
local usage = require "memtide.cli.usage"
local util = require "memtide.base.util"
local verify = require "memtide.cli.verify"
local watch = require "memtide.cli.watch"
local worker = require "memtide.sweep.worker"

-- Commands that can do without a script -> the exit status; nil: what is behind them is one, all the same.
local WITHOUT_SCRIPT = {
  help = function(words) return usage.help(words[1], words[2]) end,
  completion = function(words) return completion.main(words[1], usage.commands, usage.options) end,
  devices = function(_, options) return commands.devices(options) end,
  compare = function(words, options)
    if #words ~= 2 then usage.fail("compare: expected two files of results, found %d", #words) end
    return compare.main(words[1], words[2], options)
  end,
  merge = function(words, options)
    if #words < 2 then usage.fail("merge: expected the file to write and those to read, found %d", #words) end
    return merge.main(words, options)
  end,
  verify = function(words, options)
    options.file = table.remove(words, 1)
    if not options.file then usage.fail("verify: expected a file of results") end
    return not words[1] and verify.main(options.file, nil, options) or nil
  end,
  watch = function(words, options)
    return (words[1] or ""):find("%.csv$") and watch.main(words[1], options) or nil
  end,
}

-- asked: the words of the command line
local function run_command(name, asked, state)
  local options = arguments.parse(asked, 2)
  local words, alone = options.words, WITHOUT_SCRIPT[name]
  state.verbose = options.verbose
  if options.safe then safe.on() end
  if options.help then return usage.help(name, not alone and words[1] or nil) end
  arguments.check(name, options)
  local status = alone and alone(words, options)
  if status then return status end
  if #words ~= 1 then
    usage.fail("%s: expected one script, found %d (its own arguments stand behind --)", name, #words)
  end
  options.in_process = options.in_process or not asked.workers
  local experiment, text = script.load_experiment(words[1], options.args)
  options.script = {path = words[1], args = options.args, text = text}
  options.name = experiments.file_name(experiment)
  arguments.take_declared(options, experiment)
  state.options = options
  return commands[name](experiment, options)
end

local function main(asked, state)
  local first = asked[1]
  if not first then
    if not core.isatty(0) then return script.plain(asked, state) end
    return usage.help()
  end
  if first == "--help" or first == "-h" then return usage.help() end
  if first == "--worker" then return worker.serve() end
  if first == "--safe" then -- an option of the command after it, or of a plain program
    table.remove(asked, 1)
    if usage.is_command(asked[1] or "") then table.insert(asked, 2, first) else safe.on() end
    return main(asked, state)
  end
  if first == "--version" then return print("memtide " .. core.version) end
  if usage.is_command(first) then return run_command(first, asked, state) end
  if first:sub(1, 2) == "--" and first ~= "--" then
    local one = usage.names(arguments.option(first))[1]
    usage.fail("%s: expected a command before it: memtide %s SCRIPT %s", first, one, first)
  end
  if not first:find("[-./]") and not script.exists(first) then usage.unknown_command(first) end
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
