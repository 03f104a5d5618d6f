-- nn.StochasticDepth drops whole samples or the whole batch in training, and is the identity in evaluation.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local SAMPLES = 64

-- Sample i is the i-th unit vector and the loss the sum of the outputs, so the gradient of weight i is the factor of
-- sample i.
-- With lr = 1 - p a weight falls by 1 in each step that keeps its sample, by 0 in others.
local function open(p, mode, more)
  local options = {model = nn.Sequential{nn.Linear(SAMPLES, 1, false), nn.StochasticDepth(p, mode)},
    input = {SAMPLES}, batch = SAMPLES, loss = nn.L1Loss{reduction = "sum"}, optimizer = optim.SGD{lr = 1 - p},
    seed = 3}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.trainer(options)
end

local units, targets, zeros = {}, {}, {}
for i = 1, SAMPLES * SAMPLES do units[i] = 0 end
for i = 1, SAMPLES do
  units[(i - 1) * SAMPLES + i] = 1
  targets[i] = -1e6 -- each output is above it
  zeros[i] = 0
end

-- What each of `steps` steps keeps, as "1 0 0 1 ...", and the share of all samples that is kept.
local function kept(trainer, steps)
  local masks, count, whole = {}, 0, true
  trainer:write("0.weight", zeros)
  local before = zeros
  for step = 1, steps do
    trainer:step(units, targets)
    local after, mask = trainer:read("0.weight"), {}
    for i = 1, SAMPLES do
      mask[i] = before[i] - after[i]
      whole = whole and (mask[i] == 0 or mask[i] == 1)
      count = count + mask[i]
      mask[i] = ("%g"):format(mask[i])
    end
    masks[step], before = table.concat(mask, " "), after
  end
  tap.ok(whole, "a sample is dropped, or divided by the survival rate")
  return masks, count / (steps * SAMPLES)
end

local rows, share = kept(open(0.25, "row"), 60)
tap.near(share, 0.75, 0.03, "mode row keeps 1 - p of the samples")
tap.ok(rows[1]:find "1" and rows[1]:find "0" and rows[1] ~= rows[2], "samples of a batch differ, and so do steps")
local batches, batch_share = kept(open(0.25, "batch"), 200)
tap.near(batch_share, 0.75, 0.1, "mode batch keeps 1 - p of the batches")
local mixed = 0
for _, mask in ipairs(batches) do if mask:find "1" and mask:find "0" then mixed = mixed + 1 end end
tap.is(mixed, 0, "and all samples of one")

-- of p = 0.5, whose factor 2 is a number of every type
local function halves(more) return table.concat(kept(open(0.5, "row", more), 3), "\n") end
local first = halves()
local function same(more, what) tap.is(halves(more), first, what) end
same({}, "the same seed draws the same")
tap.ok(halves{seed = 4} ~= first, "another seed does not")

-- the second layer's gradient reads what is dropped
local function losses(checkpoint)
  local block = nn.Checkpoint(nn.Sequential{nn.Tanh(), nn.StochasticDepth(0.5, "row"), nn.Linear(8, 8), nn.Tanh()})
  local trainer = open(0.5, "row", {model = nn.Sequential{nn.Linear(SAMPLES, 8), block, nn.Linear(8, 1)},
    checkpoint = checkpoint, optimizer = optim.SGD{lr = 0.001}})
  local list = {}
  for step = 1, 4 do list[step] = trainer:step(units, zeros) end
  return table.concat(list, " ")
end
tap.is(losses "marked", losses "none", "a recomputation draws the same")

same({precision = "amp_bf16"}, "mixed precision draws the same")

tap.is(select(2, kept(open(0, "row"), 2)), 1, "p = 0 keeps all")
tap.is(select(2, kept(open(1, "batch", {optimizer = optim.SGD{lr = 1}}), 2)), 0, "p = 1 keeps none")

-- ---- evaluation
local trainer = open(0.5, "row")
local weights, outputs = trainer:read("0.weight"), trainer:predict(units)
tap.is(table.concat(outputs, " "), table.concat(weights, " "), "evaluation is the identity")

-- ---- options
tap.raises('option "p" is required', "p has no default", nn.StochasticDepth)
tap.raises('option "mode" is required', "nor has mode", nn.StochasticDepth, 0.5)
tap.raises('expected "batch" or "row"', "another mode", nn.StochasticDepth, 0.5, "column")

tap.done()
