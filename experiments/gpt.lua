-- A small GPT learns a text by heart, letter by letter, as nanoGPT does with Shakespeare's.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local steps, T, batch = ... or 250, 24, 8
steps = math.tointeger(steps)
local text = "the tide rises through the forward pass and falls through the backward pass, again and again. "
local letters, number = {}, {}
text:gsub(".", function(c) if not number[c] then letters[#letters + 1], number[c] = c, #letters end end)

local trainer = assert(mt.trainer{
  model = mt.models.GPT{block_size = T, vocab_size = #letters, n_layer = 2, n_head = 4, n_embd = 64},
  input = {T}, batch = batch, loss = nn.CrossEntropyLoss(), seed = 1,
  optimizer = optim.AdamW{lr = 3e-3, clip_norm = 1}, schedule = optim.LinearWarmup(20, optim.CosineAnnealingLR(steps)),
})
-- `count` pieces of the text with their letters as numbers, and the letter after each.
local function window(from, count)
  local x, y = {}, {}
  for k = 0, count * T - 1 do
    local at = (from + k % T + 11 * (k // T)) % #text + 1
    x[k + 1], y[k + 1] = number[text:sub(at, at)], number[text:sub(at % #text + 1, at % #text + 1)]
  end
  return x, y
end

local loss
for step = 0, steps - 1 do
  local x, y = window(37 * step, batch)
  loss = assert(trainer:step(x, y))
  if (step + 1) % 25 == 0 then print(("step %d: loss %.4f"):format(step + 1, loss)) end
end
local x, likeliest = window(0, batch), "" -- the letter that is thought to follow each of the first piece
local logits = trainer:predict(x)
for k = 0, T - 1 do
  local best = 1
  for v = 2, #letters do if logits[k * #letters + v] > logits[k * #letters + best] then best = v end end
  likeliest = likeliest .. letters[best]
end
print(text:sub(1, T), likeliest)
return loss
