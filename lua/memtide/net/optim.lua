-- mt.optim: optimizers with PyTorch's names, tables {kind, options, where}; rules that a script writes; and learning-rate schedules.
local core = require "memtide.core"
local lr_schedule = require "memtide.net.lr_schedule"
local specs = require "memtide.net.specs"
local rule = require "memtide.net.rule"
local util = require "memtide.base.util"

local optim = {}
local Optimizer = {__name = "memtide.optimizer", __tostring = specs.show}
Optimizer.__index = Optimizer

-- model:parameters(), PyTorch's first argument of an optimizer
local Parameters = {__name = "memtide.parameters"}
local function parameters(layer) return setmetatable({of = layer}, Parameters) end

-- make(options ...), or make(parameters, options ...): the optimizer then notes whose they are.
local function after_parameters(make)
  return function(first, ...)
    if getmetatable(first) ~= Parameters then return make(first, ...) end
    local optimizer = make(...)
    optimizer.of = first.of
    return optimizer
  end
end

-- Raises if the optimizer was made of the parameters of another layer than the model.
local function check_model(optimizer, model)
  if optimizer.of == nil or optimizer.of == model then return end
  util.fail("%s has the parameters of another layer than the model: all that is not frozen is trained, " ..
    "and layer:freeze() leaves a layer out", optimizer.kind)
end

local rates, paged = {}, {} -- PyTorch's default learning rates; whose states wait in the host's memory

-- The optimizer's learning rate
function Optimizer:rate() return self.options.lr or rates[self.kind] end

for _, kind in ipairs(core.optimizer_kinds()) do
  rates[kind.name], paged[kind.name] = tonumber(kind.spec:match "lr:float=(%S+)"), kind.paged
  optim[kind.name] = after_parameters(specs.constructor(kind.name, kind.spec, Optimizer, core.optimizer_bytes))
end

local rule_spec
for _, kind in ipairs(core.optimizer_kinds()) do rule_spec = kind.name == "Rule" and kind.spec or rule_spec end

optim.Rule = after_parameters(function(options)
  local made = rule.build(options, function(own) return specs.check("Rule", rule_spec, own) end)
  core.optimizer_bytes(made)
  return setmetatable(made, Optimizer)
end)
for name, call in pairs(rule.functions) do optim[name] = call end

for kind, make in pairs(lr_schedule.schedules) do optim[kind] = make end

optim.lr_scheduler = optim -- PyTorch's module of schedules

setmetatable(optim, {
  __index = function(_, name)
    local known, classes = util.sorted_keys(optim), {}
    for _, one in ipairs(known) do if one:find "^%u" then classes[#classes + 1] = one end end -- others are for optim.Rule
    util.fail("optim.%s does not exist%s; there are %s", tostring(name), util.meant(name, known), table.concat(classes, ", "))
  end,
})

local function is_optimizer(value) return getmetatable(value) == Optimizer end

return {optim = optim, parameters = parameters, check_model = check_model, is_optimizer = is_optimizer,
  is_paged = function(value) return is_optimizer(value) and paged[value.kind] end}
