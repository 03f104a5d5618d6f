-- One step of an imported network beside PyTorch's own: the same weights, the same batch, no dropout.
local core = require "memtide.core"
local nn = require "memtide.net.nn"
local spelling = require "memtide.import.spelling"
local util = require "memtide.base.util"
local weights = require "memtide.net.weights"

local NOISE = {p = true, dropout = true, dropout_p = true} -- options of layers that draw random numbers

local function without_noise(layer)
  for _, option in ipairs(spelling.specs[layer.kind]) do
    if NOISE[option.name] then layer.options[option.name] = 0 end
  end
  for _, child in ipairs(layer) do without_noise(child) end
  return layer
end

-- |a - b|; infinite where one of them is no number, which would compare as small
local function difference(a, b)
  local d = math.abs(a - b)
  return d == d and d or math.huge
end

-- The largest difference of numbers of two lists, beside the largest number of the first one
local function apart(expected, found)
  local largest, size = 0, 0
  if #expected ~= #found then util.fail("import: --check: PyTorch has %d outputs, memtide %d", #expected, #found) end
  for i, want in ipairs(expected) do
    largest, size = math.max(largest, difference(want, found[i])), math.max(size, math.abs(want))
  end
  return largest, size
end

local function norm(list)
  local sum = 0
  for _, x in ipairs(list) do sum = sum + x * x end
  return math.sqrt(sum)
end

-- Of the norms of all parameters' gradients, and of all of them as one list: what differs most, as a part of the norm.
-- What is a millionth of all or less is rounding, and left out of the first.
local function compare_gradients(network, runtime, expected)
  local pairs_of, squares, wanted = {}, 0, 0
  for _, param in ipairs(network:params()) do
    local want = expected[param.name]
    for _, alias in ipairs(param.aliases or {}) do want = want or expected[alias] end
    if want then
      local found = norm(util.must(runtime:read(param.name .. ".grad", 1)))
      squares, wanted = squares + found * found, wanted + want * want
      pairs_of[#pairs_of + 1] = {name = param.name, want = want, found = found}
    elseif param.trainable then
      util.fail("import: --check: PyTorch has no gradient of %s", param.name)
    end
  end
  local worst, name_of, all, total = 0, "none", math.sqrt(squares), math.sqrt(wanted)
  for _, one in ipairs(pairs_of) do
    local part = difference(one.found, one.want) / math.max(one.want, 1e-12)
    if one.want > 1e-6 * total and part > worst then worst, name_of = part, one.name end
  end
  return worst, name_of, all, total
end

-- experiment: of the imported script; path: of the weights of both; expected: {batch, inputs, targets, loss, outputs,
-- gradients = {[name] = norm}}, of the exporter. Returns lines for the user. Raises a failure: the step cannot be run.
return function(experiment, path, expected)
  local network = nn.network(without_noise(experiment.base.model()), experiment.base.loss,
    expected.batch, experiment.base.input)
  local device = util.must(core.device "cpu")
  local program = util.must(core.compile(network, {optimizer = experiment.base.optimizer, keep_gradients = true,
    keep_output = true}, device))
  local runtime <close> = util.must(core.runtime{programs = {program}, seed = 1})
  util.must(weights.load({network = network, runtime = runtime}, path))
  local given = expected.inputs[1]
  if #expected.inputs > 1 then
    given = {}
    for k, input in ipairs(network:inputs()) do given[input.name] = expected.inputs[k] end
  end
  local loss = util.must(runtime:step(1, given, expected.targets))
  local largest, size = apart(expected.outputs, (util.must(runtime:read(program:names().output, 1))))
  local worst, name, all, wanted = compare_gradients(network, runtime, expected.gradients)
  return {
    ("loss: %.7g, in PyTorch %.7g: difference %.2g"):format(loss, expected.loss, math.abs(loss - expected.loss)),
    ("outputs: largest difference %.2g, beside a largest output of %.2g"):format(largest, size),
    ("gradients: norm %.7g, in PyTorch %.7g: difference %.2g of it"):format(all, wanted,
      math.abs(all - wanted) / math.max(wanted, 1e-12)),
    ("gradients of one parameter: largest difference of norms %.2g of it, in %s"):format(worst, name),
  }
end
