-- Experiments of several trainings and their round: what is predicted of a round is measured, one training in a round is
-- the training of one network, parts and whole steps learn the same, and mistakes are told.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local max_batch = require "memtide.sweep.max_batch"
local mt = require "memtide"
local nn, optim, models = mt.nn, mt.optim, mt.models

local function copy(t, more)
  local out = {}
  for key, value in pairs(t) do out[key] = value end
  for key, value in pairs(more or {}) do out[key] = value end
  return out
end

local generator = models.DCGANGenerator{latent = 5, features = 4, channels = 1, size = 28}
local discriminator = models.DCGANDiscriminator{features = 4, channels = 1, size = 28}
local G, D = {"generator", generator}, {"discriminator", discriminator}
local NOISE = mt.data.random{count = 64, shape = {5, 1, 1}, classes = 2, seed = 7}
local REAL = mt.data.random{count = 64, shape = {1, 28, 28}, classes = 2, seed = 8}
local bce = nn.BCEWithLogitsLoss()
local GAN = {
  name = "gan", batch = 3, steps = 3, warmup = 1, optimizer = optim.Adam{lr = 1e-3},
  trainings = {
    generate = {model = nn.Sequential{G, D}, frozen = {discriminator}, input = {5, 1, 1}, loss = bce},
    judge = {model = nn.Sequential{D}, input = {1, 28, 28}, loss = bce},
    sample = {model = nn.Sequential{G}, input = {5, 1, 1}},
  },
  data = {noise = NOISE, real = REAL},
  options = {{"k", 1, "updates of the discriminator"}},
  round = function(t, draw, s)
    local z
    for _ = 1, s.k do
      z = draw "noise"
      t.judge:zero_grad()
      t.judge:forward(draw "real", 1)
      t.judge:backward()
      t.judge:forward(t.sample:outputs(z), 0)
      t.judge:backward()
      t.judge:update()
    end
    return t.generate:step(z, 1)
  end,
}
-- The same without parts: two micro-batches, real ones and then false ones
local WHOLE = copy(GAN, {
  trainings = copy(GAN.trainings, {judge = copy(GAN.trainings.judge, {accumulate = 2})}),
  round = function(t, draw, s)
    local z
    for _ = 1, s.k do
      z = draw "noise"
      t.judge:step({draw "real", t.sample:outputs(z)}, {1, 0})
    end
    return t.generate:step(z, 1)
  end,
})

local function built(options, k) return cell.build(mt.experiment(options):cells()[k or 1]) end
local function ran(options)
  local one = cell.compile(built(options))
  return cell.run(one, function() end), one
end

-- ---- predicted and measured: run() compares peak, bytes after the last round and the host's, and is "ok" where all agree
for _, script in ipairs{GAN, WHOLE} do
  for _, extra in ipairs{{}, {k = 3}, {batch = 1}, {allocator = "caching"}, {allocator = "direct"}, {precision = "amp_bf16"},
    {precision = "amp_fp16"}, {precision = "master_bf16", inplace = true}, {checkpoint = "sqrt"}, {offload = "all"},
    {optimizer = optim.SGD{lr = 0.1, momentum = 0.9}}, {schedule = optim.StepLR(1)}} do
    local key, value = next(extra)
    local what = (script == GAN and "parts" or "whole steps") .. (key and (", %s=%s"):format(key, value) or "")
    local options = copy(script, extra)
    if key == "k" then options.k, options.options = nil, {{"k", value, "updates"}} end
    local found, one = ran(options)
    tap.is(found.status, "ok", what .. ": what was predicted is measured")
    tap.is(found.reason, nil, what .. ": without a reason")
    tap.is(one.prediction.peak.op, found.memory.peak.op, what .. ": at the same op, " .. found.memory.peak.op)
    local sum = 0
    for _, bytes in pairs(found.memory.peak.categories) do sum = sum + bytes end
    tap.is(sum, found.memory.peak.bytes, what .. ": the categories sum to the peak")
    tap.is(#found.losses, 4, what .. ": a loss for each round")
    cell.release(one)
  end
end
local parts, whole = ran(GAN), ran(WHOLE)
for i, loss in ipairs(parts.losses) do
  tap.near(loss, whole.losses[i], 2e-5, ("round %d: parts and micro-batches learn the same"):format(i))
end

-- ---- weights and states of all trainings are there while each step runs
local one = cell.compile(built(GAN))
local elements, trained = 0, one.network:parameters()
for _, buffer in ipairs(one.network:buffers()) do elements = elements + 4 * buffer.elements end
tap.is(one.prediction.peak.categories.weights, elements + 4 * trained, "weights and statistics of both networks, once")
tap.ok(one.prediction.peak.categories.optimizer >= 8 * trained, "Adam's two states of both")
tap.has(one.prediction.peak.op, "generate: ", "the peak's op says whose it is")
local flops = 0
for _, step in ipairs{{1, "step"}, {3, "step"}, {2, "forward"}, {2, "forward"}, {2, "backward"}, {2, "backward"}, {2, "update"}} do
  flops = flops + one.trainings[step[1]].program:cost(step[2])
end
tap.is((cell.cost(one)), flops, "a round costs what its calls cost")
tap.ok(cell.floor(one, 1e9, 1e9) > one.trainings[1].program:floor(1e9, 1e9), "and takes at least as long")
cell.release(one)

-- ---- one training is the case that experiments without trainings are
local data = mt.data.random{count = 40, shape = {6}, classes = 4, seed = 3}
local model = nn.Sequential{nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)}
local ALONE = {name = "alone", batch = 4, steps = 5, optimizer = optim.Adam{lr = 0.1}, schedule = optim.StepLR(2), shuffle = true}
local cross = nn.CrossEntropyLoss()
local single, cell_of_single = ran(copy(ALONE, {model = model, data = data, loss = cross}))
local joint, cell_of_joint = ran(copy(ALONE, {trainings = {net = {model = model, input = {6}, loss = cross}}, data = {all = data},
  round = function(t, draw) t.net:step(draw "all") end}))
for i, loss in ipairs(single.losses) do tap.is(joint.losses[i], loss, ("step %d: the same loss as alone"):format(i)) end
tap.is(joint.memory.peak.bytes, single.memory.peak.bytes, "the same peak")
tap.is(cell_of_joint.prediction.lower_bound, cell_of_single.prediction.lower_bound, "the same bound")
tap.is(joint.memory.peak.op, "net: " .. single.memory.peak.op, "at the same op")
tap.ok(joint.losses[7] < joint.losses[1] or joint.losses[6] < joint.losses[1], "it learns")

-- ---- networks that share nothing: a teacher that only evaluates
local function distill(extra)
  return copy({name = "distill", batch = 4, steps = 4, optimizer = optim.Adam{lr = 0.01},
    trainings = {teacher = {model = nn.Linear(6, 4), input = {6}},
      student = {model = nn.Sequential{{"student", nn.Linear(6, 4)}}, input = {6}, loss = nn.MSELoss()}},
    data = {x = data},
    round = function(t, draw)
      local x = draw "x"
      t.student:step(x, t.teacher:outputs(x))
    end}, extra)
end
local learnt, students = ran(distill())
tap.is(learnt.status, "ok", "distillation: what was predicted is measured")
tap.ok(learnt.losses[1] > 0, "each network has first values of its own")
tap.ok(learnt.losses[6] < learnt.losses[1], "the student learns what the teacher answers")
tap.is(learnt.memory.categories.optimizer, 2 * 4 * 28 + 2 * 16 + 2 * 4 - 16 - 4, "only the student has states")
cell.release(students)
-- ---- weights of a training; the largest batch; ids
local path = os.tmpname() .. ".safetensors"
local trainer = assert(mt.trainer{model = nn.Sequential{{"student", nn.Linear(6, 4)}}, input = {6},
  loss = nn.MSELoss(), batch = 4, seed = 5})
assert(trainer:save(path))
trainer:close()
local given = distill()
given.trainings.student.weights = path
tap.ok(ran(given).losses[1] ~= learnt.losses[1], "the student begins with weights of a file")
os.remove(path)

local largest = built(copy(GAN, {batch = "max"}))
largest.memory = 1 << 20
max_batch.settle(largest)
cell.compile(largest)
tap.ok(largest.values.batch > 3 and largest.prediction.peak.bytes <= 1 << 20, ("the largest batch: %d"):format(largest.values.batch))
local beyond = built(copy(GAN, {batch = largest.values.batch + 1}))
tap.ok(cell.compile(beyond).prediction.peak.bytes > 1 << 20, "a larger one does not fit")

local function id(options) return cell.id(built(options), "run") end
local first = id(GAN)
tap.is(id(copy(GAN)), first, "the same trainings and round have the same id")
local settings, network, of_data = first:match "(%x+)%-(%x+)%-(%x+)"
local later = id(copy(GAN, {round = function(t, draw, s) GAN.round(t, draw, s) GAN.round(t, draw, s) end}))
tap.is(later:match "^%x+", settings, "another round is no other setting")
tap.ok(later:match "%-(%x+)%-" ~= network, "but other work")
tap.is(later:match "%x+$", of_data, "on the same data")
for what, extra in pairs{
  loss = {trainings = copy(GAN.trainings, {generate = copy(GAN.trainings.generate, {loss = nn.MSELoss()})})},
  optimizer = {trainings = copy(GAN.trainings, {judge = copy(GAN.trainings.judge, {optimizer = optim.SGD{lr = 1}})})},
} do tap.ok(id(copy(GAN, extra)) ~= first, what .. " of a training is in the id") end

-- ---- axes that trainings and rounds read
local swept = mt.experiment{name = "swept", data = {x = data}, steps = 2, batch = 2,
  trainings = function(s)
    return {net = {model = nn.Linear(6, s.width), input = {6}, loss = cross}}
  end,
  round = function(t, draw, s) for _ = 1, s.times do t.net:step(draw "x") end end,
  sweep = {{"width", {4, 40}}, {"times", {1, 2}}}}
local peaks, calls = {}, {}
for i, each in ipairs(swept:cells()) do
  cell.compile(cell.build(each))
  peaks[i], calls[i] = each.prediction.peak.bytes, #each.round.plan
end
tap.ok(peaks[1] < peaks[3] and peaks[1] == peaks[2], "a function makes trainings of a cell's settings")
tap.is(table.concat(calls, " "), "1 2 1 2", "and a round of them")
local inputs = mt.data.zip({a = data, b = mt.data.random{count = 40, shape = {2}, classes = 2, seed = 9}}, "a")
local several = ran{name = "several", batch = 4, steps = 2, data = {both = inputs}, optimizer = optim.SGD{lr = 0.1},
  trainings = {net = {input = {a = {6}, b = {2}}, loss = cross,
    model = nn.Graph{one = nn.Linear(6, 4), two = nn.Linear(2, 4), forward = function(self, a, b) return self.one(a) + self.two(b) end}}},
  round = function(t, draw)
    local x, y = draw "both"
    t.net:step({a = x.a, b = x.b}, y)
  end}
tap.is(several.status, "ok", "a training of several inputs")

-- ---- a loss that is no number, and rounds that differ
local diverged = ran(copy(ALONE, {trainings = {net = {model = model, input = {6}, loss = nn.MSELoss()}}, data = {all = data},
  round = function(t, draw)
    t.net:step(draw "all", 1e38)
    return 1
  end}))
tap.is(diverged.status, "diverged", "a step's loss that is infinite is the round's, whatever it returns")
local n = 0
tap.raises("call 2 is net:step, and was not made when the round was planned: all rounds must make the same calls",
  "rounds that differ", ran, copy(distill(), {trainings = {net = {model = model, input = {6}, loss = cross}}, data = {all = data},
  round = function(t)
    n = n + 1
    for _ = 1, n do t.net:step(("\0"):rep(96), {1, 2, 3, 0}) end
  end}))
n = 3
tap.raises("it ends before net:step", "or end early", ran, copy(distill(), {
  trainings = {net = {model = model, input = {6}, loss = cross}}, round = function(t)
    n = n - 1
    for _ = 1, n do t.net:step(("\0"):rep(96), {1, 2, 3, 0}) end
  end}))

-- ---- mistakes
local NET = {model = nn.Linear(6, 4), input = {6}, loss = cross}
local function wrong(message, extra, what)
  local all = copy({name = "wrong", batch = 4, steps = 2, data = {x = data}, trainings = {net = NET},
    round = function(t, draw) t.net:step(draw "x") end}, extra)
  tap.raises(message, what or message, function() cell.compile(built(all)) end)
end
local function wrong_round(message, f, extra) wrong(message, copy(extra or {}, {round = f})) end
wrong_round('there is no training ent (did you mean "net"?)', function(t) t.ent:step() end)
wrong_round('there is no y in data', function(_, draw) draw "y" end)
wrong_round("round: it never calls the training net", function() end)
wrong_round("round: it updates nothing", function(t, draw) t.net:step(draw "x") end, {mode = "eval"})
wrong_round("net: input: expected 24 numbers, found 4", function(t) t.net:step({1, 2, 3, 4}, 1) end)
wrong_round("net: input: expected 24 numbers, found a nil", function(t) t.net:step() end)
wrong_round("net: target: expected 4 numbers, found 3", function(t, draw) t.net:step(draw "x", {1, 2, 3}) end)
wrong_round("net:update: there are no gradients", function(t) t.net:update() end)
wrong_round("net:backward: expected a forward pass of net right before it", function(t) t.net:backward() end)
wrong_round("net:backward: expected a forward pass of net right before it", function(t, draw)
  t.net:forward(draw "x")
  t.net:step(draw "x")
  t.net:backward()
end)
wrong_round("net:forward: expected accumulate = 1", function(t, draw) t.net:forward(draw "x") end,
  {trainings = {net = copy(NET, {accumulate = 2})}})
wrong_round("net: outputs are kept of a training without a loss", function(t, draw) t.net:outputs(draw "x") end)
wrong_round("net:backward: it evaluates and is not trained", function(t) t.net:backward() end,
  {trainings = {net = copy(NET, {mode = "eval"})}})
wrong_round("net:set_lr: expected a number that is not negative", function(t) t.net:set_lr(-1) end)
wrong("trainings.net: model: expected a layer", {trainings = {net = {input = {6}, loss = cross}}})
wrong("trainings.net: input: expected the shape of one sample", {trainings = {net = {model = NET.model, loss = cross}}})
wrong("trainings.net: loss: expected a loss", {trainings = {net = copy(NET, {loss = "MSE"})}})
wrong("trainings.net: optimizer: expected an optimizer", {trainings = {net = copy(NET, {optimizer = "Adam"})}})
wrong('trainings.net: unknown key "optimiser" (did you mean "optimizer"?)', {trainings = {net = copy(NET, {optimiser = 1})}})
wrong('trainings.net: unknown key "device"', {trainings = {net = copy(NET, {device = "cpu"})}})
wrong("trainings.a b: name: expected a name", {trainings = {["a b"] = NET}})
wrong("trainings: expected trainings by name", {trainings = {}})
local nine = {}
for i = 1, 9 do nine["t" .. i] = NET end
wrong("trainings: expected 1 to 8, found 9", {trainings = nine})
wrong("trainings: expected 1 to 8, found 0", {trainings = function() return {} end})
wrong("trainings.net: expected a table, found a number", {trainings = function() return {net = 3} end})
wrong("round: expected a function of the trainings", {round = 3})
wrong("a and b both have a parameter weight, which would be one parameter",
  {trainings = {a = NET, b = copy(NET, {model = nn.Linear(6, 4)})}})
wrong('"model" is said by each of the trainings', {model = NET.model})
wrong('"loss" is said by each of the trainings', {loss = cross})
wrong('"test_data" is not offered with trainings', {test_data = data})
wrong('"epochs" is not offered with trainings', {epochs = 2})
wrong("accumulate: a training says it for itself", {accumulate = 2})
wrong('framework = "pytorch" is not offered with trainings', {framework = "pytorch"})
wrong("data: expected datasets by name, which the round draws from", {data = data})
wrong("net: all its layers are frozen: it has nothing to train", {trainings = {net = copy(NET, {frozen = {NET.model}})}})
tap.raises('"round" is missing', "trainings without a round", function() built{name = "n", trainings = {net = NET}} end)
tap.raises('"trainings" is missing', "a round without trainings", function()
  built{name = "n", round = function() end, loss = cross}
end)
tap.raises("expected one dataset", "datasets by name without trainings", function()
  built{name = "n", model = NET.model, loss = cross, data = {x = data}}
end)

tap.done()
