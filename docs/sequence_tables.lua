-- The predicted table of docs/ranks.md on sequence parallelism, in Markdown: memtide docs/sequence_tables.lua layer
local mt = require "memtide"
local common = dofile "docs/tables.lua"

local tables = {}

local S, B, H, A = 512, 2, 1024, 16 -- the paper's s, b, h, a: steps, samples, features, heads

-- Bytes of a layer's activations, of 16 bits and without the scores of attention, in units of sbh, on t ranks (Korthikanti et al.
-- 2022, equations 2 and 4, their last term left out)
local FORMULAS = {
  [false] = function(t) return 10 + 24 / t end,
  [true] = function(t) return 34 / t end,
}

-- A GPT of so many layers on t ranks -> bytes of activations at the peak, which comes with the loss
local function activations(layers, t, sequence)
  local rows = common.predicted(mt.experiment{
    name = "layer", model = mt.models.GPT{block_size = S, vocab_size = 64, n_layer = layers, n_head = A, n_embd = H, dropout = 0.1},
    input = {S}, batch = B, loss = mt.nn.CrossEntropyLoss(), optimizer = mt.optim.AdamW{lr = 1e-4}, precision = "master_bf16",
    recompute_light = false, -- as the paper counts
    world = t, mesh = t > 1 and {tensor = t} or nil, sequence_parallel = sequence,
  })
  return rows[1].activations_bytes
end

local function layer(t, sequence) return (activations(6, t, sequence) - activations(4, t, sequence)) / 2 / (S * B * H) end

function tables.layer()
  local lines = {{"ranks", "tensor, formula", "predicted", "with the sequence, formula", "predicted"}}
  for _, t in ipairs{1, 2, 4, 8} do
    local line = {tostring(t)}
    for _, sequence in ipairs{false, true} do
      line[#line + 1] = ("%.2f"):format(FORMULAS[sequence](t))
      line[#line + 1] = t == 1 and sequence and "" or ("%.2f"):format(layer(t, sequence))
    end
    lines[#lines + 1] = line
  end
  common.put(lines)
end

common.run(tables, ...)
