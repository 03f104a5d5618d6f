-- The bindings: networks, programs, prediction against measurement, values across the border, closing.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local nn = mt.nn

local device = core.device("cpu")
local loss = nn.MSELoss()
local SGD = {kind = "SGD", options = {lr = 0.1}}

local function linear(batch) return core.network(nn.Sequential{nn.Linear(2, 1)}, loss, {batch or 1, 2}) end
local function compiled(network, values)
  values = values or {}
  values.optimizer = values.optimizer or SGD
  return core.compile(network, values, device)
end
local function list(t) return table.concat(t, " ") end

-- ---- networks
local network = linear()
tap.is(network:parameters(), 3, "parameters are counted")
local layers = network:layers()
tap.is(#layers, 1, "layers lists what is no container")
tap.is(layers[1].kind .. " " .. layers[1].path, "Linear 0", "with kind and path")
tap.is(list(layers[1].out), "1 1", "and output shape")
tap.is(layers[1].params[1].name, "0.weight", "and parameters under PyTorch's names")
tap.is(list(layers[1].params[1].shape), "1 2", "and shapes")
tap.has(layers[1].where, "t_core.lua:", "and the line that made it")
tap.has(network:text(), "Linear in_features=2 out_features=1 (1, 1) 3", "a network prints itself")
local wrong, line = nn.Linear(3, 1), tap.line():gsub(":$", "")
tap.raises(line, "a wrong shape names the layer's line", core.network, wrong, loss, {1, 2})
tap.raises("a layer expected, found a number", "something else instead of a layer", core.network, 7, loss, {1, 2})
tap.raises("at least 1", "a shape with a zero", core.network, nn.Linear(2, 1), loss, {0, 2})

-- ---- programs
local program = compiled(network)
local kinds = {}
for i, op in ipairs(program:ops()) do kinds[i] = op.kind end
tap.is(list(kinds), "linear element_loss element_loss_dx linear_dw sgd sgd", "the ops of a step")
local bytes = {}
for _, buf in ipairs(program:bufs()) do bytes[buf.name] = buf.bytes end
tap.is(bytes["0.weight"], 8, "a buffer has its exact bytes")
tap.has(program:dump(), "linear_dw", "a program prints itself")
local _, passes = core.compile(network, {}, device, true)
tap.has(passes, "# after backward\n", "and after each pass")
local products = core.network(nn.Sequential{nn.Conv2d(2, 2, 1), nn.Flatten(2), nn.LSTM(4, 2), nn.Linear(2, 1)}, loss, {3, 2, 2, 2})
for _, case in ipairs{{"tf32", 7}, {"fp32", 0}} do
  local _, found = compiled(products, {precision = case[1]}):dump():gsub(" tf32%f[%W]", "")
  tap.is(found, case[2], case[1] .. ": which products of convolution, LSTM and linear layer, and of their gradients, may be TF32")
end
tap.raises('unknown setting "precison"', "an unknown setting", core.compile, network, {precison = "fp32"}, device)
tap.raises("precision: expected one of fp32, tf32", "a wrong word", core.compile, network, {precision = "fp31"}, device)
tap.raises("accumulate: expected a whole", "no micro-batch", core.compile, network, {accumulate = 0}, device)
tap.raises("lr must not be negative", "an optimizer's range", core.compile, network,
  {optimizer = {kind = "SGD", options = {lr = -1}}}, device)

-- ---- one step against numbers worked out by hand: y = 11, loss = 1, dy = 2
local runtime = core.runtime{programs = {program}}
runtime:write("0.weight", {1, 2})
runtime:write("0.bias", function(i) return i - 1 end)
local found = runtime:step(1, {3, 4}, {10})
tap.is(found, 1.0, "the loss of a step")
local weight, shape = runtime:read("0.weight")
tap.near(weight[1], 1 - 0.1 * 6, 1e-6, "SGD on the first weight")
tap.near(weight[2], 2 - 0.1 * 8, 1e-6, "and the second")
tap.near(runtime:read("0.bias")[1], -0.2, 1e-6, "and the bias")
tap.is(list(shape), "1 2", "values come with their shape")
tap.is(runtime:step(1, string.pack("<ff", 0, 0), string.pack("<f", -0.2)) < 1e-12, true, "packed strings are taken too")

local memory, predicted = runtime:memory(), program:predict{steps = 2}
tap.is(memory.peak.bytes, predicted.peak.bytes, "predicted peak = measured peak")
tap.is(memory.peak.op, predicted.peak.op, "at the same op")
tap.is(memory.used, predicted.allocated, "predicted and measured bytes after a step")
local sum = 0
for _, n in pairs(memory.peak.categories) do sum = sum + n end
tap.is(sum, memory.peak.bytes, "the categories sum to the peak")
tap.raises("input: expected 1 x (1, 2) values, found 3", "a batch of the wrong size", runtime.step, runtime, 1,
  {1, 2, 3}, {1})
tap.raises("expected a batch", "no batch at all", runtime.step, runtime, 1, nil, {1})
tap.raises("no such program", "a program that is not there", runtime.step, runtime, 2, {1, 2}, {1})
tap.raises('no buffer "0.wieght"', "a buffer that is not there", runtime.read, runtime, "0.wieght")
tap.raises("expected 2 values, found 3", "a write of the wrong size", runtime.write, runtime, "0.weight", {1, 2, 3})
tap.raises("stop", "an error in a value function comes through", runtime.write, runtime, "0.weight",
  function() error("stop") end)
tap.near(runtime:read("0.weight")[1], 0.4, 1e-6, "and nothing was written")

-- ---- the world
local none, text, code = core.runtime{programs = {program}, memory = 100}
tap.is(none, nil, "out of memory is a value")
tap.has(text, "limit 100", "with a message")
tap.is(code, "oom", "and a code")
tap.is(program:predict{memory = 100}.fits, false, "and is predicted")
none, text, code = core.device("cuda:99")
tap.ok(none == nil and type(text) == "string", "no such device is a value")
tap.is(core.exit_status(code), 69, "its code has an exit status")

-- A step in which the n-th device allocation is refused: its loss, or nil and the code.
local function step_refused(allocator, n)
  local opened, _, why = core.runtime{programs = {program}, allocator = allocator, fail_at = n}
  if not opened then return nil, why end
  local scope <close> = opened
  local result, _, step_why = scope:step(1, {1, 2}, {3})
  return result, step_why
end

for _, allocator in ipairs{"planned", "caching", "direct"} do
  local n, result, why = 0, nil, "oom"
  while not result and why == "oom" and n < 50 do
    n = n + 1
    result, why = step_refused(allocator, n)
  end
  tap.ok(result and n > 1, allocator .. ": every device allocation may be refused, then the step runs")
end

-- ---- loaders as a step's source
local function loader(sample, count, more)
  local data = core.dataset_random{count = count, shape = sample, target = {1}, seed = 1}
  local options = {batch = 4}
  for key, value in pairs(more or {}) do options[key] = value end
  return core.loader(data, options)
end
local fed = core.runtime{programs = {compiled(linear(4))}}
tap.ok(fed:step(1, loader({2}, 8)), "a loader feeds a step")
tap.raises("the data's input is (4, 3) in a batch, the network's is (4, 2)", "samples of another shape", fed.step,
  fed, 1, loader({3}, 8))
local rest = loader({2}, 6)
tap.ok(fed:step(1, rest), "a complete batch")
tap.raises("open the loader with drop_last = true", "an incomplete one, when its targets are no labels", fed.step,
  fed, 1, rest)
local whole = loader({2}, 6, {drop_last = true})
tap.ok(fed:step(1, whole) and fed:step(1, whole), "without it the next epoch begins")
tap.raises("the loader gives batches of one of 2 ranks, the program has 1", "a loader of one of several ranks", fed.step, fed, 1,
  loader({2}, 8, {world = 2, rank = 1}))
tap.raises("rank: expected 0 to world - 1, 1, found 2", "a rank that is none", loader, {2}, 8, {world = 2, rank = 2})
fed:close()

-- ---- closing
tap.is(runtime:finish(), true, "finish checks that every byte was given back")
tap.raises("closed", "a closed runtime is refused", runtime.step, runtime, 1, {1, 2}, {1})
tap.is(runtime:close(), true, "close twice")
local other = core.runtime{programs = {program}}
program:close()
tap.raises("closed", "a closed program is refused", program.dump, program)
tap.is(other:step(1, {0, 0}, {0}) >= 0, true, "what was made from it goes on")
network:close()
other:close()
tap.raises("expected", "close of something else", other.close, io.stdout)
tap.is(getmetatable(other), false, "metatables are out of reach")
do
  local scoped <close> = core.runtime{programs = {compiled(linear())}}
  tap.is(scoped:memory().used > 0, true, "a runtime may be a <close> variable")
end
for _ = 1, 20 do
  core.runtime{programs = {compiled(linear(8))}}
  core.runtime{programs = {compiled(linear(8))}, memory = 1}
end
collectgarbage()
collectgarbage()
tap.ok(true, "forgotten objects are collected, parents after children")

-- ---- rows
local row = core.row{"depth"}
row:set("case", "a, b")
row:set("depth", 3)
row:set("step_ms", 0.5)
tap.is(row:get("depth") .. row:get("step_ms") .. row:get("status"), "30.5",
  "a row holds numbers and says nothing of the rest")
tap.has(row:line(), ',"a, b",', "a row is a CSV line")
local newest, first = row:columns(), row:columns(1)
tap.ok(#newest > #first and not row:columns(0) and not row:columns(1000), "columns by the format of a file")
local types = core.precision_types()
tap.is(("%s %s %s %s"):format(types.fp32, types.amp_bf16, types.master_fp16, types.bf16), "fp32 bf16 fp16 bf16",
  "what a precision computes in")
tap.raises("batch", "an axis may not be called like a column", core.row, {"batch"})
for quoted, expected in pairs{[ [[a,b]] ] = "a|b", [ [["a, ""b""",,c]] ] = 'a, "b"||c', [""] = "", [","] = "|",
  [ [["",x]] ] = "|x"} do
  tap.is(table.concat(core.csv_split(quoted), "|"), expected, "the fields of " .. quoted)
end
for _, damaged in ipairs{[["a]], [[a"b]], [["a"b]], "a\0b"} do
  tap.is(core.csv_split(damaged), nil, ("%q is no line"):format(damaged))
end
tap.is(core.nearest("Batc", {"mode", "batch"}), "batch", "the name that was meant")
tap.is(core.nearest("x", {"y"}), nil, "a letter that stands for no other")
tap.is(core.nearest(("x"):rep(100), {("x"):rep(100)}), nil, "names that nobody types")
tap.is(core.hash(""), "cbf29ce484222325", "FNV-1a of nothing")
tap.is(core.hash("a"), "af63dc4c8601ec8c", "FNV-1a of a letter")

tap.done()
