-- Memory against time: ResNet-50 and a GPT under smaller and smaller budgets of bytes. For each budget, checkpointing
-- makes the fastest choice of activations to compute again. Half an hour on two processors: budgets differ by less than
-- steps scatter, so that each is visited often.
local mt = require "memtide"
local nn, optim, models = mt.nn, mt.optim, mt.models

-- highest: MiB that are enough without computing anything again
local NETWORKS = {
  ResNet50 = {model = models.ResNet50(), input = {3, 64, 64}, batch = 64, highest = 609},
  GPT = {model = models.GPT{block_size = 128, vocab_size = 512, n_layer = 8, n_head = 4, n_embd = 128},
    input = {128}, batch = 8, highest = 83},
}

local cases = {}
for _, name in ipairs{"ResNet50", "GPT"} do
  local net = NETWORKS[name]
  for percent = 100, 60, -5 do
    cases[#cases + 1] = {case = ("%s, %d %%"):format(name, percent), model = net.model, input = net.input,
      batch = net.batch, checkpoint = net.highest * percent // 100 << 20}
  end
end

return mt.experiment{
  name = "checkpoint_frontier", cases = cases,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01, momentum = 0.9}, steps = 5,
  rounds = 6, time_limit = 24,
}
