-- mt.trainer: a model with its parameters and its memory, for a training loop with one call per step.
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local data = require "memtide.net.data"
local exponents = require "memtide.net.exponents"
local memory = require "memtide.net.memory"
local inputs = require "memtide.net.inputs"
local literal = require "memtide.base.literal"
local nn = require "memtide.net.nn"
local optim = require "memtide.net.optim"
local lr_schedule = require "memtide.net.lr_schedule"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"
local weights = require "memtide.net.weights"

local trainer = {}
local Trainer = {__name = "memtide.net.trainer"}
Trainer.__index = Trainer

local KEYS = {"model", "input", "loss", "classes", "seed", "memory", "schedule", "parts"}
for _, name in ipairs(settings.names) do KEYS[#KEYS + 1] = name end
trainer.keys, trainer.methods = KEYS, Trainer
local TRAIN, EVALUATE, PREDICT = 1, 2, 3

local function values_of(options)
  local where, values = core.where(), {}
  for _, setting in ipairs(settings.list) do
    local given, name = options[setting.name], setting.name
    if given == nil then values[name] = setting.default else values[name] = settings.check(where, "trainer", name, given) end
  end
  settings.check_own_loop("trainer", values)
  return values
end

-- Three programs with the same parameters: training, evaluation with targets, outputs only.
local function compile_all(network, values, parts)
  local device, train = cell.device(values.device), settings.for_core(values)
  local evaluate, predict = settings.for_evaluation(values), settings.for_evaluation(values)
  train.scheduled, evaluate.scheduled, predict.scheduled, predict.no_loss = true, true, true, true
  train.parts, train.keep_output = parts, parts
  return {util.must(core.compile(network, train, device)), util.must(core.compile(network, evaluate, device)),
    util.must(core.compile(network, predict, device))}
end

local function whole(name, value, least)
  if value ~= nil and (math.type(value) ~= "integer" or value < least) then
    util.fail('trainer: "%s": expected a whole number of at least %d, found %s', name, least, tostring(value))
  end
  return value
end

local function limit_of(given)
  local limit = given and util.bytes(given)
  if given ~= nil and (not limit or limit == 0) then
    util.fail('trainer: "memory": expected bytes, at least 1, or a size such as "512MiB", found %s', tostring(given))
  end
  return limit
end

local function check_classes(network, options)
  local classes, _, output = whole("classes", options.classes, 1), network:shapes()
  if classes and nn.of_classes(options.loss) and output[2] and output[2] < classes then
    util.fail("trainer: there are %d classes, but the network has %d outputs", classes, output[2])
  end
end

-- Do the parts of a step run one by one?
local function parts_of(options, values)
  local parts = options.parts
  if parts == nil then return false end
  util.check_type('trainer: "parts"', parts, "boolean")
  if parts and values.mode ~= "train" then util.fail 'trainer: "parts": expected mode = "train"' end
  if parts and values.accumulate > 1 then
    util.fail 'trainer: "parts": expected accumulate = 1: gradients sum up until zero_grad'
  end
  return parts
end

-- What a saved run and the trainer that continues it must have in common, as text
local function identity(options, values, seed)
  return {network = tostring(options.model), loss = tostring(options.loss), seed = tostring(seed),
    input = inputs.text(options.input), batch = tostring(values.batch), accumulate = tostring(values.accumulate),
    schedule = options.schedule and options.schedule.text or "none",
    precision = values.precision, optimizer = tostring(values.optimizer), mode = values.mode,
    grad_scaler = options.grad_scaler ~= nil and settings.text(values.grad_scaler) or nil,
    parts = options.parts and "true" or nil}
end

-- trainer{model =, input = {3, 32, 32}, loss =, optimizer =, batch =, precision = ...} -> a trainer; nil, message,
-- "oom": it needs more than `memory`. Raises if an option is wrong.
function trainer.new(options)
  util.check_keys("trainer", options, KEYS)
  if not nn.is_layer(options.model) then
    util.fail('trainer: "model": expected a layer, found a %s', type(options.model))
  end
  if not nn.is_loss(options.loss) then util.fail('trainer: "loss": expected a loss, found a %s', type(options.loss)) end
  if not inputs.is(options.input) then
    util.fail('trainer: "input": expected %s, found %s', inputs.EXPECTED, literal.of(options.input))
  end
  if options.schedule and not lr_schedule.is(options.schedule) then
    util.fail('trainer: "schedule": expected a schedule such as optim.StepLR(30), found a %s', type(options.schedule))
  end
  local limit, seed = limit_of(options.memory), whole("seed", options.seed, 0)
  local values = values_of(options)
  optim.check_model(values.optimizer, options.model)
  local network = nn.network(options.model, options.loss, values.batch, options.input)
  check_classes(network, options)
  local parts = parts_of(options, values)
  local programs = compile_all(network, values, parts)
  local runtime, message, code = core.runtime{programs = programs, allocator = values.allocator, memory = limit,
    seed = seed or 1}
  if not runtime then return nil, message, code end
  local self = setmetatable({network = network, programs = programs, runtime = runtime,
    model = options.model, files = rawget(options.model, "files"),
    adapters = rawget(options.model, "adapters"), schedule = options.schedule,
    loss = options.loss, labels = nn.of_classes(options.loss), ignored = nn.ignored(options.loss), base_rate = values.optimizer:rate(), mode = values.mode,
    values = values, device = cell.device(values.device), seed = seed or 1,
    allocator = values.allocator, limit = limit, parts = parts, cleared = true, identity = identity(options, values, seed or 1)}, Trainer)
  memory.watch(self)
  return self
end

-- One run of a program: loss, seconds, skipped; or nil, message, code
local function run(self, which, x, y)
  memory.before(self)
  local loss, message, code = self.runtime:step(which, x, y)
  memory.after(self)
  return loss, message, code
end

-- The learning rate of the next update, where a schedule sets it
local function follow_schedule(self)
  if not self.schedule or self.mode ~= "train" then return end
  util.must(self.runtime:write("lr", {self.schedule:rate(self.base_rate, core.updates(self.runtime))}))
end

-- One update from x and its targets -> loss, seconds, skipped (the loss scale was too large: no update was made); nil, message,
-- code: failed (no memory, for example)
function Trainer:step(x, y)
  follow_schedule(self)
  self.cleared = false
  return run(self, TRAIN, x, y)
end

-- ---- the parts of a step, of a trainer with parts = true: gradients stay, as PyTorch's do, until zero_grad

local function need_parts(self, name)
  if self.parts then return end
  util.fail("trainer:%s: the trainer runs whole steps, trainer:step(x, y): with parts = true it has forward, backward, " ..
    "update, zero_grad, gradient and output", name)
end

-- Calls the runtime's method of that name -> the loss of the last forward pass, seconds, skipped; nil, message, code
local function part(self, name, ...)
  need_parts(self, name)
  memory.before(self)
  local loss, more, last = self.runtime[name](self.runtime, TRAIN, ...)
  memory.after(self)
  return loss, more, last
end

-- The forward pass of a batch -> loss, seconds; nil, message, code
function Trainer:forward(x, y) return part(self, "forward", x, y) end

-- The gradients of the last forward pass's loss, added to those that are there -> the loss, seconds; nil, message, code
function Trainer:backward()
  local loss, more, last = part(self, "backward", self.cleared)
  self.cleared = self.cleared and not loss
  return loss, more, last
end

-- The optimizer's update from the gradients -> the loss, seconds, skipped; nil, message, code
function Trainer:update()
  need_parts(self, "update")
  if self.cleared then util.fail "trainer:update: there are no gradients: backward has not run since zero_grad" end
  follow_schedule(self)
  return part(self, "update")
end

-- The next backward pass makes new gradients.
function Trainer:zero_grad()
  need_parts(self, "zero_grad")
  self.cleared = true
end

-- The gradient of the parameter of that name -> numbers, shape; nil: there is none, as after zero_grad
function Trainer:gradient(name)
  need_parts(self, "gradient")
  if self.cleared then return nil end
  return self.runtime:read(name .. ".grad")
end

-- What the network gave in the last forward pass -> numbers, shape
function Trainer:output()
  need_parts(self, "output")
  return self.runtime:read(self.programs[TRAIN]:names().output, TRAIN)
end

-- Sets the learning rate of the next updates. With a schedule that is an error.
function Trainer:set_lr(lr)
  if type(lr) ~= "number" or lr ~= lr or lr < 0 then
    util.fail("trainer:set_lr: expected a number that is not negative, found %s", tostring(lr))
  end
  if self.schedule then util.fail "trainer:set_lr: the trainer has a schedule, which sets the learning rate" end
  return self.runtime:write("lr", {lr})
end

-- The learning rate of the last update, or the one that was set since.
function Trainer:lr()
  local values, message, code = self.runtime:read "lr"
  if not values then return nil, message, code end
  return values[1]
end

-- What the next step multiplies its loss by, a number; nil: nothing, because neither the precision nor grad_scaler asks for it
function Trainer:loss_scale() return self.runtime:loss_scale(TRAIN) end

-- How many elements of the gradients have which exponent, in fp32 and as this trainer's step makes them of a batch, and the share
-- of those that underflow: the list of exponents.of. A copy of the parameters makes two steps in a runtime of its own: the
-- trainer's parameters, memory and counts stay as they are.
function Trainer:gradient_exponents(x, y)
  if self.mode ~= "train" then util.fail 'trainer:gradient_exponents: expected mode = "train"' end
  return exponents.of(self, exponents.copy(self.runtime, self.network), function(runtime) return runtime:step(1, x, y) end)
end

-- All batches of a loader -> their loss as if they were one batch, share of labels that are right (nil: targets are not
-- labels), samples. A loss that counts no label of any batch, and the share of none, are no numbers, as in PyTorch.
local function evaluate_all(self, loader)
  local sum, shares, right, labels, samples, is_sum = 0, 0, 0, 0, 0, false
  for x, y, n in loader:epoch() do
    local loss, outputs, shape = self:evaluate(x, y)
    if not loss then return nil, outputs, shape end
    local values = self.labels and y:values()
    local share, summed = nn.share_of(self.loss, values, n)
    if share ~= 0 then sum, shares = sum + loss * share, shares + share end -- without any the mean of the batch is 0 / 0
    samples, is_sum = samples + n, summed
    if values then
      local found, counted = cell.correct(outputs, shape, values, self.ignored)
      right, labels = right + found, labels + counted
    end
  end
  return is_sum and sum or sum / shares, self.labels and right / labels or nil, samples
end

-- Loss without gradients: of a batch -> loss, outputs, shape; of all batches of a loader -> loss, accuracy, samples. nil, message, code: failed
function Trainer:evaluate(x, y)
  if data.is_loader(x) then return evaluate_all(self, x) end
  local loss, message, code = run(self, EVALUATE, x, y)
  if not loss then return nil, message, code end
  return loss, self.runtime:read(self.programs[EVALUATE]:names().output, EVALUATE)
end

-- Outputs of the network -> numbers, shape; nil, message, code: failed
function Trainer:predict(x)
  local done, message, code = run(self, PREDICT, x)
  if not done then return nil, message, code end
  return self.runtime:read(self.programs[PREDICT]:names().output, PREDICT)
end

-- The network as PyTorch prints it, and how many parameters it has.
function Trainer:__tostring()
  local all, frozen = self.network:parameters()
  return ("%s\nparameters: %d, trained: %d"):format(self.model, all, all - frozen)
end

-- Evaluates a batch -> number of right labels, loss.
function Trainer:correct(x, y)
  if type(y) == "string" then util.fail("trainer:correct: expected labels as a batch or a table, found a string") end
  local loss, outputs, shape = self:evaluate(x, y)
  if not loss then return nil, outputs, shape end
  local labels = type(y) == "userdata" and y:values() or y
  local right = cell.correct(outputs, shape, labels, self.ignored)
  return right, loss
end

-- {used, held, limit, categories, peak = {bytes, used, op, categories}}, in bytes
function Trainer:memory() return memory.of(self) end

-- What `steps` steps need, before they run: {peak = {bytes, used, op, categories}, allocated, reserved, ...}, in bytes
function Trainer:predicted(steps)
  local others = table.move(self.programs, 2, #self.programs, 1, {})
  return util.must(self.programs[TRAIN]:predict{allocator = self.allocator, memory = self.limit, steps = steps or 2, with = others})
end

-- {{name, shape, elements}, ...}, and the sum of the elements
function Trainer:parameters() return self.network:params(), self.network:parameters() end

function Trainer:read(name) return self.runtime:read(name) end
function Trainer:write(name, values) return self.runtime:write(name, values) end

-- Parameters with PyTorch's names, to and from a safetensors file: see weights.lua.
function Trainer:save(path, options) return weights.save(self, path, options) end
function Trainer:load(path, options) return weights.load(self, path, options) end

-- Those of adapters (mt.peft.lora), to and from a folder as PEFT's.
function Trainer:save_adapter(folder) return weights.save_adapter(self, folder) end
function Trainer:load_adapter(folder) return weights.load_adapter(self, folder) end

-- The whole state of a run, so that it continues as if it had never been interrupted.
function Trainer:save_state(path, options) return weights.save_state(self, path, options) end
function Trainer:load_state(path, options) return weights.load_state(self, path, options) end

-- Frees the memory; a second call does nothing.
function Trainer:close()
  memory.forget(self)
  return self.runtime:close()
end
util.guard_methods("trainer", Trainer)
Trainer.__close = Trainer.close

return trainer
