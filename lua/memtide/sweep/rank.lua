-- One rank of a cell that several train together: `memtide --rank`, which mpirun starts. All ranks run the same code in lock
-- step; rank 0 hears what to do from the worker that has started them (ranks.lua), and tells the others.
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local safe = require "memtide.sweep.safe"
local script = require "memtide.sweep.script"
local selection = require "memtide.sweep.selection"
local util = require "memtide.base.util"
local wire = require "memtide.sweep.wire"

local rank = {}

local NOTES = 0.05      -- seconds between two notes of what it is doing
local LAST_WORDS = 0.3 -- seconds in which mpirun forwards what a rank has said before all are ended

local function say(message) core.rank_say(wire.frame(message)) end

-- The message of the worker, which rank 0 passes on; nil: there is none.
local function hear(comm)
  local read, text = wire.reader(), nil
  if comm:rank() == 0 then
    local message = read()
    while not message do
      local bytes = core.rank_hear()
      if not bytes then break end
      message = read(bytes)
    end
    text = message and wire.frame(message) or ""
  end
  text = util.must(comm:broadcast(text))
  return text ~= "" and wire.reader()(text) or nil
end

local function say_failed(number, found)
  say{word = "failed", rank = number, status = found.status, reason = found.reason, code = found.code}
end

-- This rank cannot go on, while others may wait for it: all end.
local function give_up(comm, found)
  say_failed(comm:rank(), found)
  core.poll({}, LAST_WORDS)
  comm:abort(1)
end

-- Raises unless all ranks have the same text, and the worker that has started them.
local function same_everywhere(comm, what, text, worker)
  for k, other in ipairs(util.must(comm:gather(text))) do
    if other ~= text then error(("%s: rank %d has %s, rank %d has %s"):format(what, comm:rank(), text, k - 1, other), 0) end
  end
  if worker ~= text then
    error(("%s: the ranks have %s, what has started them has %s"):format(what, text, tostring(worker)), 0)
  end
end

local function set_up(comm, message)
  local setup = message.setup
  same_everywhere(comm, "version", core.version, message.version)
  local _, world = comm:rank()
  same_everywhere(comm, "world", tostring(world), tostring(message.world))
  if setup.safe then safe.on() end
  local experiment = script.load_experiment(setup.path, setup.args, setup.text)
  local self = selection.new(experiment, setup.purpose, setup.options):cell(message.k)
  self.values.device, self.values.batch, self.rank = message.device, message.batch, comm:rank()
  cell.build(self)
  same_everywhere(comm, "cell", cell.id(self, setup.purpose), message.id)
  local mesh = cell.mesh(self)
  self.values.device = util.must(comm:device(message.device))
  util.must(comm:attach(cell.device(self.values.device), mesh.data, mesh.tensor, mesh.pipeline))
  cell.compile(self)
  return self
end

-- What the ranks have found: rank 0's, with the memory of that which needs most; the first that is not "ok" gives the status.
local function joined(found, all)
  local most = 1
  found.peaks, found.predicted, found.status, found.reason = {}, {}, "ok", nil
  for k, other in ipairs(all) do
    found.peaks[k], found.predicted[k] = other.memory.peak.bytes, other.predicted
    if found.peaks[k] > found.peaks[most] then most = k end
    if found.status == "ok" and other.status ~= "ok" then
      found.status, found.reason = other.status, ("rank %d: %s"):format(k - 1, other.reason or "")
    end
  end
  found.memory, found.peak_rank = all[most].memory, most - 1
  return found
end

-- Tells what this rank is doing: rank 0 the worker, too, but not more often than somebody looks.
local function new_note(comm)
  local last = -NOTES
  return function(text, i, n)
    core.rank_note(text, i, n)
    if comm:rank() > 0 or core.clock() < last + NOTES then return end
    last = core.clock()
    say{word = "note", text = text, i = i, n = n}
  end
end

local function train(comm, message)
  core.rank_note "building"
  local self = set_up(comm, message)
  local note = new_note(comm)
  function self.agree(wanted) return util.must(comm:broadcast(wanted and "yes" or "no")) == "yes" end
  local found = cell.run(self, function(i, n) note("running step", i, n) end)
  if not found.memory then return give_up(comm, found) end
  local mine = {status = found.status, reason = found.reason, memory = found.memory,
    predicted = self.prediction.peak.bytes}
  local all = {}
  for k, text in ipairs(util.must(comm:gather(wire.frame(mine)))) do all[k] = wire.reader()(text) end
  if comm:rank() == 0 then say{word = "found", found = joined(found, all)} end
end

-- Trains the cell that the worker names; returns the exit status.
function rank.serve()
  util.must(core.rank_output())
  core.rank_note "joining the others"
  local comm, reason, code = core.comm()
  if not comm then
    say_failed(tonumber(os.getenv "OMPI_COMM_WORLD_RANK" or "") or 0, {status = "error", reason = reason, code = code})
    return 1
  end
  local message = hear(comm)
  if not message then
    if comm:rank() == 0 then
      util.fail_usage("--rank is for processes that memtide starts itself, not for the command line")
    end
    return 0
  end
  local good, problem = util.try(train, nil, comm, message)
  if not good then
    local failure = util.as_failure(problem)
    give_up(comm, {status = "error", reason = util.cut(failure and failure.message or util.text_of(problem)), code = failure and failure.code})
  end
  comm:close()
  return 0
end

return rank
