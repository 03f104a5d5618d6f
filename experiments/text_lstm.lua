-- An LSTM learns to tell sentences about memory from sentences about time, by their words.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local steps, T = ... or 60, 6
steps = math.tointeger(steps)
local sentences = {
  {"the batch needs more bytes today", 0}, {"all weights lie in one arena", 0},
  {"gradients fill the whole memory again", 0}, {"a smaller batch saves many bytes", 0},
  {"the arena holds weights and gradients", 0}, {"more memory for a larger batch", 0},
  {"one step takes many seconds today", 1}, {"the clock runs for all steps", 1},
  {"a faster step saves whole hours", 1}, {"an hour needs more seconds again", 1},
  {"time runs in steps and hours", 1}, {"the larger clock takes one hour", 1},
}

local words, x, labels = 0, {}, {}
local number = {}
for i, sentence in ipairs(sentences) do
  for word in sentence[1]:gmatch "%a+" do
    if not number[word] then words, number[word] = words + 1, words end
    x[#x + 1] = number[word]
  end
  labels[i] = sentence[2]
end

local trainer = assert(mt.trainer{
  model = mt.models.TextClassifier{vocab_size = words, embedding_dim = 16, hidden_size = 24, num_classes = 2},
  input = {T}, classes = 2, batch = #sentences, loss = nn.CrossEntropyLoss(),
  optimizer = optim.Adam{lr = 1e-2}, seed = 1,
})
local loss
for step = 1, steps do
  loss = assert(trainer:step(x, labels))
  if step % 20 == 0 then print(("step %d: loss %.4f"):format(step, loss)) end
end
local right = trainer:correct(x, labels)
print(("%d of %d sentences are right; peak %d bytes"):format(right, #sentences, trainer:memory().peak.bytes))
return loss
