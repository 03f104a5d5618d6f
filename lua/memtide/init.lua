-- The public module.
local axes = require "memtide.axes"
local core = require "memtide.core"

return {
  version = core.version,
  nn = require "memtide.nn".nn,
  optim = require "memtide.optim".optim,
  models = require "memtide.models",
  data = require "memtide.data",
  memory = require "memtide.memory",
  experiment = require "memtide.experiment".new,
  range = axes.range,
  geometric = axes.geometric,
  zip = axes.zip,
  trainer = require "memtide.trainer".new,
  joint = require "memtide.joint".new,
}
