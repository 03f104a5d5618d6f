-- Runs one cell of a selection and sends its row in pieces: in this process, or as a process of its own.
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local max_batch = require "memtide.sweep.max_batch"
local protocol = require "memtide.sweep.protocol"
local ranks = require "memtide.sweep.ranks"
local row = require "memtide.sweep.row"
local safe = require "memtide.sweep.safe"
local script = require "memtide.sweep.script"
local selection = require "memtide.sweep.selection"
local util = require "memtide.base.util"
local wire = require "memtide.sweep.wire"

local worker = {}

-- Raises unless these devices, which were asked for by name, can be opened.
function worker.check_devices(devices)
  for _, name in ipairs(devices) do selection.asked(cell.device, name) end
end

local function message_of(problem)
  if util.is_interrupt(problem) then error(problem, 0) end
  if util.is_failure(problem) then return util.cut(problem.message), problem.code end
  return util.cut(util.text_of(problem))
end

local function build(self)
  local good, problem = util.try(cell.build, nil, self)
  if good then return true end
  self.failed, self.failed_code = message_of(problem)
  return false
end

-- Why the cell is not run (it would not fit); nil: it is run, or is predicted to fit. short: from its own prediction;
-- implied: from a smaller cell.
local function reason_to_skip(cells, short, implied)
  if cells.purpose ~= "run" then return short end
  return not cells.try_oom and short or implied
end

-- The status of a failure with this code. In a prediction nothing is run, so nothing can run out of memory.
local function status_of(cells, code)
  if code ~= "oom" then return "error" end
  return cells.purpose == "run" and "oom" or "skipped"
end

-- Runs the cell, by a group of ranks if it has several: what cell.run returns.
local function measure(self, cells, k, tell)
  local world = self.values.world or 1
  local function progress(i, n) tell.note("running step", i, n) end
  if world == 1 then return cell.run(self, progress) end
  if not cells.setup then error(util.failure("world: ranks are started by a worker process", "unsupported"), 0) end
  tell.note("starting ranks")
  return ranks.run(world, {setup = cells.setup, k = k, device = self.values.device, batch = self.values.batch, world = world,
    version = core.version, id = cell.id(self, cells.purpose)}, tell.note)
end

local function compute(self, cells, request, tell)
  local implied = request.implied
  tell.note("predicting")
  max_batch.settle(self)
  cell.compile(self)
  local refused, short = self.prediction.reason, max_batch.shortfall(self)
  local predicted = row.predicted(self)
  if refused then predicted.status, predicted.reason = "oom", refused end
  local skip = reason_to_skip(cells, short or refused, implied)
  if skip then predicted.status, predicted.reason = "skipped", skip end
  local never_run = self.values.framework == "pytorch"
  if cells.purpose ~= "run" or cells.dry_run or skip or never_run then return predicted end
  tell.columns(predicted)
  local found = measure(self, cells, request.k, tell)
  if found.samples then tell.samples(found.samples) end
  return row.measured(self, found), found.code
end

-- Runs the cell request.k on that device (nil: the device of its settings). An error in the cell becomes the status of
-- its row. tell: a teller of protocol.lua, with note(text, i, n) for what is being done now, step i of n.
function worker.run(cells, request, tell, device)
  local self = cells:cell(request.k)
  tell.note("building")
  local good = build(self)
  local id = cell.id(self, cells.purpose)
  if device then self.values.device = device end
  if not tell.built(row.identity(self, id, device), self.failed) then tell.skipped()
  elseif not good then tell.done({status = "error", reason = self.failed}, self.failed_code, true)
  else
    local computed, columns, code = util.try(compute, nil, self, cells, request, tell)
    if not computed then
      local message
      message, code = message_of(columns)
      columns = {status = status_of(cells, code), reason = message}
    end
    tell.done(columns, code)
  end
  cell.release(self)
  if cells.purpose == "run" then collectgarbage() end -- the next cell's step finds the host's memory free of this one's
end

-- ---- as a process

-- The next message; nil: the parent has ended.
local function listener(channel)
  local read = wire.reader()
  return function()
    local message = read()
    while not message do
      local bytes = channel:receive()
      if not bytes then return nil end
      message = read(bytes)
    end
    return message
  end
end

-- The names of all GPUs that can be opened
local function all_gpus()
  local names = {}
  while core.device("cuda:" .. #names) do names[#names + 1] = "cuda:" .. #names end
  return names
end

local function set_up(setup)
  if setup.safe then safe.on() end
  local experiment = script.load_experiment(setup.path, setup.args, setup.text)
  local cells = selection.new(experiment, setup.purpose, setup.options)
  worker.check_devices(setup.device and {setup.device} or cells.devices)
  return cells
end

-- Serves the parent until it hangs up; returns the exit status.
function worker.serve()
  local channel = util.must(core.worker_channel())
  local listen = listener(channel)
  local function say(message) channel:send(wire.frame(message)) end
  channel:note("loading the script")
  local setup = listen()
  if not setup then return 0 end
  if setup.probe then
    say(protocol.message("devices", all_gpus()))
    return 0
  end
  local good, cells = util.try(set_up, nil, setup)
  if not good then
    say(protocol.message("refused", message_of(cells)))
    return 0
  end
  cells.setup = setup
  say(protocol.message("ready"))
  local tell = protocol.teller(function(message, answered)
    say(message)
    return answered and listen()
  end)
  function tell.note(...) channel:note(...) end
  for request in listen do worker.run(cells, request, tell, setup.device) end
  return 0
end

return worker
