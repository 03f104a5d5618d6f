-- What memtide fit answers, run: with the largest batch a step ends and needs what was said, with one sample more it
-- runs out of memory. FIT (make fit-check): the bytes for the article's network, 24 MiB here.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local mt = require "memtide"
local fit = require "memtide.cli.fit"
local util = require "memtide.base.util"
local nn = mt.nn

local function nothing() end

-- One step of a cell with that batch in `room` bytes, whatever was predicted
local function run(one, batch, room)
  local values = {}
  for key, value in pairs(one.values) do values[key] = value end
  values.batch, values.steps, values.warmup = batch, 1, 0
  local probe = {experiment = one.experiment, values = values, name = one.name, places = {}, memory = room}
  cell.compile(cell.build(probe))
  local found = cell.run(probe, nothing)
  cell.release(probe)
  return found
end

local function name_of(line, names)
  local words = {}
  for i, name in ipairs(names) do words[i] = ("%s=%s"):format(name, line[name]) end
  return table.concat(words, " ")
end

-- Every answer for the first case of the experiment; techniques that find nothing to do are the same step again.
local function check(experiment, name, room)
  experiment.base.rounds, experiment.base.confidence = nil, nil -- one step is enough
  local names = fit.spread(experiment)
  local case = experiment.cases[1] and experiment.cases[1].case
  local lines = fit.solve(experiment, {memory = room, case = case}, names)
  local cells, bad, count = {}, 0, 0
  for _, one in ipairs(experiment:cells()) do
    if not case or one.values.case == case then cells[#cells + 1] = one end
  end
  for _, line in ipairs(lines) do
    if not line.idle then
      local one = cells[line.order]
      local at, above = line.batch > 0 and run(one, line.batch, room), run(one, line.batch + 1, room)
      count = count + 1
      if at and (at.status ~= "ok" or at.memory.peak.bytes ~= line.bytes) or above.status ~= "oom" then
        bad = bad + 1
        print(("# %s: batch %d: %s; %d: %s"):format(name_of(line, names), line.batch, at and at.status, line.batch + 1,
          above.status))
      end
    end
  end
  tap.is(bad, 0, ("%s in %s: %d answers run, and none with one sample more"):format(name, util.show_bytes(room), count))
  tap.ok(count >= 8, "which are many") -- how many are not idle depends on the processor's types
end

-- VGG16's layers with an eighth of its channels, on images of a seventh of the size
local function small_vgg()
  local layers, channels = {}, 3
  for _, width in ipairs{8, 8, "pool", 16, 16, "pool", 32, 32, 32, "pool", 64, 64, 64, "pool", 64, 64, 64, "pool"} do
    if width == "pool" then layers[#layers + 1] = nn.MaxPool2d(2, 2)
    else
      layers[#layers + 1] = nn.Conv2d(channels, width, 3, {padding = 1})
      layers[#layers + 1], channels = nn.ReLU{inplace = true}, width
    end
  end
  for _, layer in ipairs{nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 128), nn.ReLU{inplace = true},
    nn.Dropout(), nn.Linear(128, 128), nn.ReLU{inplace = true}, nn.Dropout(), nn.Linear(128, 10)} do
    layers[#layers + 1] = layer
  end
  return nn.Sequential(layers)
end

local article = assert(loadfile "experiments/article.lua")()
check(article, "the article's network", util.bytes(os.getenv "FIT" or "24MiB"))
if not os.getenv "FIT" then
  local vgg = assert(loadfile "experiments/vgg16_memory.lua")()
  vgg.base.model, vgg.base.input, vgg.base.classes = small_vgg(), {3, 32, 32}, 10
  check(vgg, "a small VGG16", 8 << 20)
end
tap.done()
