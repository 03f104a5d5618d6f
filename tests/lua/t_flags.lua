-- Flags are true or false: 0, 1, "no" and "false", which Lua takes for true, are refused wherever a flag is read.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local core = require "memtide.core"
local nn, optim = mt.nn, mt.optim

local dataset = mt.data.random{count = 4, shape = {3}, classes = 2, seed = 1}
local model, loss = nn.Linear(3, 2), nn.CrossEntropyLoss()
local path = os.tmpname()

local trainer <close> = assert(mt.trainer{model = model, input = {3}, loss = loss, optimizer = optim.SGD{lr = 0.1}})
local network = require "memtide.net.nn".network(model, loss, 1, {3})
local device = core.device "cpu"

-- what is read, and a function that reads it from its argument
local flags = {}
for _, name in ipairs{"shuffle", "drop_last"} do
  flags["loader: " .. name] = {name, function(value) return mt.data.loader{dataset, batch = 2, [name] = value} end}
end
for _, name in ipairs{"shuffle", "drop_last", "predict_only", "graph"} do
  flags["experiment: " .. name] = {name, function(value)
    return mt.experiment{name = "flags", model = model, input = {3}, classes = 2, loss = loss, [name] = value}
  end}
end
for _, name in ipairs{"graph", "inplace", "scheduled", "keep_output"} do
  flags["program: " .. name] = {name, function(value)
    return assert(core.compile(network, {[name] = value}, device))
  end}
end
flags["trainer: graph"] = {"graph", function(value)
  return mt.trainer{model = model, input = {3}, loss = loss, graph = value}
end}
flags["save: stored"] = {"stored", function(value) return trainer:save(path, {stored = value}) end}
flags["load: strict"] = {"strict", function(value) return trainer:load(path, {strict = value}) end}
flags["load_state: strict"] = {"strict", function(value) return trainer:load_state(path, {strict = value}) end}
flags["mean: keepdim"] = {"keepdim", function(value)
  return nn.Graph{forward = function(_, x) return x:mean{dim = 1, keepdim = value} end}
end}
flags["a layer's option"] = {"bias", function(value) return nn.Linear(3, 2, {bias = value}) end}
flags["an optimizer's option"] = {"nesterov", function(value)
  return optim.SGD{lr = 0.1, momentum = 0.9, nesterov = value}
end}
flags["a model's option"] = {"bias", function(value) return mt.models.GPT{n_layer = 1, bias = value} end}
flags["a schedule's option"] = {"three_phase", function(value)
  return optim.OneCycleLR(1, {total_steps = 10, cycle_momentum = false, three_phase = value})
end}

local names = {}
for what in pairs(flags) do names[#names + 1] = what end
table.sort(names)
assert(trainer:save(path))
for _, what in ipairs(names) do
  local name, take = table.unpack(flags[what])
  for _, value in ipairs{0, 1, "no", "false"} do
    local good, message = pcall(take, value)
    local text = tostring(message)
    tap.ok(not good and text:find(name, 1, true) and text:find("t_flags.lua:", 1, true),
      ("%s: %s is refused, by name and line"):format(what, type(value) == "string" and '"' .. value .. '"' or value))
  end
  if what ~= "load_state: strict" then -- the file holds weights
    for _, value in ipairs{true, false} do
      local good, message = pcall(take, value)
      tap.ok(good, ("%s: %s is taken"):format(what, value), message)
    end
  end
end
tap.raises("shuffle: expected true or false, found 0", "what was found is told", mt.data.loader,
  {dataset, batch = 2, shuffle = 0})
os.remove(path)
tap.done()
