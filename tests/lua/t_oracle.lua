-- The reference runs of tests/oracle: what PyTorch computed in float64, against memtide on the CPU, or on the device
-- that TEST_DEVICE names. Tolerances in fp32 are 1e-4 relative for losses and final norms, 1e-3 for gradient norms and
-- outputs. In bf16 a number has 8 bits (relative error 2^-9 at each rounding); inputs, weights, activations and
-- gradients are all rounded: 2e-2 of the loss in the first step, and as errors are carried from update to update, 5e-2
-- later. Adam moves an element by about the learning rate whatever its gradient's size, so a gradient near zero whose
-- sign is lost in rounding shows: 5e-2 of the norm of a bias, 1e-2 of a weight's.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"

local CASES = {"simple_convnet", "smaller_convnet", "accumulation", "mnist_cnn", "mlp_mse", "grouped_conv",
  "discriminator", "resnet_block", "text_rnn", "text_lstm", "text_gru", "tiny_gpt", "normalised", "decoder",
  "lines", "gated", "multilabel", "bidirectional", "encoder", "translator", "windows", "llama", "rmsprop", "rmsprop_centered",
  "adagrad", "amsgrad",
  "nadam", "adafactor"}
-- Those that run with loss_chunks, too
local CHUNKED = {tiny_gpt = true, llama = true, accumulation = true}
local device = assert(core.device(os.getenv "TEST_DEVICE" or "cpu"))

-- The inputs of this case's ReLUs come within 1.2e-6 of zero: on which side fp32 puts them depends on the order of
-- additions, and so on the processor's instructions. What PyTorch 1.13 itself gives in fp32 with AVX-512:
local FP32_NORMS = {accumulation = {["0.weight"] = 0.0111570112, ["0.bias"] = 0.0030628784}}

local function near(found, expected, rtol, atol, ...)
  tap.near(found, expected, atol + rtol * math.abs(expected), string.format(...))
end

local function recurrent(kind)
  return function(input_size, hidden_size, options)
    local all = {batch_first = true}
    for key, value in pairs(options or {}) do all[key] = value end
    return mt.nn[kind](input_size, hidden_size, all)
  end
end

-- What the reference runs call otherwise, or give other defaults.
local MADE = {RNN = recurrent "RNN", LSTM = recurrent "LSTM", GRU = recurrent "GRU",
  LastStep = function() return mt.nn.Select(1, -1) end, SelfAttention = mt.nn.CausalSelfAttention,
  Translator = dofile "tests/lua/translator.lua", Windows = dofile "tests/lua/windows.lua", Llama = mt.models.Llama}

-- {"Conv2d", 3, 64, 3, {padding = 1}} -> nn.Conv2d(3, 64, 3, {padding = 1})
local function layer(spec)
  if spec[1] == "Sequential" then
    local children = {}
    for i, child in ipairs(spec[2]) do children[i] = layer(child) end
    return mt.nn.Sequential(children)
  end
  if spec[1] == "Residual" then return mt.nn.Residual{layer(spec[2]), spec[3] and layer(spec[3])} end
  return (MADE[spec[1]] or mt.nn[spec[1]])(table.unpack(spec, 2))
end

-- The case, with one row of logits per token where there is a label for each (`rows`: there is already), and its
-- parameters under our names.
local function read(name)
  local case = dofile("tests/oracle/" .. name .. ".lua")
  if case.per_token and not case.rows then table.insert(case.net[2], {"Flatten", 0, 1}) end
  for _, list in ipairs{case.first_grad_norms, case.final_parameters} do
    for _, entry in ipairs(list) do
      entry[1] = entry[1]:gsub("%.rnn%.", "."):gsub("%.qkv%.", ".c_attn."):gsub("%.proj%.", ".c_proj.")
    end
  end
  return case
end

local function product(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end

local function inputs(case, s)
  local x = {}
  for i = 0, case.batch * product(case.input) - 1 do
    x[i + 1] = case.tokens and (5 * i + s) % case.tokens or math.sin(0.377 * i + 0.25 * s)
  end
  return x
end

local function targets(case, s, outputs)
  local t = {}
  if case.per_token then
    for j = 0, outputs // case.classes - 1 do t[j + 1] = (3 * j + s) % case.classes end
    return t
  elseif case.loss == "CrossEntropyLoss" then
    for b = 0, case.batch - 1 do t[b + 1] = (7 * b + 3 + s) % case.classes end
    return t
  end
  for i = 0, outputs - 1 do
    local value = 0.5 * math.sin(0.193 * i + s)
    t[i + 1] = case.loss == "MSELoss" and value or value > 0 and 1 or 0
  end
  return t
end

-- Element i (1, 2, ...) of parameter k (0, 1, ...) of PyTorch's order
local function parameter(k, shape, elements, name)
  local scale = #shape == 1 and 0.1 or 1 / math.sqrt(elements / shape[1])
  local base = #shape == 1 and name:find "weight$" and 1 or 0 -- of normalisation
  return function(i) return base + scale * math.sin(0.731 * (i - 1) + 1.37 * k + 0.5) end
end

local function set_parameters(runtime, network, case)
  local place = {} -- in PyTorch's order; ours is that in which they are used
  for k, entry in ipairs(case.first_grad_norms) do place[entry[1]] = k - 1 end
  for _, param in ipairs(network:params()) do
    assert(runtime:write(param.name, parameter(place[param.name], param.shape, param.elements, param.name)))
  end
end

local function norm(values)
  local sum = 0
  for _, x in ipairs(values) do sum = sum + x * x end
  return math.sqrt(sum)
end

local function append(to, from) return table.move(from, 1, #from, #to + 1, to) end

local function run(case, settings)
  local net = layer(case.net)
  local loss = mt.nn[case.loss](table.unpack{case.loss_options})
  local optimizer = mt.optim[case.optimizer[1]](case.optimizer[2])
  local network = assert(core.network(net, loss, {case.batch, table.unpack(case.input)}))
  local _, output = network:shapes()
  local accumulate = case.accumulate or 1
  local base = {accumulate = accumulate, optimizer = optimizer, keep_output = true, keep_gradients = true}
  for key, value in pairs(settings) do base[key] = value end
  local program = assert(core.compile(network, base, device))
  base.mode, base.accumulate, base.checkpoint, base.keep_output = "eval", 1, "none", true
  local eval = assert(core.compile(network, base, device))
  local runtime <close> = assert(core.runtime{programs = {program, eval}, allocator = settings.allocator or "planned"})
  set_parameters(runtime, network, case)
  local out = {losses = {}, network = network}
  local name = eval:names().output
  for step = 0, case.steps - 1 do
    local x, t = {}, {}
    for m = 0, accumulate - 1 do
      append(x, inputs(case, step * accumulate + m))
      append(t, targets(case, step * accumulate + m, product(output)))
    end
    out.losses[step + 1] = assert(runtime:step(1, x, t))
    if step == 0 then
      out.first_output = program:names().output and runtime:read(name, 1)
      out.gradients = {}
      for _, param in ipairs(network:params()) do
        out.gradients[param.name] = norm(runtime:read(param.name .. ".grad", 1))
      end
    end
  end
  out.parameters, out.values = {}, {}
  for _, param in ipairs(network:params()) do
    out.values[param.name] = runtime:read(param.name, 1)
    out.parameters[param.name] = norm(out.values[param.name])
  end
  assert(runtime:step(2, inputs(case, 0), targets(case, 0, product(output))))
  out.eval_output = runtime:read(name, 2)
  return out
end

-- How much wider the tolerances are: 1, unless this processor puts those ReLUs on yet another side.
local function slack(case, found)
  local known = FP32_NORMS[case.name]
  if not known then return 1 end
  local norm_found, exact = found.gradients["0.weight"], case.first_grad_norms[1][2]
  for _, norm_known in ipairs{known["0.weight"], exact} do
    if math.abs(norm_found - norm_known) < 1e-3 * norm_known then return 1 end
  end
  return 10
end

-- A bias of the keys adds the same to all scores of a query, so that its exact gradient is zero: of the rounding that
-- is left Adam makes steps of up to its rate (PyTorch's own fp32 runs, 1.13 and 2.6, end 0.02 % to 0.7 % from the
-- float64 norm). What the keys' part should be and how far it may have gone is known; the rest must be exact.
local function without_keys(case, found, i, param)
  local rate, third = case.optimizer[2].lr, param[2][1] // 3
  local initial, decay = parameter(i - 1, param[2], param[2][1], param[1]), (1 - rate * 0.01) ^ case.steps
  local difference, furthest = 0, 0
  for k = third + 1, 2 * third do
    local value, expected = found.values[param[1]][k], initial(k) * decay
    difference, furthest = difference + value ^ 2 - expected ^ 2, math.max(furthest, math.abs(value - expected))
  end
  tap.ok(furthest < case.steps * rate, ("%s: the keys' part of %s stays"):format(case.name, param[1]))
  return math.sqrt(param[3] ^ 2 + difference)
end

local function check_fp32(case, found)
  local wide = slack(case, found)
  for i, loss in ipairs(case.losses) do near(found.losses[i], loss, 1e-4 * wide, 0, "%s: loss %d", case.name, i) end
  if found.first_output and (case.accumulate or 1) == 1 then
    for i, y in ipairs(case.first_output) do
      near(found.first_output[i], y, 0, 1e-3, "%s: first output %d", case.name, i)
    end
  end
  for _, pair in ipairs(case.first_grad_norms) do
    local rounded, norm_found = (FP32_NORMS[case.name] or {})[pair[1]], found.gradients[pair[1]]
    local expected = rounded and math.abs(norm_found - rounded) < 1e-3 * rounded and rounded or pair[2]
    near(norm_found, expected, 1e-3 * wide, 0, "%s: gradient norm of %s", case.name, pair[1])
  end
  local shapes = {}
  for _, param in ipairs(found.network:params()) do shapes[param.name] = table.concat(param.shape, "x") end
  for i, param in ipairs(case.final_parameters) do
    local final = param[1]:find "c_attn%.bias$" and without_keys(case, found, i, param) or param[3]
    near(found.parameters[param[1]], final, 1e-4 * wide, 0, "%s: final norm of %s", case.name, param[1])
    tap.is(shapes[param[1]], table.concat(param[2], "x"), ("%s: shape of %s"):format(case.name, param[1]))
  end
  for i, y in ipairs(case.eval_output) do
    near(found.eval_output[i], y, 0, 1e-3 * wide, "%s: evaluation output %d", case.name, i)
  end
end

local function check_bf16(case, found, mode)
  for i, loss in ipairs(case.losses) do
    near(found.losses[i], loss, i == 1 and 2e-2 or 5e-2, 0, "%s in %s: loss %d", case.name, mode, i)
  end
  for _, param in ipairs(case.final_parameters) do
    local tolerance = #param[2] == 1 and 5e-2 or 1e-2
    near(found.parameters[param[1]], param[3], tolerance, 0, "%s in %s: final norm of %s", case.name, mode, param[1])
  end
end

local function same(a, b)
  for i, x in ipairs(a) do if x ~= b[i] then return false end end
  return #a == #b
end

for _, name in ipairs(CASES) do
  local case = read(name)
  local plain = run(case, {})
  check_fp32(case, plain)
  tap.ok(same(plain.losses, run(case, {}).losses), name .. ": the same run twice gives the same losses, bit for bit")
  for _, mode in ipairs{"sqrt", "selective"} do
    tap.ok(same(plain.losses, run(case, {checkpoint = mode, inplace = true, allocator = "caching"}).losses),
      ("%s: checkpoint %s changes no bit of a loss"):format(name, mode))
  end
  for _, mode in ipairs{"amp_bf16", "master_bf16"} do check_bf16(case, run(case, {precision = mode}), mode) end
  if CHUNKED[name] then
    local found = run(case, {loss_chunks = 3, keep_output = false})
    tap.is(found.first_output, nil, name .. ": with a loss in parts the output is not there as a whole")
    check_fp32(case, found)
    check_bf16(case, run(case, {loss_chunks = 3, keep_output = false, precision = "amp_bf16"}), "amp_bf16, a loss in parts")
  end
end

-- 4 micro-batches of 4 are one batch of 16: the input of micro-batch s is 0.25 s further,
-- so feed the same samples both ways.
local function accumulated(batch, accumulate)
  local case = dofile "tests/oracle/accumulation.lua"
  local network = assert(core.network(layer(case.net), mt.nn.CrossEntropyLoss(), {batch, table.unpack(case.input)}))
  local program = assert(core.compile(network, {accumulate = accumulate, optimizer = mt.optim.Adam{lr = 1e-3}}, device))
  local runtime <close> = assert(core.runtime{programs = {program}, seed = 5})
  local losses = {}
  for step = 0, 2 do
    local x, t = {}, {}
    for i = 0, 16 * product(case.input) - 1 do x[i + 1] = math.sin(0.377 * i + step) end
    for b = 0, 15 do t[b + 1] = (7 * b + step) % 10 end
    losses[step + 1] = assert(runtime:step(1, x, t))
  end
  return losses
end
local whole, parts = accumulated(16, 1), accumulated(4, 4)
for i, loss in ipairs(whole) do near(parts[i], loss, 2e-5, 0, "accumulation 4 x 4 equals a batch of 16: loss %d", i) end


-- a sum needs no division by the number of micro-batches
local function summed(batch, accumulate)
  local network = assert(core.network(mt.nn.Linear(3, 2), mt.nn.MSELoss{reduction = "sum"}, {batch, 3}))
  local settings = {accumulate = accumulate, optimizer = mt.optim.SGD{lr = 0.01}}
  local runtime <close> = assert(core.runtime{programs = {assert(core.compile(network, settings, device))}, seed = 2})
  local loss = assert(runtime:step(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 3, 5}, {1, 0, 1, 2, 0, 1, 1, 1}))
  return loss, runtime:read("bias")[1]
end
local loss, bias = summed(4, 1)
for _, parts_of in ipairs{{2, 2}, {1, 4}} do
  local part_loss, part_bias = summed(table.unpack(parts_of))
  near(part_loss, loss, 1e-5, 0, "a sum over %d x %d samples: loss", parts_of[2], parts_of[1])
  near(part_bias, bias, 1e-5, 0, "a sum over %d x %d samples: update", parts_of[2], parts_of[1])
end

tap.done()
