-- A step in parts, as PyTorch's loops write it: forward, backward, update, with gradients that stay.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local DEVICE = os.getenv "PARTS_DEVICE" or "cpu"
local BATCH, FEATURES, CLASSES = 6, 10, 5

local function batch(s)
  local x, y = {}, {}
  for i = 1, BATCH * FEATURES do x[i] = math.cos(0.37 * i + s) end
  for i = 1, BATCH do y[i] = (i + s) % CLASSES end
  return x, y
end

local function model()
  return nn.Sequential{nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.25), nn.Linear(32, CLASSES)}
end

local function new(options)
  local all = {model = model(), input = {FEATURES}, batch = BATCH, loss = nn.CrossEntropyLoss(), seed = 3,
    optimizer = optim.Adam{lr = 0.05}, device = DEVICE}
  for key, value in pairs(options) do all[key] = value end
  return assert(mt.trainer(all))
end

local function same(a, b, what)
  local differs = #a ~= #b and "another number" or nil
  for i = 1, #a do differs = differs or a[i] ~= b[i] and ("%d: %.9g, %.9g"):format(i, a[i], b[i]) or nil end
  tap.is(differs, nil, what)
end

for _, case in ipairs{
  {"planned", {}}, {"caching", {allocator = "caching"}}, {"amp_fp16", {precision = "amp_fp16"}},
  {"checkpointed", {checkpoint = "all"}}, {"clipped", {optimizer = optim.SGD{lr = 0.1, momentum = 0.9, clip_norm = 0.5}}},
  {"a schedule", {schedule = optim.StepLR(2)}},
} do
  local name, options = table.unpack(case)
  local whole <close> = new(options)
  options.parts = true
  local trainer <close> = new(options)
  local difference
  for s = 1, 5 do
    local x, y = batch(s)
    local wanted = whole:step(x, y)
    trainer:zero_grad()
    local loss = trainer:forward(x, y)
    trainer:backward()
    trainer:update()
    difference = difference or loss ~= wanted and ("%d: %.9g, %.9g"):format(s, loss, wanted) or nil
  end
  tap.is(difference, nil, name .. ": the losses are those of whole steps")
  same(trainer:read "0.weight", whole:read "0.weight", "and so are the weights")
  tap.is(trainer:memory().peak.bytes, trainer:predicted(5).peak.bytes, "the peak is the predicted one")
end

-- ---- gradients

local trainer <close> = new{parts = true, optimizer = optim.SGD{lr = 0.5}, model = nn.Linear(FEATURES, CLASSES)}
tap.is(trainer:gradient "weight", nil, "no gradient before the first backward pass")
local x, y = batch(1)
trainer:forward(x, y)
local output, shape = trainer:output()
tap.is(#output, BATCH * CLASSES, "the output can be read")
tap.is(table.concat(shape, " "), ("%d %d"):format(BATCH, CLASSES), "with its shape")
trainer:backward()
local first, size = trainer:gradient "weight"
tap.is(table.concat(size, " "), ("%d %d"):format(CLASSES, FEATURES), "a gradient has the parameter's shape")
trainer:forward(x, y)
trainer:backward()
local twice, half = trainer:gradient "weight", {}
for i = 1, #twice do half[i] = twice[i] / 2 end
same(half, first, "a second backward pass adds to it")
local before = trainer:read "weight"
trainer:update()
local after, stepped = trainer:read "weight", {}
for i = 1, #after do stepped[i] = math.abs(before[i] - 0.5 * twice[i] - after[i]) < 1e-6 and 0 or 1 end
tap.is(table.concat(stepped):find "1", nil, "the update takes the sum")
trainer:zero_grad()
tap.is(trainer:gradient "weight", nil, "zero_grad clears it")
trainer:step(x, y)
trainer:zero_grad()
trainer:forward(x, y)
trainer:backward()
local fresh = trainer:gradient "weight"
trainer:step(x, y)
same(trainer:gradient "weight", fresh, "a whole step makes new ones, too")
local used = trainer:memory()
tap.ok(used.categories.gradients >= 4 * FEATURES * CLASSES, "they are counted as gradients")

-- ---- the parameters of an optimizer, as PyTorch names them

local net = model()
tap.is(tostring(optim.Adam(net:parameters(), {lr = 0.5})), tostring(optim.Adam{lr = 0.5}), "Adam(model:parameters(), {lr = 0.5})")
tap.is(optim.SGD(net:parameters(), 0.5):rate(), 0.5, "SGD(model:parameters(), 0.5)")
local ours <close> = new{model = net, optimizer = optim.Adam(net:parameters())}
tap.ok(ours:step(x, y), "of the model that is trained")
tap.raises("SGD has the parameters of another layer than the model", "of another one", new, {optimizer = optim.SGD(net:parameters())})
tap.raises("layer:freeze() leaves a layer out", "of a part", new, {model = net, optimizer = optim.SGD(net[1]:parameters())})
tap.raises("has the parameters of another layer", "in an experiment", function()
  local experiment = mt.experiment{name = "other", model = model(), input = {FEATURES}, classes = CLASSES, batch = BATCH,
    loss = nn.CrossEntropyLoss(), optimizer = optim.SGD(net:parameters())}
  require "memtide.net.cell".build(experiment:cells()[1])
end)

-- ---- what is wrong is said

tap.raises("with parts = true it has forward", "a trainer of whole steps", function()
  local plain <close> = new{}
  plain:forward(x, y)
end)
tap.raises("expected accumulate = 1", "accumulate", new, {parts = true, accumulate = 2})
tap.raises('expected mode = "train"', "eval", new, {parts = true, mode = "eval"})
trainer:zero_grad()
tap.raises("backward has not run since zero_grad", "an update without gradients", trainer.update, trainer)
local function fails(what)
  tap.raises("no forward pass has run since the last backward pass", what, trainer.backward, trainer)
end
fails "backward without forward"
trainer:forward(x, y)
trainer:evaluate(x, y)
fails "an evaluation between them"
trainer:forward(x, y)
trainer:backward()
fails "backward twice"
tap.raises("target: expected 6 labels", "labels are counted", trainer.forward, trainer, x, {1})
trainer:forward(x, y)
trainer:backward()
trainer:evaluate(x, y)
tap.ok(trainer:update(), "an evaluation between backward and update is no harm")

-- ---- a trainer is closed in the middle of a step

for _, last in ipairs{"forward", "backward"} do
  for _, allocator in ipairs{"planned", "caching", "direct"} do
    local open, held = new{parts = true, allocator = allocator}, mt.memory.allocated()
    open:forward(x, y)
    if last == "backward" then open:backward() end
    open:close()
    tap.ok(mt.memory.allocated() < held, ("closed after %s, %s: all memory is given back"):format(last, allocator))
  end
end
tap.done()
