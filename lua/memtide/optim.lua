-- Optimizers under PyTorch's names: tables {kind, options, where}.
local core = require "memtide.core"
local specs = require "memtide.specs"
local util = require "memtide.util"

local optim = {}
local Optimizer = {__name = "memtide.optimizer", __tostring = specs.show}

for _, kind in ipairs(core.optimizer_kinds()) do
  optim[kind.name] = specs.constructor(kind.name, kind.spec, Optimizer, core.check_optimizer)
end

setmetatable(optim, {
  __index = function(_, name)
    util.fail("optim.%s does not exist%s", tostring(name), util.meant(name, util.sorted_keys(optim)))
  end,
})

return {optim = optim, is_optimizer = function(value) return getmetatable(value) == Optimizer end}
