-- The public module.
local core = require "memtide.core"

return {
  version = core.version,
  nn = require "memtide.nn".nn,
  optim = require "memtide.optim".optim,
  models = require "memtide.models",
  data = require "memtide.data",
  memory = require "memtide.memory",
  experiment = require "memtide.experiment".new,
  trainer = require "memtide.trainer".new,
  joint = require "memtide.joint".new,
}
