-- What helps training: learning-rate schedules, clipping by the norm, label smoothing, labels that are left out,
-- evaluation over a test set, and a network in print.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

-- ---- schedules: PyTorch's numbers
local function rates(schedule, lr, count)
  local list = {}
  for t = 0, count - 1 do list[t + 1] = ("%.5g"):format(schedule:rate(lr, t)) end
  return table.concat(list, " ")
end
tap.is(rates(optim.StepLR(2, 0.5), 1, 6), "1 1 0.5 0.5 0.25 0.25", "StepLR")
tap.is(rates(optim.StepLR{step_size = 1, every = 2}, 1, 5), "1 1 0.1 0.1 0.01", "in epochs of two updates")
tap.is(rates(optim.MultiStepLR({1, 3}, 0.1), 1, 5), "1 0.1 0.1 0.01 0.01", "MultiStepLR")
tap.is(rates(optim.ExponentialLR(0.9), 0.1, 3), "0.1 0.09 0.081", "ExponentialLR")
tap.is(rates(optim.LinearLR{start_factor = 0.5, total_iters = 2}, 1, 4), "0.5 0.75 1 1", "LinearLR")
tap.is(rates(optim.CosineAnnealingLR(4, 0.2), 1, 5), "1 0.88284 0.6 0.31716 0.2", "CosineAnnealingLR")
tap.is(rates(optim.LambdaLR(function(t) return 1 / (1 + t) end), 1, 3), "1 0.5 0.33333", "LambdaLR")
tap.is(rates(optim.LinearWarmup(2, optim.StepLR(1)), 1, 5), "0.5 1 1 0.1 0.01", "LinearWarmup, then another")
tap.is(rates(optim.OneCycleLR(1, {total_steps = 6, cycle_momentum = false}), 5, 7),
  "0.04 0.99442 0.81175 0.46264 0.13348 4e-06 4e-06", "OneCycleLR, and what comes after it")
tap.is(rates(optim.OneCycleLR(1, false, 4, 2, 0.4, "linear", false, {div_factor = 10, final_div_factor = 100,
  three_phase = true}), 5, 8), "0.1 0.50909 0.91818 0.67273 0.26364 0.077154 0.039077 0.001", "in three phases")
tap.is(rates(optim.PolynomialLR(4, 2), 1, 6), "1 0.5625 0.25 0.0625 0 0", "PolynomialLR")
tap.is(rates(optim.ConstantLR(0.5, 2), 1, 4), "0.5 0.5 1 1", "ConstantLR")
tap.is(rates(optim.CosineAnnealingWarmRestarts(2, 2, 0.1), 1, 7), "1 0.55 1 0.8682 0.55 0.2318 1", "warm restarts")
tap.is(rates(optim.SequentialLR({optim.LinearLR(0.5, 1, 2), optim.ExponentialLR(0.5)}, {2}), 1, 5),
  "0.5 0.75 1 0.5 0.25", "one after the other")
tap.raises("cycle_momentum: only false is known here, and PyTorch's default is true: found nothing", "cycled momentum",
  optim.OneCycleLR, {max_lr = 1, total_steps = 3})
tap.raises("expected total_steps, or epochs and steps_per_epoch", "a cycle without an end", optim.OneCycleLR,
  {max_lr = 1, cycle_momentum = false, epochs = 3})
tap.raises("takes at most 7 arguments in place", "what PyTorch has there", optim.OneCycleLR, 1, 2, 3, 4, 0.5, "cos",
  false, 0.85)
tap.raises('anneal_strategy: found "step"', "an unknown way", optim.OneCycleLR, {max_lr = 1, total_steps = 3,
  cycle_momentum = false, anneal_strategy = "step"})
tap.raises("expected a milestone between each two of 1 schedules, found 1", "too many milestones", optim.SequentialLR,
  {schedulers = {optim.StepLR(1)}, milestones = {2}})
tap.raises("step_size: found 0", "a step of nothing", optim.StepLR, 0)
tap.raises("gamma: found nothing", "a missing argument", optim.ExponentialLR)
tap.raises("gama", "an unknown one", optim.StepLR, {step_size = 3, gama = 1})

for text, factor in pairs{nan = 0 / 0, inf = math.huge, ['"x"'] = "x", ["nil"] = false} do
  local schedule = optim.LambdaLR(function() return factor or nil end)
  tap.raises("optim.LambdaLR: the rate of update 3: expected a finite number, found " .. text, "a rate that is " .. text,
    schedule.rate, schedule, 1, 3)
end
tap.raises("optim.ExponentialLR: the rate of update 2000: expected a finite number, found inf", "a rate that grows beyond all numbers",
  function() return optim.ExponentialLR(2):rate(1, 2000) end)

-- ---- in a trainer: y = x w^T of two weights, whose gradient is known
local function open(options)
  local all = {model = nn.Linear(2, 1, {bias = false}), input = {2}, batch = 1, loss = nn.MSELoss(),
    optimizer = optim.SGD{lr = 0.5}}
  for key, value in pairs(options) do all[key] = value end
  local trainer = assert(mt.trainer(all))
  trainer:write("weight", {1, 2})
  return trainer
end

-- loss (w x - 0)^2: gradient 2 (w x) x
local function moved(trainer, x) -- how far an update moves the weights
  local before = trainer:read "weight"
  assert(trainer:step(x, {0}))
  local after = trainer:read "weight"
  return before[1] - after[1], before[2] - after[2]
end

local plain = open{}
local a, b = moved(plain, {3, 4}) -- w x = 11, gradient (66, 88)
tap.near(a, 33, 1e-4, "an update by the optimizer's rate")
tap.near(b, 44, 1e-4, "of each weight")
plain:write("weight", {1, 2})
assert(plain:set_lr(0.25))
tap.near(moved(plain, {3, 4}), 16.5, 1e-4, "set_lr changes the rate of a step that is compiled")
tap.is(plain:lr(), 0.25, "which can be read")
tap.raises("not negative", "a rate below zero", plain.set_lr, plain, -1)

local falling = open{schedule = optim.StepLR(1, 0.5)}
for _, expected in ipairs{33, 16.5, 8.25} do
  falling:write("weight", {1, 2})
  tap.near(moved(falling, {3, 4}), expected, 1e-3, "a schedule halves the rate of each update")
end
tap.raises("has a schedule", "set_lr beside a schedule", falling.set_lr, falling, 1)

-- a saved run goes on at its place of the schedule
local path = os.tmpname()
assert(falling:save_state(path))
local again = open{schedule = optim.StepLR(1, 0.5)}
assert(again:load_state(path))
again:write("weight", {1, 2})
tap.near(moved(again, {3, 4}), 4.125, 1e-3, "also in a resumed run")
tap.raises("schedule", "another schedule is another run", function()
  return open{schedule = optim.StepLR(2)}:load_state(path)
end)
os.remove(path)

-- ---- clipping: the norm of (66, 88) is 110
for _, case in ipairs{
  {{lr = 0.5, clip_norm = 11}, {3, 4}, 3.3}, {{lr = 0.5, clip_norm = 200}, {3, 4}, 33},
  {{lr = 0.5, clip_norm = 11, momentum = 0.9}, {3, 4}, 3.3},
  {{lr = 0.5, clip_norm = 0.0011}, {0.03, 0.04}, 3.3e-4, precision = "amp_fp16"},
} do
  local clipped = open{optimizer = optim.SGD(case[1]), precision = case.precision}
  tap.near(moved(clipped, case[2]), case[3], 2e-3 * case[3], ("%s %s"):format(optim.SGD(case[1]), case.precision))
  clipped:close()
end
local parts = open{optimizer = optim.SGD{lr = 0.5, clip_norm = 11}, accumulate = 2}
local before = parts:read("weight")[1]
assert(parts:step({3, 4, 3, 4}, {0, 0}))
tap.near(before - parts:read("weight")[1], 3.3, 1e-3, "the sum over micro-batches is clipped, not its parts")
local many = assert(mt.trainer{model = nn.Sequential{nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)}, input = {3},
  batch = 2, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 1, clip_norm = 1e-3}})
local old, moves = {}, 0
for _, param in ipairs((many:parameters())) do old[param.name] = many:read(param.name) end
assert(many:step({1, 2, 3, 3, 2, 1}, {0, 1}))
for name, values in pairs(old) do
  for i, value in ipairs(many:read(name)) do moves = moves + (value - values[i]) ^ 2 end
end
tap.near(math.sqrt(moves), 1e-3, 2e-6, "the norm is that of all gradients together")
tap.raises("clip_norm must not be negative", "a norm below zero", optim.Adam, {clip_norm = -1})

-- ---- the first update by a gradient of 66, or of 0.0066 under a loss scale
for _, case in ipairs{
  {"a mean square that has seen a quarter", optim.RMSprop, {alpha = 0.75}, 1},
  {"and momentum", optim.RMSprop, {alpha = 0.75, momentum = 0.5}, 1},
  {"the root of the variance", optim.RMSprop, {alpha = 0.75, centered = true}, 0.5 / math.sqrt(1 / 4 - 1 / 16)},
  {"a sum that starts with three such squares", optim.Adagrad, {}, 0.25},
} do
  local what, make, options, expected = table.unpack(case)
  options.lr = 0.5
  for precision, x in pairs{fp32 = 1, amp_fp16 = 0.01, master_fp16 = 0.01} do
    if make == optim.Adagrad then options.initial_accumulator_value = 3 * (66 * x * x) ^ 2 end
    local one = open{optimizer = make(options), precision = precision}
    tap.near(moved(one, {3 * x, 4 * x}), expected, 2e-3 * expected, ("%s, %s"):format(what, precision))
    one:close()
  end
end

-- ---- losses
local function loss_of(options, batch, x, labels)
  local trainer = assert(mt.trainer{model = nn.Linear(3, 3, {bias = false}), input = {3}, batch = batch,
    loss = nn.CrossEntropyLoss(options)})
  trainer:write("weight", {1, 0, 0, 0, 1, 0, 0, 0, 1})
  local loss = trainer:evaluate(x, labels)
  trainer:close()
  return loss
end
local log_sum = math.log(math.exp(1) + math.exp(2) + math.exp(4))
tap.near(loss_of({}, 1, {1, 2, 4}, {2}), log_sum - 4, 1e-5, "cross entropy")
tap.near(loss_of({label_smoothing = 0.3}, 1, {1, 2, 4}, {2}), 0.7 * (log_sum - 4) + 0.3 * (log_sum - 7 / 3), 1e-5,
  "label smoothing")
tap.near(loss_of({ignore_index = 1}, 2, {1, 2, 4, 9, 9, 0}, {2, 1}), log_sum - 4, 1e-5,
  "ignore_index leaves a label out of the mean")

-- of logarithms of probabilities
local logarithms = assert(mt.trainer{model = nn.LogSoftmax(1), input = {3}, batch = 2,
  loss = nn.NLLLoss{ignore_index = 1}})
tap.near(logarithms:evaluate({1, 2, 4, 9, 9, 0}, {2, 1}), log_sum - 4, 1e-5, "NLLLoss of LogSoftmax is cross entropy")
tap.is(logarithms:correct({1, 2, 4, 9, 0, 0}, {2, 1}), 1, "and its labels are counted alike")
tap.raises("target 3 of sample 1 is out of bounds for 3 classes", "and checked alike", logarithms.evaluate, logarithms,
  {1, 2, 4, 9, 0, 0}, {2, 3})
logarithms:close()

-- of elements: what PyTorch 2.6 (of a list, 2.15) gives for 0.2, 0.5, 0.9 and the targets 0, 1, 0.75
local function mean_of(loss, x)
  local trainer = assert(mt.trainer{model = nn.LeakyReLU(1), input = {3}, batch = 1, loss = loss})
  local found = trainer:evaluate(x, {0, 1, 0.75})
  trainer:close()
  return found
end
for _, case in ipairs{
  {nn.MSELoss(), 0.10416666467984}, {nn.L1Loss(), 0.28333332637945}, {nn.SmoothL1Loss{beta = 0.25}, 0.16666666269302},
  {nn.HuberLoss{delta = 0.25}, 0.04166666567326}, {nn.BCEWithLogitsLoss(), 0.61278991027882},
  {nn.BCEWithLogitsLoss{pos_weight = 3}, 1.09941817387625},
  {nn.BCEWithLogitsLoss{pos_weight = {3, 0.5, 2}}, 0.61906554999703}, {nn.BCELoss(), 0.52365245195163},
} do tap.near(mean_of(case[1], {0.2, 0.5, 0.9}), case[2], 1e-6, tostring(case[1])) end
local unlikely = mean_of(nn.BCELoss(), {0.2, 1.5, 0.9})
tap.ok(unlikely ~= unlikely, "BCELoss of what is no probability is NaN")
for _, precision in ipairs{"amp_fp16", "amp_bf16"} do
  local line, loss = tap.line(), nn.BCELoss()
  tap.raises(("%s): unsafe under precision %s: expected BCEWithLogitsLoss"):format(line:sub(1, -2), precision),
    "what PyTorch's autocast refuses", mt.trainer, {model = nn.Sigmoid(), input = {3}, batch = 1, loss = loss,
      precision = precision})
end

-- class weights: what PyTorch 2.6 gives for these logits, and for them as logarithms
local function weighted(loss)
  local trainer = assert(mt.trainer{model = nn.LeakyReLU(1), input = {3}, batch = 3, loss = loss})
  local found = trainer:evaluate({1, 2, 4, 9, 9, 0, 0.5, -1, 2}, {2, 1, 0})
  trainer:close()
  return found
end
for _, case in ipairs{
  {nn.CrossEntropyLoss{1, 2, 0.5}, 0.91790059244341}, {nn.NLLLoss({1, 2, 0.5}), -5.85714285714286},
  {nn.CrossEntropyLoss({1, 2, 0.5}, {reduction = "sum"}), 3.21265207355194},
  {nn.CrossEntropyLoss{weight = {1, 2, 0.5}, label_smoothing = 0.3, ignore_index = 1}, 1.91484604},
} do tap.near(weighted(case[1]), case[2], 1e-6, tostring(case[1])) end
tap.raises("weight: expected a number for each of 3 classes, found 2", "too few weights", weighted,
  nn.CrossEntropyLoss{1, 2})

-- of pixels: logits (1, 2, 4) and (9, 9, 0) of two of them, as an image (1, 3, 1, 2), classes first
local pixels = assert(mt.trainer{model = nn.LeakyReLU(1), input = {3, 1, 2}, batch = 1,
  loss = nn.CrossEntropyLoss{ignore_index = 1}})
local image = {1, 9, 2, 9, 4, 0}
tap.near(pixels:evaluate(image, {2, 1}), log_sum - 4, 1e-5, "cross entropy of an image has a label for each pixel")
tap.is(pixels:correct(image, {2, 0}), 2, "which are looked for along the channels")
tap.is(pixels:correct(image, {1, 2}), 0, "all of them")
pixels:close()

-- ---- evaluation over a test set whose last batch is incomplete
local dataset = mt.data.random{count = 10, shape = {4}, classes = 3, seed = 1}
local judge = assert(mt.trainer{model = nn.Linear(4, 3), input = {4}, classes = 3, batch = 4,
  loss = nn.CrossEntropyLoss()})
local mean, accuracy, samples = judge:evaluate(mt.data.loader{dataset, batch = 4})
local sum, right = 0, 0
for x, y, n in mt.data.loader{dataset, batch = 1}:epoch() do
  local one, loss = judge:correct(x:values(), y:values())
  right, sum = right + one, sum + loss * n
end
tap.is(samples, 10, "all samples are looked at")
tap.near(mean, sum / 10, 1e-5, "mean loss")

tap.near(accuracy, right / 10, 1e-9, "accuracy")

-- ---- the loss of several batches is that of one batch of them all, whatever labels count in each
local folder = require "tests.lua.folder"
local function npy(name, descr, shape, format, list)
  local head = ("{'descr': '%s', 'fortran_order': False, 'shape': %s, }"):format(descr, shape)
  return folder.write(name, "\x93NUMPY\1\0" .. ("<s2"):pack(head) .. ("<" .. format:rep(#list)):pack(table.unpack(list)))
end
local numbers = {}
for i = 1, 40 do numbers[i] = math.sin(i * i) end
local uneven = mt.data.npy(npy("x.npy", "<f4", "(10, 4)", "f", numbers), npy("y.npy", "<i4", "(10,)", "i4", {1, 1, 2, 1, 0, 0, 0, 0, 2, 0}))
for name, loss in pairs{
  ["labels that do not count"] = nn.CrossEntropyLoss{ignore_index = 0},
  ["a sum"] = nn.CrossEntropyLoss{ignore_index = 0, reduction = "sum"},
  ["labels of different weight"] = nn.CrossEntropyLoss{weight = {3, 0.5, 2}},
  ["weights, smoothing and labels that do not count"] = nn.CrossEntropyLoss{weight = {3, 0.5, 2}, ignore_index = 0, label_smoothing = 0.1},
  ["logarithms"] = nn.NLLLoss{weight = {3, 0.5, 0}, ignore_index = 1},
} do
  local function in_batches_of(batch)
    local one <close> = assert(mt.trainer{model = nn.Sequential{nn.Linear(4, 3), nn.LogSoftmax(1)}, input = {4}, classes = 3, batch = batch,
      loss = loss, seed = 5})
    return one:evaluate(mt.data.loader{uneven, batch = batch})
  end
  local all, right_of_all = in_batches_of(10)
  for _, batch in ipairs{1, 3, 4} do
    local found, share, count = in_batches_of(batch)
    tap.near(found, all, 1e-5 * math.abs(all), ("%s: batches of %d"):format(name, batch))
    tap.ok(share == right_of_all and count == 10, "... and the share that is right")
  end
end

-- ---- labels of files: of several places of a sample, and of places that have none
local cell = require "memtide.net.cell"
local held = {1, -100, 0, -100, -100, 2, 1, 1, 0, -100, -100, -100, 0, 1, 2}
local mask = {} -- the same as bytes
for i, label in ipairs(held) do mask[i] = label < 0 and 255 or label end
local images = npy("images.npy", "<f4", "(5, 2, 3)", "f", table.move(numbers, 1, 30, 1, {}))
local places = npy("places.npy", "<i8", "(5, 3)", "i8", held)
local function places_of(options, labels, index)
  local model = nn.Conv1d(2, 3, 1)
  local made = mt.experiment{name = "places", model = model, loss = nn.CrossEntropyLoss{ignore_index = index},
    data = mt.data.npy(images, labels, options), batch = 2, steps = 6, warmup = 0, optimizer = optim.SGD{lr = 0.1}}
  local compiled = cell.compile(cell.build(made:cells()[1]))
  return cell.run(compiled, function() end)
end
local long, bytes = places_of(nil, places, -100), places_of({ignore_index = 255}, npy("mask.npy", "|u1", "(5, 3)", "B", mask), 255)
local by_hand = assert(mt.trainer{model = nn.Conv1d(2, 3, 1), input = {2, 3}, batch = 2, loss = nn.CrossEntropyLoss(),
  optimizer = optim.SGD{lr = 0.1}, seed = 1})
local last
for step = 0, 5 do -- batches of 2, 2 and 1
  local from, count = step % 3 * 2, step % 3 == 2 and 1 or 2
  last = by_hand:step(table.move(numbers, from * 6 + 1, (from + count) * 6, 1, {}), table.move(held, from * 3 + 1, (from + count) * 3, 1, {}))
end
tap.is(long.status .. " " .. bytes.status, "ok ok", "labels of each place, int64 and bytes, with places that have none")
tap.near(long.losses[6], last, 1e-6, "the loss is that of the same labels by hand")
tap.is(bytes.losses[6], long.losses[6], "... and of bytes")
tap.raises("there are 256 classes, but the network has 3 outputs", "a mask whose 255 is not said to be ignored", places_of, nil, folder.path .. "/mask.npy", 255)
tap.raises("expected a label from 0 to 2147483646 or ignore_index = 255, found -100", "another number than the one that is ignored",
  places_of, {ignore_index = 255}, places, 255)
tap.raises("MSELoss needs targets like the network's output, target = {3}, found labels, target = {3}", "labels for a loss of numbers",
  function()
    local made = mt.experiment{name = "places", model = nn.Sequential{nn.Flatten(), nn.Linear(6, 3)}, loss = nn.MSELoss(), data = mt.data.npy(images, places)}
    return cell.build(made:cells()[1])
  end)
folder.remove()

-- labels that the loss ignores are no part of the share, whatever the network says there
local padded = assert(mt.trainer{model = nn.Linear(1, 3), input = {1}, batch = 2, loss = nn.CrossEntropyLoss{ignore_index = 1}})
padded:write("weight", {0, 0, 0})
local function share(bias, values)
  padded:write("bias", bias)
  local file_name = os.tmpname()
  local x, y = file_name .. ".x.npy", file_name .. ".y.npy"
  local function write(name, kind, count, text)
    local header = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }"):format(kind, count)
    local file = assert(io.open(name, "wb"))
    file:write("\x93NUMPY\1\0", string.pack("<s2", header .. (" "):rep(117 - #header) .. "\n"), text)
    file:close()
  end
  write(x, "<f4", #values .. ", 1", string.pack(("<f"):rep(#values), table.unpack(values)))
  write(y, "<i4", #values .. ",", string.pack(("<i4"):rep(#values), table.unpack(values)))
  local _, right_share, all = padded:evaluate(mt.data.loader{mt.data.npy(x, y), batch = 2})
  for _, name in ipairs{file_name, x, y} do os.remove(name) end
  return right_share, all
end
local reached, count = share({0, 5, 9}, {2, 1, 0, 2, 1})
tap.ok(math.abs(reached - 2 / 3) < 1e-9 and count == 5, "ignored labels are not counted as wrong")
tap.near(share({0, 9, 5}, {2, 1, 0, 1, 1}), 0, 1e-9, "nor as right")
tap.is(padded:correct({0, 0}, {1, 2}), 0, "nor of one batch")
padded:close()

-- ---- in print
tap.has(tostring(judge), "Linear(in_features=4, out_features=3, bias=True)\nparameters: 15, trained: 15",
  "a network, and its parameters")

-- ---- in an experiment
local function experiment(extra)
  local all = {name = "schedule", model = nn.Linear(2, 2), input = {2}, loss = nn.CrossEntropyLoss(), steps = 3,
    warmup = 0, optimizer = optim.SGD{lr = 0.1}}
  for key, value in pairs(extra) do all[key] = value end
  return cell.compile(cell.build(mt.experiment(all):cells()[1]))
end
local one, other = experiment{}, experiment{schedule = optim.LambdaLR(function() return 0 end)}
tap.ok(cell.id(one, "run") ~= cell.id(other, "run"), "a schedule makes another cell")
local weights = experiment{loss = nn.CrossEntropyLoss{1, 2}}
tap.ok(cell.id(one, "run") ~= cell.id(weights, "run") and
  cell.id(weights, "run") ~= cell.id(experiment{loss = nn.CrossEntropyLoss{2, 1}}, "run"), "and so do class weights")
tap.is(cell.run(weights, function() end).status, "ok", "which are predicted")
local found = cell.run(other, function() end)
tap.is(found.status, "ok", "an experiment runs by a schedule, as much as was predicted")
for _, classes in ipairs{false, 3} do
  local labelled = experiment{model = nn.Conv2d(2, 3, 1), input = {2, 4, 5}, classes = classes or nil, batch = 2}
  tap.is(labelled.data.classes .. " " .. labelled.data.target[1], "3 20", "of an image each pixel has a label")
  tap.is(cell.run(labelled, function() end).status, "ok", "and it is trained")
end

tap.done()
