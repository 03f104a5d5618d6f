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
  local cells, count = {}, 0
  for _, one in ipairs(experiment:cells()) do
    if not case or one.values.case == case then cells[#cells + 1] = one end
  end
  for _, line in ipairs(lines) do
    if not line.idle then
      local one, batch = cells[line.order], line.batch
      local what = ("%s in %s, %s: "):format(name, util.show_bytes(room), name_of(line, names))
      count = count + 1
      if batch > 0 then
        local at = run(one, batch, room)
        tap.is(("%s %s"):format(at.status, at.memory and at.memory.peak.bytes), ("ok %d"):format(line.bytes),
          ("%sbatch %d needs what was said"):format(what, batch))
      end
      tap.is(run(one, batch + 1, room).status, "oom", ("%sbatch %d does not fit"):format(what, batch + 1))
    end
  end
  tap.ok(count >= 8, name .. ": many answers") -- how many are not idle depends on the processor's types
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

local article, room = assert(loadfile "experiments/article.lua")(), os.getenv "FIT"
if room then article:set("accumulate", {1, 2}) end -- four batches would need what two do, in twice the time
check(article, "the article's network", util.bytes(room or "24MiB"))
if not room then
  local vgg = assert(loadfile "experiments/vgg16_memory.lua")()
  vgg.base.model, vgg.base.input, vgg.base.classes = small_vgg(), {3, 32, 32}, 10
  check(vgg, "a small VGG16", 8 << 20)
end
tap.done()
