-- Parameters that are updated within the backward pass: the same numbers bit for bit as after it, in less memory, and
-- only where one parameter's update depends on no other's gradient.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local device = assert(core.device "cpu")

local tied = nn.Linear(256, 160, {bias = false})
local NETWORKS = {
  {"chain", nn.Sequential{nn.Linear(160, 256), nn.ReLU(), nn.Linear(256, 160), nn.Tanh(), nn.Linear(160, 256),
    nn.Linear(256, 160), nn.Linear(160, 5)}},
  {"a weight that is read twice", nn.Sequential{nn.Linear(160, 256), tied, nn.Linear(160, 256), tied,
    nn.Linear(160, 5)}},
}
local loss = nn.CrossEntropyLoss()

local function compiled(model, settings)
  local network = assert(core.network(model, loss, {8, 160}))
  return assert(core.compile(network, settings, device)), network
end

local updating = {sgd = true, adam = true, rmsprop = true, adagrad = true, adamax = true, lion = true, adadelta = true,
  adafactor = true, radam = true, nadam = true, adam8bit = true}

-- Where updates stand among the ops, and whether an op after one still reads or makes what it has used up
local function updates(program)
  local ops, within, last_dx, wrong = program:ops(), 0, 0, 0
  for i, op in ipairs(ops) do if op.kind:find "_dw$" or op.kind:find "_dx$" then last_dx = i end end
  for i, op in ipairs(ops) do
    if updating[op.kind] then
      within = within + (i < last_dx and 1 or 0)
      for k = i + 1, #ops do
        for _, name in ipairs(ops[k].inputs) do
          if name == op.outputs[1] or name == op.inputs[1] then wrong = wrong + 1 end
        end
      end
    end
  end
  return within, wrong
end

local function run(model, settings)
  local program, network = compiled(model, settings)
  local runtime <close> = assert(core.runtime{programs = {program}, allocator = "planned", seed = 3})
  local x, t, all = {}, {}, {}
  for step = 1, 3 do
    for i = 1, 8 * 160 do x[i] = math.sin(0.377 * i + step) end
    for i = 1, 8 do t[i] = (i + step) % 5 end
    all[#all + 1] = assert(runtime:step(1, x, t))
  end
  for _, param in ipairs(network:params()) do
    table.move(runtime:read(param.name, 1), 1, param.elements, #all + 1, all)
  end
  return all, runtime:memory().peak.bytes
end

local function same(a, b)
  for i, value in ipairs(a) do if value ~= b[i] then return false end end
  return #a == #b and #a > 1000
end

for _, pair in ipairs(NETWORKS) do
  local name, model = pair[1], pair[2]
  for _, settings in ipairs{{optimizer = optim.Adam{lr = 1e-3}}, {optimizer = optim.SGD{lr = 0.1, momentum = 0.9}},
    {optimizer = optim.AdamW{lr = 1e-3, amsgrad = true}, precision = "master_bf16"},
    {optimizer = optim.RMSprop{centered = true, momentum = 0.5}}, {optimizer = optim.Adagrad{lr_decay = 0.1}},
    {optimizer = optim.Adamax()}, {optimizer = optim.Lion()}, {optimizer = optim.RAdam()},
    {optimizer = optim.NAdam()}, {optimizer = optim.Adadelta{lr = 0.1}},
    {optimizer = optim.Adafactor()}, {optimizer = optim.AdamW8bit{lr = 1e-3}},
    {optimizer = optim.Adam8bit{amsgrad = true, block_size = 64}, precision = "master_bf16"},
    {optimizer = optim.Adam{lr = 1e-3}, precision = "amp_bf16", checkpoint = "all"}} do
    local what = ("%s, %s, %s"):format(name, settings.optimizer, settings.precision or "fp32")
    settings.sliced_updates = false -- which makes the sums of other products
    local within, wrong = updates(compiled(model, settings))
    tap.ok(within > 0 and wrong == 0, ("%s: %d updates come early, none too early"):format(what, within))
    local early, less = run(model, settings)
    settings.keep_gradients = true
    tap.is(updates(compiled(model, settings)), 0, what .. ": gradients that are kept are there at the end")
    local late, more = run(model, settings)
    tap.ok(same(early, late), what .. ": the same numbers, bit for bit")
    tap.ok(less < more, ("%s: %d bytes instead of %d"):format(what, less, more))
  end
end

for what, settings in pairs{["a norm that is clipped"] = {optimizer = optim.SGD{lr = 0.1, clip_norm = 1}},
  ["an overflow that skips the update"] = {precision = "amp_fp16"}, ["several micro-batches"] = {accumulate = 2}} do
  settings.optimizer = settings.optimizer or optim.Adam{lr = 1e-3}
  tap.is(updates(compiled(NETWORKS[1][2], settings)), 0, what .. ": all gradients first")
end

-- A device takes small updates together where they are neighbours.
local kinds = {}
for _, op in ipairs(compiled(NETWORKS[1][2], {optimizer = optim.AdamW8bit{clip_norm = 1}}):ops()) do
  kinds[#kinds + 1] = updating[op.kind] and op.kind or nil
end
tap.is(table.concat(kinds, " "), ("adam8bit "):rep(4) .. ("adam "):rep(5) .. "adam",
  "states of 8 bits first, then all of 32 bits")
tap.done()
