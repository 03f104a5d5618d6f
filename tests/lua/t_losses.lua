-- Several outputs with a loss each: their sum, weights, evaluation, penalties, and what is refused.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local nn, optim = mt.nn, mt.optim

-- ---- losses as values
local both = nn.CrossEntropyLoss() + 0.3 * nn.MSELoss{reduction = "sum"}
tap.is(tostring(both), "CrossEntropyLoss() + 0.3 * MSELoss(reduction=sum)", "a sum prints as it is written")
tap.is(tostring(2 * (both + nn.L1Loss() * 0.5)), "2 * CrossEntropyLoss() + 0.6 * MSELoss(reduction=sum) + 1 * L1Loss()",
  "factors are multiplied")
tap.is(tostring(both), "CrossEntropyLoss() + 0.3 * MSELoss(reduction=sum)", "and change no term that is used elsewhere")
tap.raises("+ stands between two losses, found a loss and a number", "a loss plus a number", function()
  return nn.MSELoss() + 1 end)
tap.raises("* stands between a number and a loss, found two losses", "a product of losses", function()
  return nn.MSELoss() * nn.MSELoss() end)
tap.raises("found inf", "a factor without end", function() return math.huge * nn.MSELoss() end)

-- ---- by hand: y = w x, z = y^2; loss = (y - t)^2 + 0.5 |z - t| + 0.1 y, w = 3, x = 2, t = 1
local function Scalar()
  return nn.Graph{fc = nn.Linear(1, 1, {bias = false}), forward = function(self, x)
    local y = self.fc(x)
    return y, y * y, y
  end}
end

local function open(more)
  local options = {model = Scalar(), input = {1}, batch = 1, optimizer = optim.SGD{lr = 0.1},
    loss = nn.MSELoss() + 0.5 * nn.L1Loss() + 0.1 * nn.IdentityLoss()}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.trainer(options)
end

local trainer = open()
trainer:write("fc.weight", {3})
tap.near(trainer:step({2}, {1}), 25 + 17.5 + 0.6, 1e-5, "the losses' sum is the loss")
for i, value in ipairs{25, 17.5, 0.6} do
  tap.near(trainer:read("loss." .. i - 1)[1], value, 1e-5, ("loss.%d can be read"):format(i - 1))
end
tap.near(trainer:read("fc.weight")[1], 3 - 0.1 * (2 * 5 * 2 + 0.5 * 2 * 6 * 2 + 0.1 * 2), 1e-5, "gradients are added")
trainer:write("fc.weight", {3})
local loss, outputs = trainer:evaluate({2}, {1})
tap.near(loss, 25, 1e-5, "evaluation takes the first loss")
tap.is(#outputs == 1 and outputs[1], 6.0, "of the first output")
tap.is(trainer:predict({2})[1], 6.0, "which is what the network gives")
trainer:close()

local two = open{accumulate = 2}
two:write("fc.weight", {3})
tap.near(two:step({2, 2}, {1, 1}), 43.1, 1e-4, "the mean of two micro-batches")
tap.near(two:read("loss.1")[1], 17.5, 1e-4, "of each loss")
tap.near(two:read("fc.weight")[1], 3 - 0.1 * (20 + 12 + 0.2), 1e-4, "and one update")
two:close()

local weighted <close> = open{model = nn.Linear(1, 1, {bias = false}), loss = 0.25 * nn.MSELoss()}
weighted:write("weight", {3})
tap.near(weighted:step({2}, {1}), 6.25, 1e-6, "one loss times a number")
tap.near(weighted:evaluate({2}, {1}), 0.25 * (2 * weighted:read("weight")[1] - 1) ^ 2, 1e-5, "in evaluation, too")

-- ---- an auxiliary head
local function Heads()
  return nn.Graph{
    stem = nn.Conv2d(3, 6, 3, {padding = 1}), fc = nn.Linear(6, 10),
    aux = nn.Sequential{nn.AvgPool2d(2), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(96, 10)},
    order = {"stem", "aux", "fc"},
    forward = function(self, x)
      x = nn.relu(self.stem(x))
      return self.fc(x:mean{2, 3}), self.aux(x)
    end,
  }
end
local ce = nn.CrossEntropyLoss()

local network = assert(core.network(Heads(), ce + 0.4 * ce, {2, 3, 8, 8}))
local text = network:text()
tap.has(text, ". Graph (2, 10) gives fc, aux", "a network says what it gives")
tap.has(text, "loss.1 CrossEntropyLoss () times 0.4", "which losses it has, and how they are weighted")
local device = core.device "cpu"
for _, mode in ipairs{"train", "eval"} do
  local program, seen = assert(core.compile(network, {mode = mode}, device)), false
  for _, op in ipairs(program:ops()) do seen = seen or op.path:find "aux" ~= nil end
  tap.is(seen, mode == "train", mode .. (mode == "eval" and " leaves the head out" or " computes the head"))
end

local ids = {}
local function run(given)
  local losses = {}
  for _, found in ipairs(mt.experiment{name = "heads", model = Heads, input = {3, 8, 8}, classes = 10, loss = given,
    optimizer = optim.SGD{lr = 0.05}, batch = 4, steps = 2, warmup = 1,
    sweep = {{"mode", {"train", "eval"}}, {"precision", {"fp32", "amp_fp16", "master_bf16"}},
      {"checkpoint", {"none", "all"}}}}:cells()) do
    local id = cell.id(cell.build(found), "run")
    tap.is(ids[id], nil, "a cell of its own")
    ids[id] = true
    local result = cell.run(cell.compile(found), function() end)
    tap.is(result.status, "ok", ("%s: %s: %s"):format(tostring(given), found.name, result.reason or "as predicted"))
    losses[#losses + 1] = result.losses[1]
    cell.release(found)
  end
  return losses
end
local plain, heavy = run(ce + 0.4 * ce), run(ce + 0.8 * ce)
tap.ok(heavy[1] > plain[1] + 0.3, "the factor counts in training")
tap.is(heavy[7], plain[7], "and not in evaluation")

-- ---- noise: other numbers in each step, the same ones when they are drawn again
local function noisy(more)
  local options = {model = nn.Graph{fc = nn.Linear(1, 1, {bias = false}), forward = function(self, x)
    local std = self.fc(x)
    return std * nn.randn_like(std), nn.randn_like(x)
  end}, input = {1}, batch = 4096, loss = nn.MSELoss() + nn.IdentityLoss(), optimizer = optim.SGD{lr = 0}}
  for key, value in pairs(more or {}) do options[key] = value end
  local made = mt.trainer(options)
  made:write("fc.weight", {2})
  return made
end
local ones, zeros = {}, {}
for i = 1, 4096 do ones[i], zeros[i] = 1, 0 end
local first, squares, means = noisy(), {}, {}
for step = 1, 3 do
  first:step(ones, zeros)
  squares[step], means[step] = first:read("loss.0")[1], first:read("loss.1")[1]
  tap.near(squares[step], 4, 0.5, "the variance is 1")
  tap.near(means[step], 0, 0.08, "the mean is 0")
end
tap.ok(squares[1] ~= squares[2] and squares[2] ~= squares[3] and means[1] ~= means[2], "each step draws others")
local again <close> = noisy{checkpoint = "all"}
again:step(ones, zeros)
tap.is(again:read("loss.0")[1], squares[1], "the same ones in another run, and with recomputation")
local drawn, _, drawn_shape = first:evaluate(ones, zeros)
tap.near(drawn, 4, 0.5, "evaluation draws, too")
tap.is(#drawn_shape, 2, "values of the shape that it is like")
first:close()
-- f = mean (w e)^2 where e are what is drawn: its gradient is 2 f / w
local slope <close> = noisy{optimizer = optim.SGD{lr = 1}, loss = nn.MSELoss() + 0 * nn.IdentityLoss()}
local value = slope:step(ones, zeros)
tap.near(slope:read("fc.weight")[1], 2 - 2 * value / 2, 1e-3, "and the gradient goes by the side of it")

-- ---- what is refused
tap.raises("expected a loss for each output of the network: there is 1 for 2", "an output without a loss", run, ce)
tap.raises("expected a loss for each output of the network: there are 3 for 2", "a loss without an output", run,
  ce + ce + ce)
tap.raises("the losses of a step have the same target, but CrossEntropyLoss has labels, and this one numbers",
  "two targets", run, ce + nn.MSELoss())
tap.raises("expected a loss with a target as the first one", "no target", run, nn.IdentityLoss() + ce)
tap.raises("expected a loss", "a list", run, {ce, ce})
tap.raises("BCELoss (tests/lua/t_losses.lua", "the loss that autocast does not bear is named", function()
  local program, message = core.compile(assert(core.network(Scalar(), nn.MSELoss() + nn.BCELoss() + nn.L1Loss(),
    {1, 1})), {precision = "amp_bf16"}, device)
  if not program then error(message, 0) end
end)
local of_two = nn.Graph{fc = nn.Linear(2, 3), forward = function(self, x)
  local y = self.fc(x)
  return y, y
end}
local short <close> = mt.trainer{model = of_two, input = {2}, batch = 2, loss = nn.CrossEntropyLoss() + nn.IdentityLoss(),
  optimizer = optim.SGD{lr = 0.1}}
tap.raises("a batch is incomplete (1 of 2 targets)", "a penalty counts every sample", function() short:step({1, 1}, {1}) end)

tap.done()
