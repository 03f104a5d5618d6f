-- The frontier of memory against time: ResNet-50 and a GPT under falling budgets of bytes. Each budget is held, none
-- costs less than a larger one, and what was predicted is measured.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local models, optim = mt.models, mt.optim
local device = assert(core.device "cpu")
local loss = mt.nn.CrossEntropyLoss()

local NETWORKS = {
  {name = "ResNet50", model = models.ResNet50{num_classes = 10}, input = {8, 3, 64, 64}},
  {name = "GPT", model = models.GPT{block_size = 16, vocab_size = 64, n_layer = 8, n_head = 4, n_embd = 32},
    input = {4, 16}, below = 64},
}

local function compiled(net, budget)
  local network = assert(core.network(net.model, loss, net.input))
  local settings = {optimizer = optim.SGD{lr = 0.01, momentum = 0.9}, checkpoint = budget}
  local program, problem = core.compile(network, settings, device)
  return program, problem, network
end

local function peak(program)
  return assert(program:predict{allocator = "planned", steps = 2, with = {}}).peak.bytes
end

-- The time of what is computed again, in the unit by which the choice is made: 100 GFLOP/s and 50 GB/s
local function again(program)
  local seconds = 0
  for _, op in ipairs(program:ops()) do
    if op.recomputed then seconds = seconds + op.flops / 1e11 + op.traffic / 5e10 end
  end
  return seconds
end

local function run(net, program, network)
  local runtime <close> = assert(core.runtime{programs = {program}, allocator = "planned", seed = 1})
  local _, output = network:shapes()
  local x, t, count = {}, {}, 1
  for _, d in ipairs(net.input) do count = count * d end
  for i = 1, count do x[i] = net.below and (5 * i) % net.below or math.sin(0.377 * i) end
  for i = 1, output[1] do t[i] = (3 * i) % output[2] end
  local first = assert(runtime:step(1, x, t))
  assert(runtime:step(1, x, t))
  return first, runtime:memory().peak.bytes
end

for _, net in ipairs(NETWORKS) do
  local plain, _, network = compiled(net, "none")
  local most = peak(plain)
  local _, problem = compiled(net, 1)
  local least = math.tointeger(tostring(problem):match "least that recomputation reaches is (%d+) bytes")
  tap.ok(least and least < most, net.name .. ": there is something to save")
  local first, measured = run(net, plain, network)
  tap.is(measured, most, net.name .. ": predicted is measured")
  local last = -1
  for i = 12, 0, -1 do
    local budget = least + (most - least) * i // 12
    local program = assert(compiled(net, budget))
    local seconds = again(program)
    local needed = peak(program)
    tap.ok(needed <= budget, ("%s in %d bytes: is held with %d"):format(net.name, budget, needed))
    tap.ok(seconds >= last, ("%s in %d bytes: costs no less than more bytes do"):format(net.name, budget))
    last = seconds
    if i % 6 == 0 then
      local loss_of, found = run(net, program, network)
      tap.is(found, needed, ("%s in %d bytes: predicted is measured"):format(net.name, budget))
      tap.is(loss_of, first, ("%s in %d bytes: the loss is the same, bit for bit"):format(net.name, budget))
    end
  end
  tap.ok(last > 0, net.name .. ": the least bytes cost time")
end
tap.done()
