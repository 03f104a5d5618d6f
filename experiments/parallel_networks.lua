-- Do several ranks learn what one rank learns? Four networks in every mode on 2 and 4 ranks, each beside one rank with as many
-- micro-batches. docs/ranks.md has the table.
local mt = require "memtide"
local nn, optim, models = mt.nn, mt.optim, mt.models

local NETWORKS = {
  {"MLP", nn.Sequential{nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)}, {64}},
  {"ResNet-18", models.ResNet18{num_classes = 10}, {3, 32, 32}},
  {"GPT", models.GPT{block_size = 32, vocab_size = 128, n_layer = 3, n_head = 4, n_embd = 64}, {32}},
  {"Llama", models.Llama{vocab_size = 128, hidden_size = 64, intermediate_size = 192, num_hidden_layers = 3,
    num_attention_heads = 4, num_key_value_heads = 4, max_position_embeddings = 32}, {32}},
}
local MODES = {
  {"data parallel"}, {"ZeRO-1", zero = 1}, {"ZeRO-2", zero = 2}, {"ZeRO-3", zero = 3}, {"tensor", mesh = "all"},
  {"tensor and ZeRO-3", mesh = "half", zero = 3},
}

local cases, claims = {}, {}
local function put(case, network, world, settings)
  settings.case, settings.model, settings.input, settings.world = case, network[2], network[3], world
  cases[#cases + 1] = settings
end
for _, network in ipairs(NETWORKS) do
  for _, ranks in ipairs{2, 4} do
    local alone = ("%s, one rank for %d"):format(network[1], ranks)
    put(alone, network, 1, {accumulate = ranks})
    for _, mode in ipairs(MODES) do
      local tensor = mode.mesh == "all" and ranks or mode.mesh == "half" and ranks // 2 or 1
      if tensor == 1 and mode.mesh == nil or tensor > 1 and network[1] ~= "ResNet-18" then -- whose products are convolutions
        local case = ("%s, %s, %d ranks"):format(network[1], mode[1], ranks)
        put(case, network, ranks, {zero = mode.zero, accumulate = tensor, mesh = tensor > 1 and {tensor = tensor} or nil})
        claims[#claims + 1] = {claim = case .. ": the loss of one rank", of = "loss_last", equal = {case, alone},
          tolerance = tensor > 1 and 1e-4 or 0}
      end
    end
  end
end

return mt.experiment{
  name = "parallel_networks", cases = cases, claims = claims, batch = 2, loss = nn.CrossEntropyLoss(),
  optimizer = optim.AdamW{lr = 1e-3}, steps = 4, warmup = 1,
}
