-- memtide calibrate: what PyTorch's process takes on a user's own machine beside its allocator, from one number that
-- nvidia-smi shows; predictions for that card have it from then on.
local calibration = require "memtide.net.calibration"
local cards = require "memtide.net.cards"
local first_cell = require "memtide.cli.first_cell"
local options = require "memtide.cli.options"
local reader = require "memtide.results.snapshot"
local report = require "memtide.results.report"
local terminal = require "memtide.base.terminal"
local util = require "memtide.base.util"

local calibrate = {words = "SCRIPT [-- ARGS]",
  text = "the context of PyTorch's process on your machine, from what nvidia-smi shows; alone: what is stored",
  options = {options.CELL,
    {name = "used", argument = "SIZE", take = options.size "used",
      text = "what nvidia-smi shows for the process in its steady state: 2130MiB"},
    options.snapshot,
    {name = "pytorch", argument = "VERSION", text = ("the version of PyTorch (%s)"):format(cards.VERSION)}}}

local fail = util.fail_usage

local function show_all()
  local list, lines = calibration.list(), {{"card", "PyTorch", "context", "", "date", "from"}}
  for _, one in ipairs(list) do
    lines[#lines + 1] = {one.card, one.version, ("%d"):format(one.bytes), util.show_bytes(one.bytes), one.date,
      terminal.harmless(one.source)}
  end
  if #list == 0 then
    print "nothing is calibrated: memtide calibrate SCRIPT --device pytorch:NAME --used SIZE"
  else
    for _, line in ipairs(report.columns(lines, {true, true, [4] = true, [5] = true, [6] = true})) do print(line) end
    print(("in %s; of several versions of PyTorch the one that was stored last is used"):format(calibration.path()))
  end
  return 0
end

-- The card of --device; raises if there is none.
local function card_of(given)
  if not given.used then fail "calibrate: --used is missing: what nvidia-smi shows for the process" end
  local name = given.device and cards.name(given.device)
  if not name then
    fail("calibrate: expected --device pytorch:NAME, with NAME one of %s", table.concat(cards.names, ", "))
  end
  return name
end

-- Stores the context of a process that has reserved so many bytes.
local function store(given, reserved, what, source)
  local name, used = card_of(given), given.used
  local total = cards.device(given.device):info().memory_total
  local bytes = used - reserved
  if bytes <= 0 then
    fail("calibrate: --used: expected more than the %d bytes (%s) that PyTorch %s, found %d", reserved,
      util.show_bytes(reserved), what, used)
  elseif used > total then
    fail("calibrate: --used: expected at most the %d bytes (%s) of %s, found %d", total, util.show_bytes(total), name, used)
  end
  local version = given.pytorch or cards.VERSION
  calibration.store{card = name, version = version, bytes = bytes, date = os.date "!%Y-%m-%d",
    source = (source:gsub("%c", " "))}
  local unlikely = cards.unlikely(bytes)
  if unlikely then
    given.say(("that is %s than any context that is known (%s): is --used of this process alone, and after its first steps?")
      :format(unlikely.word, util.show_bytes(unlikely.bytes)))
  end
  print(("%s, PyTorch %s: context %d bytes (%s): %d used, less %d that PyTorch %s"):format(name, version, bytes,
    util.show_bytes(bytes), used, reserved, what))
  return 0
end

function calibrate.check(given)
  if given.pytorch and not given.pytorch:find "^[%w.+-]+$" then
    fail('calibrate: --pytorch: expected a version such as 2.15 or 2.6.0+cu124, found "%s"', given.pytorch)
  end
end

function calibrate.alone(words, given)
  if given.snapshot then
    if #words > 0 then fail "calibrate: expected a script or --snapshot, found both" end
    card_of(given)
    local t = reader.read(given.snapshot, {})
    return store(given, t["end"].reserved, "had reserved when it was recorded", given.snapshot)
  end
  if #words > 0 then return nil end
  for _, one in ipairs(given.given) do
    if one.name ~= "quiet" and one.name ~= "verbose" then
      fail("calibrate: --%s: expected a script or --snapshot beside it", one.name)
    end
  end
  return show_all()
end

function calibrate.run(experiment, given)
  card_of(given)
  local self = first_cell(experiment, given)
  return store(given, self.prediction.max_memory_reserved, "is predicted to reserve",
    ("%s, %s"):format(experiment.name, self.name))
end

return calibrate
