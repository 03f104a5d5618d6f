-- mt.joint: several networks that share layers and are trained in turn, as the two of a GAN. Each has a program; all
-- programs run in one runtime, where parameters with the same name are one parameter and are counted once.
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local memory = require "memtide.net.memory"
local nn = require "memtide.net.nn"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"
local weights = require "memtide.net.weights"

-- refused_in: the path of a script that is asked for an experiment, which a joint training is not
local multi_trainer = {refused_in = nil}
local Joint = {__name = "memtide.net.multi_trainer"}
Joint.__index = Joint

-- Options of one program; and of all. Settings may be given for all programs or for one.
local OF_PROGRAM = {"name", "model", "input", "loss", "frozen"}
local OF_ALL = {"programs", "seed", "memory"}
local MOST_SCOPE = 24 -- characters of a program's name

local function joined(a, b) return table.move(b, 1, #b, #a + 1, table.move(a, 1, #a, 1, {})) end

-- {[layer] = is it frozen?} for every layer of the tree
local function frozen_in(layer, found)
  found[layer] = layer.frozen or false
  for _, child in ipairs(layer) do frozen_in(child, found) end
  return found
end

-- The network of a program, in which the layers of its list `frozen` are not trained. The layers themselves do not
-- change.
local function network_of(program, batch)
  local before = frozen_in(program.model, {})
  for _, layer in ipairs(program.frozen or {}) do layer:freeze() end
  local good, network = pcall(nn.network, program.model, program.loss, batch, program.input)
  for layer, frozen in pairs(before) do layer.frozen = frozen or nil end
  return good and network or error(network, 0)
end

local function check_program(program, i)
  local where = ("joint: programs[%d]"):format(i)
  util.check_type(where, program, "table")
  util.check_keys(where, program, joined(OF_PROGRAM, settings.names))
  if type(program.name) ~= "string" or #program.name > MOST_SCOPE or not program.name:match "^[%a_][%w_]*$" then
    util.fail("%s: name: expected a name of at most %d letters, found %s", where, MOST_SCOPE, tostring(program.name))
  end
  if not nn.is_layer(program.model) then util.fail("%s: model: expected a layer", where) end
  if program.loss ~= nil and not nn.is_loss(program.loss) then util.fail("%s: loss: expected a loss", where) end
  util.check_type(where .. ": input", program.input, "table")
end

-- The settings of one program: its own, else the common one, else the default.
local function values_of(options, program)
  local values = {}
  for _, setting in ipairs(settings.list) do
    local given = program[setting.name]
    if given == nil then given = options[setting.name] end
    values[setting.name] = given == nil and setting.default
      or settings.check(core.where(), "joint", setting.name, given)
  end
  if not program.loss then values.mode = "eval" end
  return values
end

local function compiled(network, program, values, device)
  local all = values.mode == "eval" and settings.for_evaluation(values) or settings.for_core(values)
  all.scope, all.scheduled, all.no_loss = program.name, true, program.loss == nil
  return util.must(core.compile(network, all, device))
end

-- Raises unless the first program's network has all parameters of the other one, in the same shapes.
local function check_shared(first, other, name)
  local known = {}
  for _, param in ipairs(first:params()) do known[param.name] = table.concat(param.shape, "x") end
  for _, param in ipairs(other:params()) do
    if known[param.name] ~= table.concat(param.shape, "x") then
      util.fail("joint: the first program must have all parameters; %s of %s is not there in that shape", param.name,
        name)
    end
  end
end

-- joint{programs = {{name =, model =, input =, loss =, optimizer =, frozen = {layers}, batch = ...}, ...}, batch = ...,
-- seed =, memory =} -> a trainer; nil, message, "oom": it needs more than `memory`. A program without a loss only
-- computes outputs.
function multi_trainer.new(options)
  if multi_trainer.refused_in then
    util.fail("joint: this script trains by itself and is no experiment: memtide %s runs it", multi_trainer.refused_in)
  end
  util.check_keys("joint", options, joined(OF_ALL, settings.names))
  util.check_type("joint: programs", options.programs, "table")
  local self = setmetatable({number = {}, list = {}, networks = {}, evaluates = {}}, Joint)
  local allocator = options.allocator or "planned"
  for i, program in ipairs(options.programs) do
    check_program(program, i)
    local values = values_of(options, program)
    local network = network_of(program, values.batch)
    self.networks[i], self.number[program.name] = network, i
    self.list[i] = compiled(network, program, values, cell.device(values.device))
    self.evaluates[i] = values.mode == "eval"
    if i > 1 then check_shared(self.networks[1], network, program.name) end
  end
  self.network, self.allocator, self.limit = self.networks[1], allocator, options.memory and util.bytes(options.memory)
  local runtime, message, code = core.runtime{programs = self.list, allocator = allocator, memory = self.limit,
    seed = options.seed or 1}
  if not runtime then return nil, message, code end
  self.runtime = runtime
  memory.watch(self)
  return self
end

local function place(self, name)
  return self.number[name] or util.fail("joint: there is no program %s%s", tostring(name),
    util.meant(tostring(name), util.sorted_keys(self.number)))
end

-- The prediction for `steps` rounds; in a round every program runs once, in their order.
function Joint:predicted(steps)
  local calls = {}
  for i in ipairs(self.list) do calls[i] = {i, "step"} end
  return util.must(self.list[1]:predict{allocator = self.allocator, memory = self.limit, steps = steps or 2,
    calls = calls, with = table.move(self.list, 2, #self.list, 1, {})})
end

-- One step of a program -> its loss, 0 if it has none; nil, message, code: failed (no memory, for example)
function Joint:step(name, x, y)
  local loss, message, code = self.runtime:step(place(self, name), x, y)
  if loss then memory.after(self) end
  return loss, message, code
end

-- Runs a program that evaluates -> its outputs, their shape; nil, message, code: failed
function Joint:outputs(name, x, y)
  local which = place(self, name)
  if not self.evaluates[which] then util.fail("joint: %s is trained: its outputs are not kept", name) end
  local done, message, code = self:step(name, x, y)
  if not done then return nil, message, code end
  return self.runtime:read(self.list[which]:names().output, which)
end

-- Sets the learning rate of a program's next updates.
function Joint:set_lr(name, lr)
  place(self, name)
  return self.runtime:write(name .. ".lr", {lr})
end

function Joint:memory() return self.runtime:memory() end
function Joint:parameters() return self.network:params(), self.network:parameters() end
function Joint:read(name) return self.runtime:read(name) end
function Joint:write(name, values) return self.runtime:write(name, values) end
function Joint:save(path, options) return weights.save(self, path, options) end
function Joint:load(path, options) return weights.load(self, path, options) end

-- Frees the memory; a second call does nothing.
function Joint:close()
  memory.forget(self)
  return self.runtime:close()
end
util.guard_methods("joint", Joint)
Joint.__close = Joint.close

return multi_trainer
