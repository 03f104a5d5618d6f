-- memtide stubs: every layer, optimizer, schedule, setting, key and model is in the annotations, with its arguments and
-- their defaults; a list that grows makes them grow.
local claims = require "memtide.sweep.claims"
local core = require "memtide.core"
local data = require "memtide.net.data"
local experiment = require "memtide.sweep.experiment"
local lr_schedule = require "memtide.net.lr_schedule"
local model = require "memtide.net.model"
local mt = require "memtide"
local settings = require "memtide.net.settings"
local specs = require "memtide.net.specs"
local stubs = require "memtide.cli.stubs"
local tap = dofile "tests/tap.lua"

-- The annotations as classes {[class] = {exact =, [field] = the rest of its line}} and functions {[place] = parameters}
local function read(text)
  local classes, functions, class = {}, {}, nil
  for line in text:gmatch "[^\n]+" do
    local exact, name = line:match "^%-%-%-@class (%(?e?x?a?c?t?%)?) ?([%w_.]+)$"
    local field, rest = line:match "^%-%-%-@field (%S+) (.*)$"
    local place, parameters = line:match "^function ([%w_.]+)%((.*)%) end$"
    if name then
      tap.ok(not classes[name], name .. " is there once")
      class = {exact = exact == "(exact)"}
      classes[name] = class
    elseif field and class then class[field:gsub("%?$", ""):gsub('^%["(.*)"%]$', "%1")] = rest
    elseif place then functions[place] = parameters end
  end
  return classes, functions
end

local text = stubs.annotations()
local loaded, message = load(text, "=memtide.lua", "t")
tap.ok(loaded, "the annotations are Lua: " .. tostring(message))
tap.is(type(loaded().nn.Conv2d), "function", "and make a table")
tap.ok(not text:find("[^\n]\n%-%-%-@class [^\n]*\n%-%-%-@class %(exact"), "a class ends before the next")
local classes, functions = read(text)

-- ---- layers, losses, optimizers: names, order and defaults of their specs

local function check_spec(module, kind)
  local class, place = classes[("memtide.%s.%s"):format(module, kind.name)], module .. "." .. kind.name
  tap.ok(class and functions[place], place .. " is there")
  if not class or not functions[place] then return end
  local positional, by_name = {}, false
  for word in kind.spec:gmatch "%S+" do
    local name, default = word:match "^([^:*]+):[^=]*=?(.*)$"
    if not name then by_name = true
    else
      tap.ok(class[name], ("%s takes %s"):format(place, name))
      if default ~= "" then tap.has(class[name] or "", "default " .. default, ("%s: %s"):format(place, name)) end
      if not by_name then positional[#positional + 1] = name == "end" and "end_" or name end
    end
  end
  local open = kind.name == "Graph" or kind.name == "Rule"
  tap.is(class.exact, not open, place .. ": other names are wrong")
  tap.is(class["[string]"] ~= nil, not open, place .. ": also where the table is an argument")
  if kind.role and kind.role:find "[ch]" then return tap.is(functions[place], "layers", place .. " takes layers") end
  if kind.role == "f" then table.insert(positional, 1, "forward") end
  if kind.name ~= "Rule" then
    positional[#positional + 1] = "options"
    tap.is(functions[place], table.concat(positional, ", "), place .. ": arguments in place")
  end
end

for _, kind in ipairs(core.layer_kinds()) do check_spec("nn", kind) end
for _, kind in ipairs(core.optimizer_kinds()) do check_spec("optim", kind) end
for _, name in ipairs{"TransformerEncoderLayer", "TransformerDecoderLayer"} do
  check_spec("nn", {name = name, spec = specs.of[name]})
end
for name, value in pairs(mt.nn) do
  if type(value) == "function" then tap.ok(functions["nn." .. name], "nn." .. name .. " is there") end
end
for name, value in pairs(mt.optim) do
  if type(value) == "function" then tap.ok(functions["optim." .. name], "optim." .. name .. " is there") end
end
tap.is(functions["nn.max_pool2d"], "x, kernel_size, stride, padding, dilation, options", "a function takes a value first")

-- ---- what a layer makes of its input: the shapes are PyTorch's

for _, example in ipairs{"Conv2d(4, 6, 3) of (2, 4, 8, 8) gives (2, 6, 6, 6)", "Linear(4, 6) of (2, 4) gives (2, 6)",
  "Flatten() of (2, 4, 8, 8) gives (2, 256)", "LSTM(4, 6) of (2, 5, 4) gives (2, 5, 6)",
  "ConvTranspose1d(4, 6, 3) of (2, 4, 8) gives (2, 6, 10)", "Embedding(4, 6) of (2, 4) gives (2, 4, 6)",
  "MaxPool2d(4) of (2, 4, 8, 8) gives (2, 4, 2, 2)"} do
  tap.has(text, "; " .. example .. "\n", example)
end
local _, examples = text:gsub(" gives %(", "")
tap.ok(examples >= 75, "most layers have an example: " .. examples)

for name, row in pairs(lr_schedule.kinds) do
  for _, argument in ipairs(row[1]) do
    tap.ok(classes["memtide.optim." .. name][argument], ("optim.%s takes %s"):format(name, argument))
  end
end

-- ---- keys: those that the program's own messages list

local function known_to(make)
  local _, problem = pcall(make, {no_such_key = 1})
  local list = {}
  for name in problem:match("known: (.*)$"):gmatch "[^, ]+" do list[#list + 1] = name end
  return list
end

for class, make in pairs{["memtide.Experiment"] = mt.experiment, ["memtide.Trainer.options"] = mt.trainer,
  ["memtide.Joint"] = mt.joint, ["memtide.data.random"] = mt.data.random, ["memtide.data.text"] = mt.data.text} do
  local found = known_to(make)
  tap.ok(#found > 3, class .. ": the message lists the keys")
  for _, key in ipairs(found) do tap.ok(classes[class][key], ("%s has %s"):format(class, key)) end
  tap.ok(not classes[class].no_such_key and classes[class].exact, class .. " has no others")
end
for _, key in ipairs(claims.keys) do tap.ok(classes["memtide.Claim"][key], "a claim has " .. key) end
tap.is(classes["memtide.Case"].exact, false, "a case has keys of its own")
for _, setting in ipairs(settings.list) do
  for _, class in ipairs{"memtide.Experiment", "memtide.Case", "memtide.Trainer.options"} do
    local line = classes[class][setting.name] or ""
    tap.has(line, setting.text:gsub("%s+", " "), ("%s: %s says what it is"):format(class, setting.name))
    for _, word in ipairs(setting.words or {}) do
      local shown = (word == "true" or word == "false") and "boolean" or word == "budget" and "" or ('"%s"'):format(word)
      tap.has(line:match "^%S+" or "", shown, ("%s: %s takes %s"):format(class, setting.name, word))
    end
  end
end
local types = {batch = 'number|"max"', optimizer = "memtide.Optimizer", loss = "memtide.Loss", test_data = "memtide.Dataset",
  schedule = "memtide.Schedule", model = "function|memtide.Layer", shuffle = "boolean", workspace_limit = "number|string",
  cases = "memtide.Case[]"}
for key, expected in pairs(types) do
  tap.is(classes["memtide.Experiment"][key]:match "^%S+", expected, key .. ": the type that its check takes")
end

-- ---- models

for name, make in pairs(mt.models) do
  if type(make) == "function" then tap.ok(functions["models." .. name], "models." .. name .. " is there") end
end
for name, defaults in pairs(model.defaults) do
  for key, default in pairs(defaults) do
    local line = classes["memtide.models." .. name][key] or ""
    tap.is(line:match "^%S+", type(default), ("models.%s: %s has its default's type"):format(name, key))
    if type(default) ~= "table" then tap.has(line, tostring(default), ("models.%s: %s: default"):format(name, key)) end
  end
end

-- ---- lists that grow

local function grown(list, key, value, class, field)
  list[key] = value
  local now = read(stubs.annotations())
  list[key] = nil
  tap.ok(now[class] and now[class][field], ("%s grows by %s"):format(class, field))
  tap.ok(not (classes[class] and classes[class][field]), field .. " was not there")
end
grown(claims.keys, #claims.keys + 1, "because", "memtide.Claim", "because")
grown(experiment.keys.experiment, #experiment.keys.experiment + 1, "weather", "memtide.Experiment", "weather")
grown(data.keys.random, #data.keys.random + 1, "colour", "memtide.data.random", "colour")
grown(model.defaults, "Perceptron", {width = 3}, "memtide.models.Perceptron", "width")
grown(lr_schedule.kinds, "SlowLR", {{"slowness"}, {slowness = 2}}, "memtide.optim.SlowLR", "slowness")

tap.done()
