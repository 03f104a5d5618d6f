-- NAME: a small GPT.
--   memtide predict NAME.lua                         the memory of each setting; nothing is computed
--   memtide predict NAME.lua --layers 12 --width 768 a larger one
--   memtide fit NAME.lua --memory 24GiB              the largest batch that fits
--   memtide run NAME.lua                             each setting trained for a few steps; the rows go to NAME.csv
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

return mt.experiment{
  name = "NAME",

  -- options of the command line, with their defaults; with several values (--layers 4,8) they are axes of the sweep
  options = {{"layers", 4, "blocks of attention and MLP"}, {"width", 256, "numbers of a token"},
    {"context", 128, "tokens of a sample"}},

  -- a function of the settings; memtide import DIR reads Hugging Face's config.json instead
  model = function(s)
    return mt.models.GPT{n_layer = s.layers, n_head = s.width // 64, n_embd = s.width, block_size = s.context,
      vocab_size = 8192}
  end,
  input = function(s) return {s.context} end, -- random tokens, each with the next one as its label; or real ones:
  -- data = mt.data.text{file = "input.txt", window = 128},

  loss = nn.CrossEntropyLoss(), optimizer = optim.AdamW{lr = 3e-4, betas = {0.9, 0.95}, weight_decay = 0.1},

  -- every combination of these is a cell, and a row of the CSV file (memtide help settings lists what can stand here)
  sweep = {
    {"batch", {4, 16}},
    {"precision", {"fp32", "amp_bf16"}},
    {"checkpoint", {"none", "all"}}, -- forget activations, and compute them again in the backward pass
  },
  steps = 3, warmup = 1,
}
