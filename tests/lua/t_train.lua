-- Real training: a network learns the generated digits, an LSTM and a GPT learn a text by heart, a GAN's losses stay
-- finite, a student learns from its teacher, a frozen network is fine-tuned. Short, unless TRAIN is "full" (make train-check).
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local digits = require "memtide.digits"
local mt = require "memtide"

local full = os.getenv "TRAIN" == "full"
local folder = os.tmpname()
os.remove(folder)
digits.write(folder, full and 6000 or 600, full and 1000 or 200, 1)

-- An experiment's script with these arguments, without what it prints
local function run(name, ...)
  local environment = setmetatable({print = function() end}, {__index = _G})
  return assert(loadfile("experiments/" .. name .. ".lua", "t", environment))(...)
end

-- ---- SimpleCNN on the digits
local function accuracy(epochs)
  local trainer = assert(mt.trainer{model = mt.models.SimpleCNN(), input = {1, 28, 28}, classes = 10, batch = 50,
    seed = 1, loss = mt.nn.CrossEntropyLoss(), optimizer = mt.optim.Adam{lr = 2e-3},
    schedule = mt.optim.CosineAnnealingLR(epochs * (full and 120 or 12))})
  local loader = mt.data.loader{mt.data.mnist(folder, "train"), batch = 50, shuffle = true, seed = 1}
  for _ = 1, epochs do for x, y in loader:epoch() do assert(trainer:step(x, y)) end end
  local _, found = trainer:evaluate(mt.data.loader{mt.data.mnist(folder, "test"), batch = 50})
  trainer:close()
  return found
end
local reached, wanted = accuracy(full and 10 or 4), full and 0.97 or 0.6
tap.ok(reached >= wanted, ("SimpleCNN: %.1f %% of test digits are right, of %g %%"):format(100 * reached, 100 * wanted))

-- ---- texts
local lstm = run("text_lstm", full and 60 or 20)
tap.ok(lstm < 0.1, ("the LSTM knows its sentences: loss %.4f"):format(lstm))
local gpt = run("gpt", full and 400 or 60)
tap.ok(gpt < (full and 0.1 or 2), ("the GPT knows its text%s: loss %.4f"):format(full and "" or " in part", gpt))

-- ---- the GAN
local function trained(name, ...)
  return cell.run(cell.compile(cell.build(run(name, ...):cells()[1])), function() end)
end
local gan, good = trained("gan", folder, full and 200 or 6), true
for _, loss in ipairs(gan.losses) do good = good and loss == loss and math.abs(loss) < 100 end
tap.ok(gan.status == "ok" and good and #gan.losses == (full and 200 or 6), "the GAN's losses are finite")

-- ---- distillation
local losses = trained("distill", folder).losses
tap.ok(losses[#losses] < losses[1] / 3, ("the student learns what the teacher answers: loss %.4f, from %.4f"):format(
  losses[#losses], losses[1]))

-- ---- fine-tuning
local before, after, peak, less = run("fine_tune", folder, full and 3 or 8)
tap.ok(less < 0.8 * peak, ("a network of which only the last layer is trained needs %d bytes of %d"):format(less, peak))
tap.ok(after > (full and 0.6 or 0.2), ("and learns: %.1f %% of ten digits, from %.1f %% of five"):format(100 * after,
  100 * before))

os.execute(("rm -r '%s'"):format(folder))
tap.done()
