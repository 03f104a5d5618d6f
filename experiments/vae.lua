-- PyTorch's example of a variational auto-encoder. It returns two values: logits of the pixels, and the terms of the
-- Kullback-Leibler divergence, for a loss that has no target. Evaluation uses only the first.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local F = nn.functional

local function VAE(s)
  return nn.Graph{
    fc1 = nn.Linear(784, 400), fc21 = nn.Linear(400, s.latent), fc22 = nn.Linear(400, s.latent),
    fc3 = nn.Linear(s.latent, 400), fc4 = nn.Linear(400, 784),
    forward = function(self, x)
      local h = F.relu(self.fc1(x))
      local mu, logvar = self.fc21(h), self.fc22(h)
      local std = (0.5 * logvar):exp()
      local z = mu + nn.randn_like(std) * std
      return self.fc4(F.relu(self.fc3(z))), 1 + logvar - mu ^ 2 - logvar:exp()
    end,
  }
end

return mt.experiment{
  name = "vae", model = VAE, model_name = "VAE", input = {784}, options = {{"latent", 20, "numbers of a code"}},
  loss = nn.BCEWithLogitsLoss{reduction = "sum"} + -0.5 * nn.IdentityLoss{reduction = "sum"},
  optimizer = optim.Adam{lr = 1e-3},
  sweep = {{"batch", {128, 1024}}, {"precision", {"fp32", "amp_bf16"}}, {"mode", {"train", "eval"}}},
  steps = 3, warmup = 1,
}
