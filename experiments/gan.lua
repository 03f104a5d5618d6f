-- DCGAN on small digits, line by line as in PyTorch's example: the discriminator learns from real and from generated
-- images, k times, then the generator learns through the discriminator, which is not updated in that step.
local mt = require "memtide"
local nn, optim, models = mt.nn, mt.optim, mt.models

local dir, rounds = ...
dir, rounds = dir or "digits", math.tointeger(rounds or 40)
if not mt.data.exists(dir .. "/train-images-idx3-ubyte") then require "memtide.digits".write(dir, 2000, 500, 1) end

local generator = models.DCGANGenerator{latent = 32, features = 16, channels = 1, size = 28}
local discriminator = models.DCGANDiscriminator{features = 16, channels = 1, size = 28}
local G, D = {"generator", generator}, {"discriminator", discriminator} -- in every model under the same name

return mt.experiment{
  name = "gan",
  model_name = "DCGAN",
  trainings = {
    generate = {model = nn.Sequential{G, D}, frozen = {discriminator}, input = {32, 1, 1}, loss = nn.BCEWithLogitsLoss()},
    judge = {model = nn.Sequential{D}, input = {1, 28, 28}, loss = nn.BCEWithLogitsLoss()},
    sample = {model = nn.Sequential{G}, input = {32, 1, 1}}, -- without a loss: it gives outputs
  },
  data = {
    noise = mt.data.random{count = 4096, shape = {32, 1, 1}, classes = 2, seed = 7},
    real = mt.data.mnist(dir, "train"):normalize({0.5}, {0.5}),
  },
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
  options = {{"k", 1, "the discriminator's updates for one of the generator"}},
  optimizer = optim.Adam{lr = 2e-4, betas = {0.5, 0.999}},
  shuffle = true, steps = rounds - 2, warmup = 2,
  sweep = {{"batch", {16, 64}}},
}
