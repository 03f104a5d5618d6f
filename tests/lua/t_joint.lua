-- Several networks in one runtime: a GAN's updates in turns. Shared parameters are counted once, a frozen one gets no
-- gradient, and what was predicted of the turns is measured.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn, optim, models = mt.nn, mt.optim, mt.models

local BATCH, LATENT = 3, 5
local generator = models.DCGANGenerator{latent = LATENT, features = 4, channels = 1, size = 28}
local discriminator = models.DCGANDiscriminator{features = 4, channels = 1, size = 28}

local function open(extra)
  local function G() return {"generator", generator} end
  local function D() return {"discriminator", discriminator} end
  local adam = optim.Adam{lr = 1e-3, betas = {0.5, 0.999}}
  local all = {batch = BATCH, seed = 3, programs = {
    {name = "generate", model = nn.Sequential{G(), D()}, frozen = {discriminator}, input = {LATENT, 1, 1},
      loss = nn.BCEWithLogitsLoss(), optimizer = adam},
    {name = "sample", model = nn.Sequential{G()}, input = {LATENT, 1, 1}},
    {name = "judge", model = nn.Sequential{D()}, input = {1, 28, 28}, accumulate = 2, loss = nn.BCEWithLogitsLoss(),
      optimizer = adam},
  }}
  for key, value in pairs(extra or {}) do all[key] = value end
  return assert(mt.joint(all))
end

local function wave(n, k)
  local x = {}
  for i = 1, n do x[i] = math.sin(0.37 * i + k) end
  return x
end

local ONES, HALVES = {1, 1, 1}, {1, 1, 1, 0, 0, 0}

-- One round -> losses and the samples
local function round(gan, k)
  local z = wave(BATCH * LATENT, k)
  local loss_g = assert(gan:step("generate", z, ONES))
  local fake = assert(gan:outputs("sample", z))
  local x = wave(BATCH * 28 * 28, k)
  local loss_d = assert(gan:step("judge", table.move(fake, 1, #fake, #x + 1, x), HALVES))
  return loss_d, loss_g, fake
end

local function finite(x) return x == x and math.abs(x) < 1e3 end

for _, extra in ipairs{{}, {allocator = "caching"}, {precision = "amp_bf16"}, {precision = "master_bf16"},
  {checkpoint = "sqrt", inplace = true}} do
  local key, value = next(extra)
  local what = key and ("%s=%s"):format(key, value) or "plain"
  local gan = open(extra)
  local predicted = gan:predicted(3)
  local good = true
  for k = 1, 3 do
    local loss_d, loss_g = round(gan, k)
    good = good and finite(loss_d) and finite(loss_g)
  end
  tap.ok(good, what .. ": losses are finite")
  local memory = gan:memory()
  tap.is(memory.peak.bytes, predicted.peak.bytes, what .. ": predicted is measured over the turns")
  tap.is(memory.used, predicted.allocated, what .. ": and after them")
  gan:close()
end

-- ---- what each update changes
local gan = open()
local function norms()
  local sums = {generator = 0, discriminator = 0}
  for _, param in ipairs((gan:parameters())) do
    local of = param.name:match "^%a+"
    if not param.name:find "running" and not param.name:find "num_batches" then
      for i, value in ipairs(gan:read(param.name)) do sums[of] = sums[of] + value * math.sin(i) end
    end
  end
  return sums
end
local start = norms()
assert(gan:step("generate", wave(BATCH * LATENT, 1), ONES))
local after = norms()
tap.ok(after.generator ~= start.generator, "the generator's step changes the generator")
tap.is(after.discriminator, start.discriminator, "and not the discriminator")
assert(gan:step("judge", wave(2 * BATCH * 28 * 28, 1), HALVES))
local last = norms()
tap.ok(last.discriminator ~= after.discriminator, "the discriminator's step changes the discriminator")
tap.is(last.generator, after.generator, "and not the generator")
tap.ok(discriminator.frozen == nil, "the layers are as they were")

-- ---- counted once: the weights of both networks, and Adam's two tensors for each that is trained
local bytes, trained = 0, 0
for _, param in ipairs((gan:parameters())) do trained = trained + 4 * param.elements end
for _, buffer in ipairs(gan.network:buffers()) do bytes = bytes + 4 * buffer.elements end
bytes = bytes + trained
local categories = gan:memory().categories
tap.is(categories.weights, bytes, "weights are counted once")
tap.is(categories.optimizer, 2 * trained + 2 * (16 + 4), "optimizer state too: two tensors, and two programs' counters")

-- ---- the first update is Adam's first in both programs: with lr, each weight moves by lr (bias correction of step 1)
local fresh = open()
assert(fresh:step("generate", wave(BATCH * LATENT, 1), ONES))
local name = "discriminator.main.0.weight"
local before = fresh:read(name)
assert(fresh:step("judge", wave(2 * BATCH * 28 * 28, 1), HALVES))
local moved, most = fresh:read(name), 0
for i, value in ipairs(before) do most = math.max(most, math.abs(value - moved[i])) end
tap.near(most, 1e-3, 1e-5, "each program counts its own updates")
assert(fresh:set_lr("judge", 0))
before = fresh:read(name)
assert(fresh:step("judge", wave(2 * BATCH * 28 * 28, 1), HALVES))
tap.is(fresh:read(name)[1], before[1], "and has a learning rate of its own")

-- ---- samples change, and manners
local _, _, one = round(fresh, 9)
for k = 1, 3 do round(fresh, k) end
local two = assert(fresh:outputs("sample", wave(BATCH * LATENT, 9)))
local distance = 0
for i, value in ipairs(one) do distance = math.max(distance, math.abs(value - two[i])) end
tap.ok(distance > 1e-4, ("samples of the same noise change (%.2g)"):format(distance))
local shared = nn.Linear(2, 2, {bias = false})
local function side(of, weight)
  return {name = of, model = shared, input = {2}, loss = nn.CrossEntropyLoss(weight, {reduction = "sum"})}
end
local sides = assert(mt.joint{batch = 1, programs = {side("a", {1, 2}), side("b", {1, 6})}})
for _, of in ipairs{"a", "b"} do sides:set_lr(of, 0) end
tap.near(3 * sides:step("a", {1, 2}, {1}), sides:step("b", {1, 2}, {1}), 1e-5, "each loss has class weights of its own")
sides:close()
tap.raises('did you mean "judge"', "an unknown program", fresh.step, fresh, "juge", {}, {})
tap.raises("its outputs are not kept", "outputs of a trained program", fresh.outputs, fresh, "judge", {})
tap.raises("a and b both have a parameter weight, which would be one parameter, but they have no layer in common"
  , "layers that have the same name by chance", mt.joint, {programs = {
  {name = "a", model = nn.Linear(2, 2), input = {2}}, {name = "b", model = nn.Linear(3, 3), input = {3}}}})
for _, where in ipairs{"all", "one"} do
  tap.raises('programs[1]: framework: expected "memtide", found "pytorch"', "PyTorch's step, for " .. where, mt.joint, {
    framework = where == "all" and "pytorch" or nil,
    programs = {{name = "one", model = nn.Linear(2, 2), input = {2}, framework = where == "one" and "pytorch" or nil}}})
end
tap.raises("name: expected a name", "a program without a name", mt.joint, {programs = {{model = nn.Linear(2, 2)}}})
tap.is(select(3, mt.joint{batch = BATCH, memory = 1000, programs = {
  {name = "a", model = nn.Linear(20, 20), input = {20}, loss = nn.MSELoss()}}}), "oom", "a limit that is too low")

tap.done()
