-- Runs the cases that fuzz.py draws: memtide tests/peers/fuzz.lua CASES. A line of JSON for each: names and shapes of
-- parameters, losses, gradients of the first step, parameters, their states of 8 bits and buffers after the last,
-- outputs of an evaluation; or the error. Parameters, inputs and targets are numbers that fuzz.py computes in the same
-- way.
local core = require "memtide.core"
local device = assert(core.device(os.getenv "TEST_DEVICE" or "cpu"))

-- 24 random bits of each place (splitmix64)
local function bits(seed, i)
  local z = seed + (i + 1) * 0x9E3779B97F4A7C15
  z = (z ~ (z >> 30)) * 0xBF58476D1CE4E5B9
  z = (z ~ (z >> 27)) * 0x94D049BB133111EB
  return (z ~ (z >> 31)) >> 40
end

local function hash(text)
  local h = 0
  for i = 1, #text do h = (h * 31 + text:byte(i)) & 0xFFFFFFFF end
  return h
end

local function product(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end

local function list(n, f)
  local values = {}
  for i = 1, n do values[i] = f(i - 1) end
  return values
end

local function uniform(seed, i) return bits(seed, i) / (1 << 23) - 1 end

local function parameter(case, name, shape)
  local seed = case.data * 1000003 + hash(name)
  if #shape == 1 then
    local base = name:find "weight$" and 1 or 0 -- of normalisation
    return function(i) return base + 0.25 * uniform(seed, i - 1) end
  end
  local scale = 2.0 ^ -math.floor(math.log(product(shape) // shape[1], 2) / 2)
  return function(i) return scale * uniform(seed, i - 1) end
end

local function inputs(case, step)
  local seed = case.data * 1000003 + 2 * step
  return list(case.accumulate * product(case.input), function(i)
    if case.tokens then return bits(seed, i) % case.tokens end
    return 1.5 * uniform(seed, i)
  end)
end

local function targets(case, step, n)
  local seed = case.data * 1000003 + 2 * step + 1
  return list(case.accumulate * n, function(i)
    local classes = case.classes
    if not classes then return bits(seed, i) / (1 << 24) end
    if case.ignored and bits(seed + 7, i) % 4 == 0 then return case.ignored end
    return bits(seed, i) % classes
  end)
end

-- ---- JSON

local function number(x)
  if x ~= x then return "NaN" end
  return math.abs(x) == math.huge and (x < 0 and "-Infinity" or "Infinity") or ("%.9g"):format(x)
end

local function json(value)
  if type(value) == "number" then return number(value) end
  if type(value) ~= "table" then return ('"%s"'):format(tostring(value):gsub('[\\"]', "\\%0"):gsub("\n", "\\n")) end
  local parts = {}
  for i, item in ipairs(value) do parts[i] = json(item) end
  if #parts > 0 or next(value) == nil then return "[" .. table.concat(parts, ",") .. "]" end
  for key, item in pairs(value) do parts[#parts + 1] = json(key) .. ":" .. json(item) end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- ---- a case

local function tensors(runtime, wanted)
  local found = {}
  for i, tensor in ipairs(wanted) do found[i] = {tensor.name, tensor.shape, (assert(runtime:read(tensor.name)))} end
  return found
end

local function gradients(runtime, network)
  local found = {}
  for _, param in ipairs(network:params()) do
    found[param.name] = param.trainable and runtime:read(param.name .. ".grad", 1) or nil
  end
  return found
end

-- {{parameter, codes of its two states, their scales}, ...} of those that have such states
local function states(runtime, network)
  local found = {}
  for _, param in ipairs(network:params()) do
    local there, scale = pcall(runtime.read, runtime, param.name .. ".scale")
    found[#found + 1] = there and {param.name, (runtime:read(param.name .. ".exp_avg")),
      (runtime:read(param.name .. ".exp_avg_sq")), scale} or nil
  end
  return found
end

local function open(case)
  local optimizer = case.optimizer()
  local network = assert(core.network(case.model(), case.loss(), case.input))
  local settings = {accumulate = case.accumulate, optimizer = optimizer, keep_output = true, keep_gradients = true,
    checkpoint = case.checkpoint, inplace = case.inplace, scheduled = true}
  local train = assert(core.compile(network, settings, device))
  settings.mode, settings.accumulate, settings.checkpoint = "eval", 1, "none"
  local eval = assert(core.compile(network, settings, device))
  local runtime = assert(core.runtime{programs = {train, eval}, allocator = case.allocator})
  for _, param in ipairs(network:params()) do
    assert(runtime:write(param.name, parameter(case, param.name, param.shape)))
  end
  return network, runtime, optimizer:rate(), eval:names().output
end

local function run(case)
  local network, opened, rate, output = open(case)
  local runtime <close> = opened
  local schedule = case.schedule and case.schedule()
  local found = {losses = {}}
  local _, shape = network:shapes()
  found.output = shape
  local n = case.classes and product(shape) // shape[2] or product(shape)
  for step = 0, case.steps - 1 do
    if schedule then rate = schedule:rate(case.optimizer():rate(), step) end
    assert(runtime:write("lr", {rate}))
    found.losses[step + 1] = assert(runtime:step(1, inputs(case, step), targets(case, step, n)))
    if step == 0 then found.gradients = gradients(runtime, network) end
  end
  found.parameters = tensors(runtime, network:params())
  found.states = states(runtime, network)
  found.buffers = tensors(runtime, network:buffers())
  case.accumulate = 1
  found.eval_loss = assert(runtime:step(2, inputs(case, 99), targets(case, 99, n)))
  found.eval_output = runtime:read(output, 2)
  return found
end

for _, case in ipairs(assert(dofile(arg[1]))) do
  local good, found = pcall(run, case)
  io.write(json(good and found or {error = found}), "\n")
  io.flush()
end
