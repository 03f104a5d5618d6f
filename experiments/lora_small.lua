-- Fine-tuning that really runs: a small Llama learns to go on with sequences that count up by 1 to 4 (the base), and from there to
-- go on with sequences that count down, by training all its parameters, by LoRA, and by QLoRA. Each method's loss, time and memory.
--
--     memtide experiments/lora_small.lua [STEPS OF THE BASE] [STEPS OF EACH METHOD]
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local base_steps, steps = ...
base_steps, steps = math.tointeger(base_steps or 300), math.tointeger(steps or 150)
local NUMBERS, TOKENS, BATCH = 64, 32, 16

local function Llama()
  return mt.models.Llama{vocab_size = NUMBERS, hidden_size = 128, intermediate_size = 352, num_hidden_layers = 4,
    num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = TOKENS}
end

local random = 1
local function below(n)
  random = random * 6364136223846793005 + 1442695040888963407
  return (random >> 33) % n
end

-- BATCH sequences that go by 1 to 4 in that direction, modulo NUMBERS, and what follows each number
local function batch(direction)
  local x, y = {}, {}
  for _ = 1, BATCH do
    local at, by = below(NUMBERS), direction * (1 + below(4))
    for _ = 1, TOKENS do
      x[#x + 1], at = at, (at + by) % NUMBERS
      y[#y + 1] = at
    end
  end
  return x, y
end

local function trainer(model, lr)
  return assert(mt.trainer{model = model, input = {TOKENS}, batch = BATCH, loss = nn.CrossEntropyLoss(),
    optimizer = optim.AdamW{lr = lr}, seed = 1})
end

local function learn(run, count, direction)
  local seconds = {}
  for i = 1, count do
    local _, time = assert(run:step(batch(direction)))
    seconds[i] = time
  end
  table.sort(seconds)
  return 1e3 * seconds[(#seconds + 1) // 2]
end

local function loss_of(run, direction)
  random = 7 -- the same sequences for all
  return (assert(run:evaluate(batch(direction))))
end

local path = os.tmpname()
local base = trainer(Llama(), 1e-3)
learn(base, base_steps, 1)
assert(base:save(path))
print(("base: loss %.3f counting up, %.3f counting down"):format(loss_of(base, 1), loss_of(base, -1)))
base:close()

local ADAPTERS = {r = 16, lora_alpha = 32, target_modules = "all-linear"}
local METHODS = {
  {"full", 1e-3, function(model) return model end},
  {"LoRA", 2e-3, function(model) return mt.peft.lora(model, ADAPTERS) end},
  {"QLoRA", 2e-3, function(model) return mt.peft.lora(mt.peft.quantize(model, {load_in_4bit = true, bnb_4bit_quant_type = "nf4",
    bnb_4bit_use_double_quant = true}), ADAPTERS) end},
}
local results = {}
for i, method in ipairs(METHODS) do
  local run = trainer(method[3](Llama()), method[2])
  assert(run:load(path))
  local before, ms = loss_of(run, -1), learn(run, steps, -1)
  local all, frozen = run.network:parameters()
  local found = {name = method[1], before = before, after = loss_of(run, -1), ms = ms, peak = run:memory().peak.bytes,
    trained = all - frozen}
  results[i] = found
  print(("%-5s  loss %.3f -> %.3f, %7d parameters trained, %5.1f ms a step, peak %8d bytes"):format(found.name, found.before,
    found.after, found.trained, found.ms, found.peak))
  run:close()
end
os.remove(path)
return results
