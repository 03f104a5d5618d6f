-- Several networks that are trained together, as a GAN's two or a student and its teacher: what each of them says, and
-- its network. All run in one runtime, where parameters of one name are one parameter and are counted once. For mt.joint
-- and for experiments with `trainings`.
local core = require "memtide.core"
local lr_schedule = require "memtide.net.lr_schedule"
local nn = require "memtide.net.nn"
local optim = require "memtide.net.optim"
local inputs = require "memtide.net.inputs"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"

local trainings = {}

local MOST_SCOPE = 24 -- characters of a name, which begins those of the optimizer's counters
trainings.KEYS = {"model", "input", "loss", "frozen"} -- of each, beside settings

-- {[layer] = is it frozen?} for every layer of the tree
local function frozen_in(layer, found)
  found[layer] = layer.frozen or false
  for _, child in ipairs(layer) do frozen_in(child, found) end
  return found
end

-- The network for batches of that many samples, in which the layers of the list `frozen` are not trained. The layers
-- themselves do not change.
local function network_of(given, batch)
  local before = frozen_in(given.model, {})
  for _, layer in ipairs(given.frozen or {}) do layer:freeze() end
  local good, network = pcall(nn.network, given.model, given.loss, batch, given.input)
  for layer, frozen in pairs(before) do layer.frozen = frozen or nil end
  return good and network or error(network, 0)
end

-- Raises at the script's line unless the name and what is said under it are right. place: what messages call it; keys:
-- what may be said
local function check(place, name, given, keys)
  local function expect(good, key, expected)
    if not good then util.fail("%s: %s: expected %s", place, key, expected) end
  end
  util.check_type(place, given, "table")
  util.check_keys(place, given, keys)
  if type(name) ~= "string" or #name > MOST_SCOPE or not name:match "^[%a_][%w_]*$" then
    util.fail("%s: name: expected a name of at most %d letters, found %s", place, MOST_SCOPE, tostring(name))
  end
  expect(nn.is_layer(given.model), "model", "a layer")
  expect(given.loss == nil or nn.is_loss(given.loss), "loss", "a loss")
  expect(inputs.is(given.input), "input", inputs.EXPECTED)
  expect(given.frozen == nil or type(given.frozen) == "table", "frozen", "a list of layers")
  for _, layer in ipairs(given.frozen or {}) do expect(nn.is_layer(layer), "frozen", "a list of layers") end
  expect(given.schedule == nil or lr_schedule.is(given.schedule), "schedule", "a schedule such as optim.StepLR(30)")
end

-- The settings: its own, else those of all. Without a loss it evaluates.
local function values_of(place, given, common)
  local values = {}
  for _, setting in ipairs(settings.list) do
    local own, name = given[setting.name], setting.name
    if own == nil then values[name] = common[name] else values[name] = settings.check(core.where(), place, name, own) end
  end
  settings.check_one_rank(place, values)
  if not given.loss then values.mode = "eval" end
  return values
end

-- One training: {name, model, loss, given, values, network, trains}. common: the settings of all
function trainings.new(place, name, given, common, keys)
  check(place, name, given, keys)
  local values = values_of(place, given, common)
  local trains = values.mode ~= "eval"
  if trains then optim.check_model(values.optimizer, given.model) end
  return {name = name, model = given.model, loss = given.loss, given = given, values = values, trains = trains,
    network = network_of(given, values.batch)}
end

-- What core.compile takes for its program; with one.parts its step can run in parts.
function trainings.settings(one)
  local all = one.trains and settings.for_core(one.values) or settings.for_evaluation(one.values)
  all.scope, all.scheduled, all.no_loss = one.name, true, one.loss == nil
  if one.parts then all.parts, all.keep_output = true, true end
  return all
end

local function shapes_of(network)
  local found = {}
  for _, param in ipairs(network:params()) do found[param.name] = table.concat(param.shape, "x") end
  return found
end

-- Do two models have a layer in common?
local function meet(a, b)
  local of_a = frozen_in(a, {})
  for layer in pairs(frozen_in(b, {})) do if of_a[layer] ~= nil then return true end end
  return false
end

-- Raises if the list cannot share a runtime: there are none or too many, or two would share a parameter that is not the
-- same one.
function trainings.check_together(place, list)
  if #list < 1 or #list > core.most_programs then
    util.fail("%s: expected 1 to %d, found %d", place, core.most_programs, #list)
  end
  for i, one in ipairs(list) do
    local shapes = shapes_of(one.network)
    for k = 1, i - 1 do
      local other, common = list[k], meet(list[k].model, one.model)
      for _, param in ipairs(other.network:params()) do
        local shape = shapes[param.name]
        if shape and (not common or shape ~= table.concat(param.shape, "x")) then
          util.fail('%s: %s and %s both have a parameter %s, which would be one parameter, but %s: name their layers, ' ..
            'as in nn.Sequential{{"%s", model}}', place, other.name, one.name, param.name,
            common and "its shapes differ" or "they have no layer in common", one.name)
        end
      end
    end
  end
end

-- What is there of several networks in one runtime, in the form of one of them: layers(), params(), buffers(), parameters().
function trainings.union(list)
  local union = {}
  local function all(what)
    local found, known = {}, {}
    for _, one in ipairs(list) do
      for _, tensor in ipairs(one.network[what](one.network)) do
        if not known[tensor.name] then
          known[tensor.name], found[#found + 1] = tensor, tensor
        elseif tensor.trainable then known[tensor.name].trainable = true end
      end
    end
    return found
  end
  function union.layers()
    local found = {}
    for _, one in ipairs(list) do
      local layers = one.network:layers()
      table.move(layers, 1, #layers, #found + 1, found)
    end
    return found
  end
  function union.params() return all "params" end
  function union.buffers() return all "buffers" end
  function union.parameters()
    local n, frozen = 0, 0
    for _, param in ipairs(all "params") do
      n = n + param.elements
      if not param.trainable then frozen = frozen + param.elements end
    end
    return n, frozen
  end
  return union
end

return trainings
