-- The round of trainings that run together: a function of the script, round(t, draw, s), that draws batches and has the
-- trainings take steps. It runs once without a runtime, which notes its calls: these are predicted. Every round of a run
-- must make the same ones, so that what was predicted is what is measured.
local core = require "memtide.core"
local data = require "memtide.net.data"
local nn = require "memtide.net.nn"
local util = require "memtide.base.util"

local round = {}
local Round = {}
Round.__index = Round
local Handle = {__name = "memtide.training"} -- t.generator: what the function has of a training
Handle.__index = Handle

-- Raises unless the round that is being made calls what the planned one calls.
local function note(self, call)
  local n = #self.calls + 1
  self.calls[n] = call
  if not self.planned or self.planned[n] == call then return end
  util.fail("round: call %d is %s, and was %s when the round was planned: all rounds must make the same calls", n, call,
    self.planned[n] or "not made")
end

-- ---- values: batches, and what a script may say in their place

local function is_batch(value) return type(value) == "userdata" and value.shape ~= nil end

-- A list of batches as one; anything else as it is.
local function one_batch(value)
  if type(value) == "table" and is_batch(value[1]) then return core.joined(value) end
  return value
end

-- How many numbers it has; nil: it is no such value.
local function count_of(value)
  if is_batch(value) then return util.product(value:shape()) end
  if type(value) == "string" then return #value // 4 end
  return type(value) == "table" and #value or nil
end

local function check_count(of, what, value, needs)
  local found = count_of(value)
  if found == needs then return value end
  util.fail("round: %s: %s: expected %d numbers, found %s", of.name, what, needs, found or "a " .. type(value))
end

-- x for the runtime: the values of all micro-batches of a step, of several inputs by name
local function input_of(of, x)
  local values, list, times = {}, of.network:inputs(), of.values.accumulate
  for _, input in ipairs(list) do
    local given = x
    if input.name ~= "" then
      if type(x) ~= "table" or x[input.name] == nil then
        util.fail("round: %s: there is no input %s", of.name, input.name)
      end
      given = x[input.name]
    end
    local what = input.name == "" and "input" or input.name
    values[input.name] = check_count(of, what, one_batch(given), times * util.product(input.shape))
  end
  return values[""] or values
end

-- y for the runtime: a number stands for a batch of it, and a list of one number for each micro-batch for batches of them.
local function target_of(of, y)
  if not of.loss then return nil end
  local labels, times = nn.of_classes(of.loss), of.values.accumulate
  local count = of.values.batch * of.network:targets()
  local function batch(value) return math.type(value) and core.batch({count}, labels, value) or value end
  if type(y) == "table" and times > 1 and #y == times then
    local list = {}
    for i, value in ipairs(y) do list[i] = batch(value) end
    y = list
  end
  return check_count(of, "target", one_batch(batch(y)), times * count)
end

-- ---- what a training can do in a round

-- Notes the call and makes it -> its loss. part: of the step that it is, as program:predict names it
local function act(handle, call, part, ...)
  local self, of = handle.round, handle.of
  note(self, of.name .. ":" .. call)
  handle.called, self.forward = true, nil
  if not self.runtime then
    self.plan[#self.plan + 1] = {handle.number, part}
    return 0
  end
  local loss, _, _, ops, replayed = util.must(self.runtime[part](self.runtime, handle.number, ...))
  self.ops, self.replayed = self.ops + ops, self.replayed and replayed
  return loss
end

-- A loss counts in the round's once, and one that is no number is the round's.
local function count_loss(self, loss)
  self.loss = self.loss + loss
  return loss
end

-- Before an update: the learning rate that the schedule sets for it
local function follow_schedule(handle)
  local self, of = handle.round, handle.of
  self.updates = self.updates + 1
  if not self.runtime then return end
  if of.schedule then
    util.must(self.runtime:write(of.name .. ".lr", {of.schedule:rate(of.values.optimizer:rate(), handle.updates)}))
  end
  handle.updates = handle.updates + 1
end

-- One update, or an evaluation -> its loss
function Handle:step(x, y)
  if self.of.trains then follow_schedule(self) end
  return count_loss(self.round, act(self, "step", "step", input_of(self.of, x), target_of(self.of, y)))
end

local function output(handle)
  local self, of = handle.round, handle.of
  if self.runtime then return (util.must(self.runtime:read(of.program:names().output, handle.number, true))) end
  local _, shape = of.network:shapes()
  handle.zeros = handle.zeros or core.batch(shape, false, 0)
  return handle.zeros
end

-- Evaluates without a loss -> a batch of outputs
function Handle:outputs(x)
  if self.of.loss then
    util.fail("round: %s: outputs are kept of a training without a loss, and of the last forward pass by output()",
      self.of.name)
  end
  act(self, "outputs", "step", input_of(self.of, x))
  return output(self)
end

local function need_parts(handle, name)
  local of = handle.of
  if not of.trains then util.fail("round: %s:%s: it evaluates and is not trained", of.name, name) end
  if of.values.accumulate > 1 then
    util.fail("round: %s:%s: expected accumulate = 1: gradients sum up until zero_grad", of.name, name)
  end
  handle.of.parts = true
end

-- The parts of a step, as a trainer with parts = true has them: the forward pass -> its loss
function Handle:forward(x, y)
  need_parts(self, "forward")
  local loss = act(self, "forward", "forward", input_of(self.of, x), target_of(self.of, y))
  self.round.forward = {of = self, loss = loss}
  return count_loss(self.round, loss)
end

-- The gradients of the last forward pass's loss, added to those that are there -> the loss
function Handle:backward()
  local forward = self.round.forward
  need_parts(self, "backward")
  if not forward or forward.of ~= self then
    util.fail("round: %s:backward: expected a forward pass of %s right before it", self.of.name, self.of.name)
  end
  act(self, "backward", "backward", self.cleared)
  self.cleared = false
  return forward.loss
end

-- The optimizer's update from the gradients
function Handle:update()
  need_parts(self, "update")
  if self.cleared then
    util.fail("round: %s:update: there are no gradients: backward has not run since zero_grad", self.of.name)
  end
  follow_schedule(self)
  act(self, "update", "update")
end

-- The next backward pass makes new gradients.
function Handle:zero_grad()
  need_parts(self, "zero_grad")
  note(self.round, self.of.name .. ":zero_grad")
  self.cleared = true
end

-- What the network gave in the last forward pass -> a batch
function Handle:output()
  need_parts(self, "output")
  note(self.round, self.of.name .. ":output")
  return output(self)
end

-- Sets the learning rate of the next updates. With a schedule that is an error.
function Handle:set_lr(lr)
  local of = self.of
  if type(lr) ~= "number" or lr ~= lr or lr < 0 then
    util.fail("round: %s:set_lr: expected a number that is not negative, found %s", of.name, tostring(lr))
  end
  if of.schedule then util.fail("round: %s:set_lr: a schedule sets the learning rate", of.name) end
  if self.round.runtime then util.must(self.round.runtime:write(of.name .. ".lr", {lr})) end
end
util.guard_methods("training", Handle)

-- ---- drawing

-- Zeros in the place of a batch of samples, by name where they have several inputs; and of their targets
local function nothing_of(info, batch)
  local function zeros(shape, labels)
    return core.batch({batch, table.unpack(shape)}, labels, 0)
  end
  local target = zeros(info.target or {}, info.classes ~= nil)
  if info.shape[1] then return {zeros(info.shape, false), target} end
  local all = {}
  for name, shape in pairs(info.shape) do all[name] = zeros(shape, false) end
  return {all, target}
end

-- The next batch of the dataset of that name -> x, y
local function draw(self, name)
  local dataset = self.datasets[name]
  if not dataset then
    util.fail("round: draw: there is no %s in data%s", tostring(name), util.meant(name, util.sorted_keys(self.datasets)))
  end
  note(self, "draw " .. name)
  if self.runtime then
    local x, y = util.must(self.loaders[name]:next())
    if not x then x, y = util.must(self.loaders[name]:next()) end -- an epoch has ended
    if not x then util.fail("round: draw: %s has no batch of %d samples", name, self.batch) end
    return x, y
  end
  self.nothing[name] = self.nothing[name] or nothing_of(dataset:info(), self.batch)
  return table.unpack(self.nothing[name])
end

-- ---- rounds

local function strict(what, t)
  return setmetatable(t, {__index = function(_, name)
    util.fail("round: there is no %s %s%s", what, tostring(name), util.meant(name, util.sorted_keys(t)))
  end})
end

-- One round -> what its function returns
local function make(self)
  self.calls, self.plan, self.updates, self.loss, self.ops, self.replayed, self.forward = {}, {}, 0, 0, 0, true, nil
  return self.f(self.handles, function(name) return draw(self, name) end, self.settings)
end

-- f: the script's function; list: of trainings.new; datasets: by name, of which batches of that many samples are drawn;
-- settings: the function's last argument. Plans the round: sets self.calls, all calls as text, and self.plan, those
-- that program:predict takes; and `parts` of each training.
function round.new(f, list, datasets, batch, settings)
  local self = setmetatable({f = f, list = list, datasets = datasets, batch = batch, settings = settings, nothing = {},
    handles = {}}, Round)
  for i, one in ipairs(list) do
    self.handles[one.name] = setmetatable({round = self, of = one, number = i, updates = 0, cleared = true}, Handle)
  end
  strict("training", self.handles)
  make(self)
  for _, one in ipairs(list) do
    local all, frozen = one.network:parameters()
    if one.trains and frozen == all then
      util.fail("round: %s: all its layers are frozen: it has nothing to train", one.name)
    end
    if not self.handles[one.name].called then util.fail("round: it never calls the training %s", one.name) end
  end
  if self.updates == 0 then util.fail "round: it updates nothing: expected a step or an update of a training with a loss" end
  self.text = table.concat(self.calls, "\n")
  return self
end

-- Makes ready for a run. options: of the loaders, of which the k-th has the seed `seed` + k - 1; nil, message, code: one
-- cannot be made
function Round:open(runtime, options, seed)
  self.planned, self.runtime, self.loaders = self.calls, runtime, {}
  for k, name in ipairs(util.sorted_keys(self.datasets)) do
    local of = {}
    for key, value in pairs(options) do of[key] = value end
    of.seed = seed + k - 1
    local loader, message, code = data.open(self.datasets[name], of)
    if not loader then return nil, message, code end
    self.loaders[name] = loader
  end
  for _, handle in pairs(self.handles) do handle.cleared = true end
  return true
end

-- One round of a run -> its loss, the sum of those of its calls or the number that the function returns; the seconds of their ops,
-- and whether all of these were replayed as graphs.
function Round:step()
  local found = make(self)
  if #self.calls < #self.planned then
    util.fail("round: it ends before %s, which it called when it was planned: all rounds must make the same calls",
      self.planned[#self.calls + 1])
  end
  if found ~= nil and not math.type(found) then
    util.fail("round: expected that it returns a loss, a number, or nothing, found a %s", type(found))
  end
  local finite = self.loss == self.loss and math.abs(self.loss) < math.huge
  return finite and found or self.loss, self.ops, self.replayed
end

function Round:close()
  for _, loader in pairs(self.loaders or {}) do loader:close() end
  self.runtime, self.loaders = nil, nil
end
Round.__close = Round.close

return round
