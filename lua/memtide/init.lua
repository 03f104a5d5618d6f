-- The public module.
local axes = require "memtide.sweep.axes"
local core = require "memtide.core"

return {
  version = core.version,
  nn = require "memtide.net.nn".nn,
  optim = require "memtide.net.optim".optim,
  models = require "memtide.net.models",
  peft = require "memtide.net.peft",
  data = require "memtide.net.data",
  memory = require "memtide.net.memory",
  experiment = require "memtide.sweep.experiment".new,
  snapshot = require "memtide.results.snapshot".read,
  range = axes.range,
  geometric = axes.geometric,
  zip = axes.zip,
  trainer = require "memtide.net.trainer".new,
  joint = require "memtide.net.multi_trainer".new,
}
