-- The setting loss_chunks: the same training in less memory. What is predicted is measured, in every combination with
-- precision, checkpointing, accumulation and offloading, with a trained, a frozen and a tied head; in evaluation; and
-- where there is nothing to do.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local device = assert(core.device(os.getenv "TEST_DEVICE" or "cpu"))
local BATCH, STEPS, WORDS = 3, 9, 50

local function model(head)
  local made = mt.models.Llama{vocab_size = WORDS, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1,
    num_attention_heads = 2, tie_word_embeddings = head == "tied"}
  if head == "frozen" then made.lm_head:freeze() end
  return made
end

local function data(step)
  local x, t = {}, {}
  for i = 1, BATCH * STEPS do x[i], t[i] = (5 * i + step) % WORDS, i % 7 == 0 and -100 or (3 * i + step) % WORDS end
  return x, t
end

-- Three steps: their losses, and the peak as predicted and as measured.
local function train(network, settings)
  local all = {optimizer = optim.SGD{lr = 0.1, momentum = 0.9}}
  for key, value in pairs(settings) do all[key] = value end
  local program = assert(core.compile(network, all, device))
  local runtime <close> = assert(core.runtime{programs = {program}, seed = 3})
  local losses, times = {}, all.accumulate or 1
  for step = 1, 3 do
    local x, t = {}, {}
    for m = 1, times do
      local more, labels = data(times * step + m)
      table.move(more, 1, #more, #x + 1, x)
      table.move(labels, 1, #labels, #t + 1, t)
    end
    losses[step] = assert(runtime:step(1, x, t))
  end
  local predicted = program:predict{steps = 3}
  return {losses = losses, peak = runtime:memory().peak.bytes, predicted = predicted.peak.bytes, program = program}
end

local function has_op(program, kind)
  for _, op in ipairs(program:ops()) do if op.kind == kind then return true end end
  return false
end

local TOLERANCE = {fp32 = 2e-6, amp_bf16 = 2e-3, bf16 = 1e-2}
for _, head in ipairs{"trained", "frozen", "tied"} do
  local network = assert(core.network(model(head), nn.CrossEntropyLoss(), {BATCH, STEPS}))
  for precision, tolerance in pairs(TOLERANCE) do
    for k = 0, 7 do
      local settings = {precision = precision, accumulate = k % 2 == 0 and 1 or 3,
        checkpoint = k // 2 % 2 == 0 and "none" or "all", offload = k // 4 == 0 and "none" or "all"}
      local name = ("%s head, %s, accumulate %d, checkpoint %s, offload %s"):format(head, precision, settings.accumulate,
        settings.checkpoint, settings.offload)
      local whole = train(network, settings)
      settings.loss_chunks = 3
      local parts = train(network, settings)
      tap.ok(has_op(parts.program, "linear_cross_entropy_dx"), name .. ": one op makes loss and gradients")
      for step = 1, 3 do
        tap.near(parts.losses[step], whole.losses[step], tolerance * whole.losses[step], name .. ": loss of step " .. step)
      end
      tap.is(parts.peak, parts.predicted, name .. ": the peak is the predicted one")
    end
  end
end

-- The logits, and their gradient, are the peak of a step with a large vocabulary.
local large = assert(core.network(nn.Sequential{nn.Linear(16, 8), nn.Linear(8, 4000)}, nn.CrossEntropyLoss(), {256, 16}))
local function peak(settings)
  settings.optimizer = optim.SGD{lr = 0.1}
  return assert(core.compile(large, settings, device)):predict{steps = 1}.peak.bytes
end
local logits = 256 * 4000 * 4
tap.ok(peak{} > logits, "the logits as a whole")
tap.ok(peak{loss_chunks = 8} < peak{} - logits // 2, "an eighth of them at a time")
tap.ok(peak{loss_chunks = 8, mode = "eval"} < peak{mode = "eval"} - logits // 2, "in evaluation, too")
tap.is(peak{loss_chunks = 8, keep_output = true}, peak{keep_output = true}, "an output that is kept is there as a whole")

-- A network of one layer: its logits and their loss are made beside their gradients, and nothing of it is a forward pass.
local function losses_of_one(settings)
  local one = assert(mt.trainer{model = nn.Linear(6, 5), input = {6}, batch = 4, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.5},
    loss_chunks = settings[1], checkpoint = settings[2], offload = settings[3], seed = 2})
  local _ <close>, x, found = one, {}, {}
  for i = 1, 24 do x[i] = math.cos(i * i) end
  for step = 1, 3 do found[step] = assert(one:step(x, {0, 1, 4, 2})) end
  tap.is(one:memory().peak.bytes, one:predicted(3).peak.bytes, "of one layer: the peak is the predicted one")
  return found
end
local of_one = losses_of_one{1}
for _, more in ipairs{{2}, {3, "all"}, {2, "sqrt"}, {2, "selective"}, {2, "none", "all"}, {2, 1 << 20}, {2, "none", 1 << 20}} do
  for step, loss in ipairs(losses_of_one(more)) do tap.near(loss, of_one[step], 1e-6, "of one layer: loss of step " .. step) end
end

local plain = {optimizer = optim.SGD{lr = 0.1}, loss_chunks = 8}
local other = assert(core.network(nn.Linear(16, 8), nn.MSELoss(), {4, 16}))
local found = assert(core.compile(other, plain, device)):dump()
plain.loss_chunks = 1
tap.is(found, assert(core.compile(other, plain, device)):dump(), "nothing to do: the same step")

local fine, problem = pcall(core.compile, other, {optimizer = optim.SGD{lr = 0.1}, loss_chunks = 0}, device)
tap.ok(not fine and tostring(problem):find("loss_chunks: expected a whole number from 1 to 1048576, found 0", 1, true),
  "no part is none")
tap.done()
