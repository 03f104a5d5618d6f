-- mt.joint: several networks that share layers and are trained in turn, as the two of a GAN. Each has a program; all
-- programs run in one runtime, where parameters with the same name are one parameter and are counted once.
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local memory = require "memtide.net.memory"
local settings = require "memtide.net.settings"
local trainings = require "memtide.net.trainings"
local util = require "memtide.base.util"
local weights = require "memtide.net.weights"

-- refused_in: the path of a script that is asked for an experiment, which a joint training is not
local multi_trainer = {refused_in = nil}
local Joint = {__name = "memtide.net.multi_trainer"}
Joint.__index = Joint

-- Options of all, beside settings. Settings may be given for all programs or for one.
local OF_ALL = {"programs", "seed", "memory"}

local function joined(a, b) return table.move(b, 1, #b, #a + 1, table.move(a, 1, #a, 1, {})) end
local OF_PROGRAM = joined(trainings.KEYS, joined({"name"}, settings.names))
multi_trainer.keys = {all = joined(OF_ALL, settings.names), program = OF_PROGRAM}

local function values_of(options)
  local values = {}
  for _, setting in ipairs(settings.list) do
    local name, given = setting.name, options[setting.name]
    if given == nil then values[name] = setting.default else values[name] = settings.check(core.where(), "joint", name, given) end
  end
  return values
end

-- joint{programs = {{name =, model =, input =, loss =, optimizer =, frozen = {layers}, batch = ...}, ...}, batch = ...,
-- seed =, memory =} -> a trainer; nil, message, "oom": it needs more than `memory`. A program without a loss only
-- computes outputs.
function multi_trainer.new(options)
  if multi_trainer.refused_in then
    util.fail("joint: this script trains by itself and is no experiment: memtide %s runs it", multi_trainer.refused_in)
  end
  util.check_keys("joint", options, multi_trainer.keys.all)
  util.check_type("joint: programs", options.programs, "table")
  local self = setmetatable({number = {}, list = {}, trainings = {}}, Joint)
  local allocator, common = options.allocator or "planned", values_of(options)
  for i, program in ipairs(options.programs) do
    local place = ("joint: programs[%d]"):format(i)
    util.check_type(place, program, "table")
    local one = trainings.new(place, program.name, program, common, OF_PROGRAM)
    settings.check_own_loop(place, one.values)
    self.trainings[i], self.number[one.name] = one, i
    self.list[i] = util.must(core.compile(one.network, trainings.settings(one), cell.device(one.values.device)))
  end
  trainings.check_together("joint: programs", self.trainings)
  self.network, self.allocator = trainings.union(self.trainings), allocator
  self.limit = options.memory and util.bytes(options.memory)
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

-- One step of a program -> its loss, 0 if it has none, seconds, skipped; nil, message, code: failed (no memory, for example)
function Joint:step(name, x, y)
  local loss, message, code = self.runtime:step(place(self, name), x, y)
  if loss then memory.after(self) end
  return loss, message, code
end

-- What a program's next step multiplies its loss by, a number; nil: nothing
function Joint:loss_scale(name) return self.runtime:loss_scale(place(self, name)) end

-- Runs a program that evaluates -> its outputs, their shape; nil, message, code: failed
function Joint:outputs(name, x, y)
  local which = place(self, name)
  if self.trainings[which].trains then util.fail("joint: %s is trained: its outputs are not kept", name) end
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
