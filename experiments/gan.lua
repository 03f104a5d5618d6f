-- DCGAN on small digits, line by line as in PyTorch's example: the discriminator learns from real and generated images,
-- then the generator learns through the discriminator, which is not updated in that step.
local mt = require "memtide"
local nn, optim, models = mt.nn, mt.optim, mt.models

local dir, rounds = ...
local batch = 16
dir, rounds = dir or "digits", math.tointeger(rounds or 40)
if not mt.data.exists(dir .. "/train-images-idx3-ubyte") then require "memtide.digits".write(dir, 2000, 500, 1) end

local generator = models.DCGANGenerator{latent = 32, features = 16, channels = 1, size = 28}
local discriminator = models.DCGANDiscriminator{features = 16, channels = 1, size = 28}
local G, D = {"generator", generator}, {"discriminator", discriminator}
local adam = optim.Adam{lr = 2e-4, betas = {0.5, 0.999}}

local gan = mt.joint{batch = batch, seed = 1, programs = {
  {name = "generate", model = nn.Sequential{G, D}, frozen = {discriminator}, input = {32, 1, 1},
    loss = nn.BCEWithLogitsLoss(), optimizer = adam},
  {name = "sample", model = nn.Sequential{G}, input = {32, 1, 1}},
  {name = "judge", model = nn.Sequential{D}, input = {1, 28, 28}, accumulate = 2, -- real ones, then false ones
    loss = nn.BCEWithLogitsLoss(), optimizer = adam},
}}
local noise = mt.data.loader{mt.data.random{count = 4096, shape = {32, 1, 1}, classes = 2, seed = 7}, batch = batch}
local images = mt.data.mnist(dir, "train"):normalize({0.5}, {0.5})
local real = mt.data.loader{images, batch = batch, shuffle = true, drop_last = true, seed = 1}
local ones, halves = {}, {}
for i = 1, batch do ones[i], halves[i], halves[batch + i] = 1, 1, 0 end

local losses, next_noise, next_real = {}, noise:epoch(), real:epoch()
for round = 1, math.min(rounds, real:batches()) do
  local z, x = next_noise(), next_real()
  local loss_g = assert(gan:step("generate", z, ones))
  local pixels, fake = x:values(), assert(gan:outputs("sample", z))
  local loss_d = assert(gan:step("judge", table.move(fake, 1, #fake, #pixels + 1, pixels), halves))
  losses[round] = {loss_d, loss_g}
  if round % 10 == 0 then print(("round %d: loss of D %.4f, of G %.4f"):format(round, loss_d, loss_g)) end
end
print(("peak: predicted %d bytes, measured %d"):format(gan:predicted().peak.bytes, gan:memory().peak.bytes))
gan:close()
return losses
