-- The words of the command line as options: what was asked for, and whether it can be.
local declared = require "memtide.sweep.script_options"
local plan = require "memtide.sweep.selection"
local shards = require "memtide.sweep.shards"
local usage = require "memtide.cli.usage"
local util = require "memtide.base.util"

local arguments = {}

local function take_set(options, text)
  local axis, words = text:match("^([^=]+)=(.+)$")
  if not axis then usage.fail('--set: expected AXIS=VALUE,VALUE, found "%s"', text) end
  options.set[#options.set + 1] = {axis, words}
end

local function key_of(name) return (name:gsub("-", "_")) end

local function whole(name, least)
  return function(options, text)
    local value = math.tointeger(tonumber(text))
    if not value or value < least then
      usage.fail('--%s: expected a whole number of at least %d, found "%s"', name, least, text)
    end
    options[key_of(name)] = value
  end
end

local function size(name)
  return function(options, text)
    local bytes = util.bytes(text)
    if not bytes or bytes == 0 then usage.fail('--%s: expected a size such as 512MiB, found "%s"', name, text) end
    options[key_of(name)] = bytes
  end
end

-- {seconds = most, times = most in multiples of the estimate}
local function take_timeout(options, text)
  options.timeout = {}
  for word in (text .. ","):gmatch("([^,]*),") do
    local times, seconds = tonumber(word:match("^([%d.]+)x$")), util.seconds(word)
    if not times and not seconds or (times or seconds) <= 0 then
      usage.fail('--timeout: expected a time such as 60s, 5m or 5x, found "%s"', word)
    end
    options.timeout[times and "times" or "seconds"] = times or seconds
  end
end

-- The next time the clock shows HH:MM, as os.time has it
local function take_until(options, text)
  local hour, minute = text:match("^(%d%d?):(%d%d)$")
  if not hour or tonumber(hour) > 23 or tonumber(minute) > 59 then
    usage.fail('--until: expected a time of day such as 07:30, found "%s"', text)
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
    if not options.shard then usage.fail('--shard: expected I/N, part I of N, found "%s"', text) end
  end,
  retry = function(options, text)
    local again, expected = plan.retry(text)
    if not again then usage.fail('--retry: expected %s, found "%s"', expected, text) end
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
  local letter = usage.letter(word:match("^%-(%a)$") or "")
  return name or word:match("^%-%-([%w_-]+)$") or letter and letter[1], value
end

-- The option that the word is.
function arguments.option(word)
  local name, value = name_of(word)
  local option = usage.option(name or "")
  if not option then usage.unknown_option(word, name) end
  return option, value
end

-- Behind the script, what is no option of memtide's may be one that the script declares: {word, name, value}, judged
-- when the script has been read. A word behind it that is no option is its value.
local function take_own(options, words, i)
  local word, after = words[i], words[i + 1]
  local name, value = name_of(word)
  if not name or #options.words == 0 then usage.unknown_option(word, name) end
  if not value and after and not after:find("^%-%-") then value, i = after, i + 1 end
  options.own[#options.own + 1] = {word = word, name = name, value = value}
  return i
end

local function take_option(options, words, i)
  local name, value = name_of(words[i])
  local option = usage.option(name or "")
  if not option then return take_own(options, words, i) end
  if option[3] and not value then i, value = i + 1, words[i + 1] end
  if option[3] and not value then usage.fail("--%s: %s is missing", name, option[3]) end
  if not option[3] and value then usage.fail("--%s takes no value", name) end
  if TAKE[name] then TAKE[name](options, value) else options[key_of(name)] = value or true end
  options.given[#options.given + 1] = {name = name, value = value}
  return i
end

-- {command, option, ..., script, options, ..., "--", arguments, ...} -> options; options.words, options.args, and
-- options.given: {{name =, value = text}, ...}, memtide's own as they were given
function arguments.parse(words, from)
  local options, i = {set = {}, words = {}, args = {}, own = {}, given = {}}, from
  while i <= #words do
    local word = words[i]
    if word == "--" then
      table.move(words, i + 1, #words, 1, options.args)
      break
    elseif word:sub(1, 1) == "-" and word ~= "-" then
      i = take_option(options, words, i)
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

-- Of the words behind "--" those that look like options are the script's, where it declares some.
local function take_arguments(options)
  local i = 1
  while i <= #options.args do
    if options.args[i]:find("^%-%-.") then i = take_own(options, options.args, i) end
    i = i + 1
  end
end

-- options.declared: {name, values} of what the script declares and the command line says.
function arguments.take_declared(options, experiment)
  options.declared = {}
  if #experiment.options > 0 then take_arguments(options) end
  for _, given in ipairs(options.own) do
    local option = declared.find(experiment.options, given.name)
    if not option and #experiment.options == 0 then usage.unknown_option(given.word, given.name) end
    local one = declared.take(experiment.options, option, given)
    options.declared[#options.declared + 1] = one
  end
end

-- An option that the command would not look at is a mistake, not a wish that is left out in silence.
function arguments.check(command, options)
  for _, option in ipairs(usage.options) do
    local given = options[key_of(option[1])]
    if given and (option[1] ~= "set" or #given > 0) and not usage.has(command, option) then
      usage.fail("%s: --%s is no option of this command; of: %s", command, option[1],
        table.concat(usage.names(option), ", "))
    end
  end
  if options.json and options.csv == "-" then
    usage.fail("%s: --json and --csv - both write to standard output: expected one of them", command)
  end
  if options.devices and options.device then usage.fail("%s: expected --device or --devices, found both", command) end
  if command == "run" and options.cells and not options.shard then usage.fail("run: --cells wants --shard") end
  if options.devices and options.in_process then
    usage.fail("%s: --devices wants workers, not --in-process", command)
  end
end

return arguments
