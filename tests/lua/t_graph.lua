-- Networks that branch: graphs from a forward function, named children, shared, tied and frozen parameters.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local cell = require "memtide.net.cell"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local device = assert(core.device "cpu")

local function network(model, input, loss) return assert(core.network(model, loss, input)) end

local function names(net)
  local list = {}
  for i, param in ipairs(net:params()) do list[i] = param.name end
  return table.concat(list, " ")
end

-- ---- a residual block, line by line as in PyTorch
local function Block(in_planes, planes, stride)
  return nn.Graph{
    conv1 = nn.Conv2d(in_planes, planes, 3, {stride = stride, padding = 1, bias = false}),
    conv2 = nn.Conv2d(planes, planes, 3, {padding = 1}),
    relu = nn.ReLU(),
    downsample = nn.Sequential{nn.Conv2d(in_planes, planes, 1, {stride = stride})},
    forward = function(self, x)
      local identity = self.downsample(x)
      local out = self.relu(self.conv1(x))
      out = self.conv2(out)
      out = out + identity
      return self.relu(out)
    end,
  }
end

local function Net()
  return nn.Graph{
    layer1 = nn.Sequential{Block(3, 4, 1), Block(4, 4, 2)},
    fc = nn.Linear(64, 10),
    forward = function(self, x)
      x = self.layer1(x)
      x = x:view(x:size(0), -1)
      return self.fc(x)
    end,
  }
end

local net = network(Net(), {2, 3, 8, 8}, nn.CrossEntropyLoss())
tap.is(names(net), "layer1.0.downsample.0.weight layer1.0.downsample.0.bias layer1.0.conv1.weight " ..
  "layer1.0.conv2.weight layer1.0.conv2.bias layer1.1.downsample.0.weight layer1.1.downsample.0.bias " ..
  "layer1.1.conv1.weight layer1.1.conv2.weight layer1.1.conv2.bias " ..
  "fc.weight fc.bias", "names are the keys, as in a state_dict")
tap.has(net:text(), "(2, 4, 8, 8) 108 <- input\nlayer1.0.relu ReLU (2, 4, 8, 8)\n",
  "the text says where a value comes from, unless from the line before")
tap.has(net:text(), "layer1.0.add#1 Add (2, 4, 8, 8) <- conv2, downsample", "of each input")
tap.has(net:text(), "layer1.0.relu#2 ReLU", "a second call is numbered")
tap.has(tostring(Net()), "  (fc): Linear(in_features=64, out_features=10, bias=True)\n)",
  "a graph prints its children by name")
tap.ok(not tostring(Net()):find "Add", "and nothing that has no name")
tap.is(Net().fc.kind, "Linear", "a child is at hand by its name")

-- The same network of containers: the same numbers.
local function Contained()
  local function block(in_planes, planes, stride)
    return nn.Sequential{
      nn.Residual{
        nn.Sequential{nn.Conv2d(in_planes, planes, 3, {stride = stride, padding = 1, bias = false}), nn.ReLU(),
          nn.Conv2d(planes, planes, 3, {padding = 1})},
        nn.Sequential{nn.Conv2d(in_planes, planes, 1, {stride = stride})},
      }, nn.ReLU()}
  end
  return nn.Sequential{nn.Sequential{block(3, 4, 1), block(4, 4, 2)}, nn.Flatten(), nn.Linear(64, 10)}
end

local function values_of(param) -- the same for parameters of one shape, whatever their order
  return function(i) return math.sin(0.7 * i + param.elements) / math.sqrt(param.elements) end
end

local function batch(n, k) -- n numbers in closed form
  local x = {}
  for i = 1, n do x[i] = math.sin(0.377 * i + k) end
  return x
end

-- Three steps -> losses, the first step's gradients by name, the prediction.
local function train(model, input, options)
  options = options or {}
  local loss = options.loss or nn.CrossEntropyLoss()
  local made = network(model, input, loss)
  local settings = {optimizer = options.optimizer or optim.SGD{lr = 0.1}, keep_gradients = true}
  for key, value in pairs(options.settings or {}) do settings[key] = value end
  local program = assert(core.compile(made, settings, device))
  local predicted = assert(program:predict{allocator = "planned", steps = 3, with = {}})
  local runtime <close> = assert(core.runtime{programs = {program}, allocator = "planned"})
  for _, param in ipairs(made:params()) do assert(runtime:write(param.name, values_of(param))) end
  local count = 1
  for _, d in ipairs(input) do count = count * d end
  local targets = options.targets or {}
  if not options.targets then for i = 1, input[1] do targets[i] = (7 * i + 3) % 10 end end
  local out = {losses = {}, gradients = {}, parameters = {}, predicted = predicted, network = made, program = program}
  for step = 1, 3 do
    out.losses[step] = assert(runtime:step(1, batch(count, step), targets))
    if step == 1 then
      for _, param in ipairs(made:params()) do
        if param.trainable then out.gradients[param.name] = runtime:read(param.name .. ".grad", 1) end
      end
    end
  end
  for _, param in ipairs(made:params()) do out.parameters[param.name] = runtime:read(param.name) end
  out.memory = runtime:memory()
  if options.look then options.look(runtime) end
  tap.is(out.memory.peak.bytes, predicted.peak.bytes, (options.what or "a graph") .. ": predicted is measured")
  tap.is(predicted.lower_bound, predicted.peak.bytes, (options.what or "a graph") .. ": the plan is as low as can be")
  return out
end

local function norm(list)
  local sum = 0
  for _, x in ipairs(list) do sum = sum + x * x end
  return math.sqrt(sum)
end

local one, two = train(Net(), {2, 3, 8, 8}), train(Contained(), {2, 3, 8, 8})
for i = 1, 3 do
  tap.near(one.losses[i], two.losses[i], 1e-5 * math.abs(two.losses[i]), "graph and containers agree: loss " .. i)
end
tap.near(norm(one.gradients["layer1.0.conv1.weight"]), norm(two.gradients["0.0.0.body.0.weight"]), 1e-4,
  "and in their gradients")

-- ---- several readers: sums of gradients, by hand
-- y = W x; loss = sum((f(y) - t)^2) with x = 1..: one weight matrix of 2 x 2 whose gradient is known
local function scalar(forward, inner)
  local result = {}
  local model = nn.Graph{fc = inner or nn.Linear(1, 1, {bias = false}), forward = forward}
  local made = network(model, {1, 1}, nn.MSELoss{reduction = "sum"})
  local program = assert(core.compile(made, {optimizer = optim.SGD{lr = 0}, keep_gradients = true}, device))
  local runtime <close> = assert(core.runtime{programs = {program}})
  assert(runtime:write("fc.weight", {3}))
  result.loss = assert(runtime:step(1, {2}, {0}))
  result.gradient = runtime:read("fc.weight.grad", 1)[1]
  return result
end
-- w = 3, x = 2, y = 6; loss = f^2, dloss/dw = 2 f f' x
for _, case in ipairs{
  {"a value added to itself", function(self, x) local y = self.fc(x) return y + y end, 12, 2 * 12 * 2 * 2},
  {"a value times itself", function(self, x) local y = self.fc(x) return y * y end, 36, 2 * 36 * 12 * 2},
  {"a diamond", function(self, x) local y = self.fc(x) return nn.relu(y) + y:identity() * y end, 42, 2 * 42 * 13 * 2},
  {"the input beside a branch", function(self, x) return self.fc(x) * x + x end, 14, 2 * 14 * 4},
  {"a layer called twice", function(self, x) return self.fc(self.fc(x)) end, 18, 2 * 18 * 12},
  {"a layer called three times", function(self, x) return self.fc(self.fc(self.fc(x))) end, 54, 2 * 54 * 54},
  {"a layer on both sides", function(self, x) return self.fc(x) + self.fc(x + x) end, 18, 2 * 18 * 6},
} do
  local what, forward, value, gradient = table.unpack(case)
  local found = scalar(forward)
  tap.near(found.loss, value * value, 1e-3, what .. ": value")
  tap.near(found.gradient, gradient, 1e-2, what .. ": gradient")
end

-- ---- cat, narrow, select
local joined = network(nn.Graph{a = nn.Conv2d(3, 2, 1), forward = function(self, x)
  local y = nn.cat({self.a(x), x, x:narrow(1, 1, 2)}, 1)
  return nn.cat({y, y}, -1):select(2, 0):select(2, -1)
end}, {2, 3, 4, 5})
tap.is(table.concat(select(2, joined:shapes()), "x"), "2x7", "parts and joins count dimensions as PyTorch does")
local many = network(nn.Graph{forward = function(_, x)
  local list = {}
  for i = 1, 20 do list[i] = nn.relu(x) end
  return nn.cat(list, 1)
end}, {2, 3, 4, 4})
tap.is(select(2, many:shapes())[2], 60, "more values than one op takes")
local function size(model, dim) return select(2, network(model, {1, 3, 2, 2}):shapes())[dim + 1] end
tap.is(size(nn.Concat{nn.Conv2d(3, 4, 1), nn.Identity()}, 1), 7, "Concat is a layer")
tap.is(size(nn.Concat{nn.Tanh(), nn.Identity(), dim = 2}, 2), 4, "with a dimension")
tap.is(size(nn.Add{nn.Tanh(), nn.Identity()}, 1), 3, "Add, too")

-- ---- names in Sequential
local named = network(nn.Sequential{{"conv", nn.Conv2d(3, 4, 3)}, nn.ReLU(), {"head", nn.Conv2d(4, 2, 1)}},
  {1, 3, 8, 8})
tap.is(names(named), "conv.weight conv.bias head.weight head.bias", "Sequential's layers may have names")
local list = network(nn.Graph{h = {nn.Linear(4, 4), nn.Linear(4, 4)}, scale = 2, forward = function(self, x)
  for _, layer in ipairs(self.h) do x = layer(x) end
  return self.scale == 2 and x
end}, {1, 4})
tap.is(names(list), "h.0.weight h.0.bias h.1.weight h.1.bias", "a list of layers is a ModuleList")

local function Ordered(order)
  return nn.Graph{a = nn.Linear(4, 4), b = nn.Sequential{nn.Linear(4, 4), nn.Linear(4, 4, {bias = false})},
    c = {nn.Linear(4, 4)}, order = order,
    forward = function(self, x) return self.c[1](nn.relu(self.b(self.a(self.a(x))))) end}
end
tap.is(names(network(Ordered(), {1, 4})), "a.weight a.bias b.0.weight b.0.bias b.1.weight c.0.weight c.0.bias",
  "parameters stand in the order of first use")
local ordered = network(nn.Sequential{nn.Linear(4, 4), Ordered{"c", "b", "a"}, nn.Linear(4, 2)}, {1, 4})
tap.is(names(ordered), "0.weight 0.bias 1.c.0.weight 1.c.0.bias 1.b.0.weight 1.b.0.bias 1.b.1.weight 1.a.weight " ..
  "1.a.bias 2.weight 2.bias", "or in the order that is given")
tap.has(ordered:text(), "1.b.1 Linear in_features=4 out_features=4 bias=false (1, 4) 16\n", "which each layer knows")
tap.raises('order does not name "a"', "all of it", Ordered, {"b", "c"})
local by_use, by_order = train(nn.Sequential{Ordered(), nn.Linear(4, 10)}, {2, 4}),
  train(nn.Sequential{Ordered{"c", "b", "a"}, nn.Linear(4, 10)}, {2, 4})
tap.is(by_order.losses[3], by_use.losses[3], "and no number depends on")

-- ---- one layer in two places, tied weights
local body = nn.Sequential{nn.Linear(4, 4), nn.Tanh()}
local twice = train(nn.Sequential{body, body, nn.Linear(4, 10)}, {3, 4}, {what = "a layer in two places",
  look = function(runtime)
    tap.is(runtime:read("1.0.weight")[1], runtime:read("0.0.weight")[1], "a parameter has both names")
    assert(runtime:write("1.0.weight", function() return 0.25 end))
    tap.is(runtime:read("0.0.weight")[3], 0.25, "also for writing")
  end})
tap.is(twice.network:parameters(), 4 * 4 + 4 + 40 + 10, "its parameters are counted once")
tap.has(twice.network:text(), "1.0 Linear in_features=4 out_features=4 (3, 4) shares 0.0.weight shares 0.0.bias",
  "which the text says")
tap.is(#twice.network:layers()[3].params, 0, "and no row repeats")

local first = nn.Linear(10, 10)
local tied = train(nn.Graph{wte = first, act = nn.Tanh(), lm_head = nn.Linear(10, 10, {bias = false, tied = first}),
  forward = function(self, x) return self.lm_head(self.act(self.wte(x))) end}, {3, 10}, {what = "tied weights"})
tap.is(names(tied.network), "wte.weight wte.bias", "a tied layer has its weight from another")
local untied = train(nn.Graph{wte = nn.Linear(10, 10), act = nn.Tanh(), lm_head = nn.Linear(10, 10, {bias = false}),
  forward = function(self, x) return self.lm_head(self.act(self.wte(x))) end}, {3, 10}, {what = "the same, not tied"})
for _, i in ipairs{1, 17, 50, 100} do
  local sum = untied.gradients["wte.weight"][i] + untied.gradients["lm_head.weight"][i]
  tap.near(tied.gradients["wte.weight"][i], sum, 1e-6, "gradients are summed: element " .. i)
end
local function trainer(model)
  return assert(mt.trainer{model = model, input = {10}, batch = 2, loss = nn.CrossEntropyLoss()})
end
local path = os.tmpname()
do
  local first_name <close> = trainer(nn.Graph{wte = first, lm_head = nn.Linear(10, 10, {bias = false, tied = first}),
    forward = function(self, x) return self.lm_head(self.wte(x)) end})
  local second_name <close> = trainer(nn.Sequential{{"lm_head", nn.Linear(10, 10)}})
  assert(second_name:save(path))
  local report = assert(first_name:load(path, {strict = false}))
  tap.is(report.missing[1], "wte.bias", "a file may have the second name of a tied weight")
  tap.is(table.concat(report.unexpected, " "), "lm_head.bias", "which is then not unexpected")
  tap.is(first_name:read("wte.weight")[7], second_name:read("lm_head.weight")[7], "and is read")
end
os.remove(path)
tap.raises("which is (4, 4) there, and (2, 4) here", "tied weights of other shapes", network,
  nn.Sequential{body[1], nn.Linear(4, 2, {tied = body[1]})}, {1, 4})
tap.raises("does not come before it", "tied to a layer that comes later", network,
  nn.Sequential{nn.Linear(4, 4, {tied = first}), nn.Linear(4, 2)}, {1, 4})
tap.raises("has no parameter to share", "tied without parameters", network,
  nn.Sequential{body[1], nn.ReLU{tied = body[1]}}, {1, 4})
tap.raises("tied: expected a layer", "tied to something else", nn.Linear, 4, 4, {tied = 7})

-- ---- frozen parameters
local function Frozen(how)
  local model = nn.Sequential{nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(),
    nn.Linear(64, 10)}
  how(model)
  return model
end
local adam = {optimizer = optim.Adam()}
local free = train(Frozen(function() end), {2, 3, 8, 8}, adam)
local fine = train(Frozen(function(m) m:freeze() m[6]:unfreeze() end), {2, 3, 8, 8}, {optimizer = optim.Adam(),
  what = "all but the last layer frozen"})
tap.is(select(2, fine.network:parameters()), 112 + 148, "frozen parameters are counted")
tap.has(fine.network:text(), "2 Conv2d in_channels=4 out_channels=4 kernel_size=3x3 (2, 4, 4, 4) 148 frozen",
  "and named")
tap.is(fine.predicted.peak.categories.optimizer < free.predicted.peak.categories.optimizer, true,
  "frozen parameters have no optimizer state")
for _, buf in ipairs(fine.program:bufs()) do
  if buf.category == "gradients" then tap.has(buf.name, "5.", "no gradient of a frozen parameter: " .. buf.name) end
  if buf.category == "activation_gradients" then tap.has(buf.name, "5.", "and none upstream: " .. buf.name) end
end
tap.near(fine.parameters["0.weight"][5], values_of{elements = 108}(5), 1e-7, "frozen parameters stay")
local moved = 0
for i, x in ipairs(fine.parameters["5.weight"]) do
  moved = math.max(moved, math.abs(x - values_of{elements = 640}(i)))
end
tap.ok(moved > 1e-4, "the others move")
local bias_only = train(Frozen(function(m) m[3]:freeze() end), {2, 3, 8, 8}, {what = "a frozen layer in the middle"})
tap.ok(bias_only.gradients["0.weight"] and not bias_only.gradients["2.weight"],
  "the gradient goes through a frozen layer")
for i, x in ipairs(bias_only.gradients["0.weight"]) do
  if x ~= free.gradients["0.weight"][i] then tap.ok(false, "and is the same after it") break end
end

-- a trained bias beside a frozen weight: only the bias has a gradient, and it is the same
local function Biased(freeze)
  local conv, fc = nn.Conv2d(3, 3, 3, {padding = 1, bias = false}), nn.Linear(10, 10, {bias = false})
  if freeze then conv:freeze() fc:freeze() end
  return nn.Sequential{conv, nn.ReLU(), {"again", nn.Conv2d(3, 3, 3, {padding = 1, tied = conv})}, nn.Tanh(),
    nn.MaxPool2d(4), nn.Flatten(), nn.Linear(12, 10), fc, {"head", nn.Linear(10, 10, {tied = fc})}}
end
local trained, biased = train(Biased(false), {2, 3, 8, 8}), train(Biased(true), {2, 3, 8, 8}, {what = "a bias alone"})
tap.is(biased.gradients["0.weight"], nil, "no gradient of a frozen weight")
for _, name in ipairs{"again.bias", "head.bias"} do
  for i, x in ipairs(trained.gradients[name]) do
    tap.near(biased.gradients[name][i], x, 1e-6 * math.abs(x) + 1e-9, ("gradient of %s, element %d"):format(name, i))
  end
end
tap.is(nn.Frozen(nn.Linear(2, 2)).frozen, true, "nn.Frozen")
tap.is(nn.Frozen{nn.Linear(2, 2)}.frozen, true, "nn.Frozen, called as a container")

-- ---- mistakes
local function graph(forward, children)
  children = children or {fc = nn.Linear(2, 2)}
  children.forward = forward
  return function() return nn.Graph(children) end
end
local other
nn.Graph{fc = nn.Linear(2, 2), forward = function(self, x) other = self.fc(x) return other end}
tap.raises("a value of a forward that has ended", "a value of another graph", graph(function(self, x)
  return self.fc(x) + other
end))
tap.raises("forward returns a value of another graph", "which is returned", graph(function(self, x)
  self.fc(x)
  return other
end))
tap.raises("what fc gives is not used", "a step that leads nowhere", graph(function(self, x)
  self.fc(x)
  return x
end))
tap.raises("forward does not call self.b", "an unused child", graph(function(self, x) return self.a(x) end,
  {a = nn.Linear(2, 2), b = nn.Linear(2, 2)}))
tap.raises("forward must return a value, found nothing", "no return value", graph(function(self, x) self.fc(x) end))
tap.raises("found a table", "a table", graph(function(self, x) return {self.fc(x)} end))
tap.raises("must return values, found a number", "a value and a number", graph(function(self, x)
  return self.fc(x), 1
end))
tap.raises("self.fcc does not exist (did you mean \"fc\"?)", "a wrong name", graph(function(self, x)
  return self.fcc(x)
end))
tap.raises("of which methods are called with a colon, x:flatten(1)", "a point for a colon",
  graph(function(_, x) return x.flatten(1) end))
tap.raises("Linear is called with a table", "no value", function() return nn.Linear(2, 2)({1, 2}) end)
tap.raises('"a..b" cannot be the name of a layer', "a name with two dots", graph(print, {["a..b"] = nn.ReLU()}))
tap.raises('"kind" cannot be the name of a layer', "a reserved name", graph(print, {kind = nn.ReLU()}))
tap.raises("Graph: forward: expected a function", "no forward", function() return nn.Graph{fc = nn.Linear(2, 2)} end)
tap.raises("prelu#1 PReLU", "a layer with parameters that has no name", network, nn.Graph{forward = function(_, x)
  return nn.prelu(x)
end}, {1, 2})
tap.raises("takes 1 input, found 2", "too many values", network, nn.Graph{fc = nn.Linear(2, 2),
  forward = function(self, x) return self.fc(x, x) end}, {1, 2})
tap.raises("or sizes of 1 where they differ, found (1, 2) and (1, 3)", "shapes that do not fit", network, nn.Graph{
  fc = nn.Linear(2, 3), forward = function(self, x) return x + self.fc(x) end}, {1, 2})
tap.raises("takes 2 inputs, found 1", "a network of two inputs", network,
  nn.Graph{forward = function(_, x, y) return x + y end}, {1, 2})
tap.raises("dim must be between 1 and 1 (0 is the batch), found 0", "the batch stays whole", network,
  nn.Graph{forward = function(_, x) return nn.cat({x, x}) end}, {1, 2})
tap.raises("do not lie in dimension 1, whose size is 2", "a part outside", network,
  nn.Graph{forward = function(_, x) return x:narrow(1, 1, 2) end}, {1, 2})
tap.raises('there are two layers of the name "a"', "a name twice", nn.Sequential, {{"a", nn.ReLU()}, {"a", nn.ReLU()}})
local text = select(2, pcall(graph(function(self, x)
  local unused = nn.relu(x) -- luacheck: ignore
  return self.fc(x)
end)))
tap.has(text, tap.line(-3) .. " Graph: what relu#1 gives is not used", "the line of the step is told")

-- ---- a name that looks like a role: "master" is what the fp32 copy of a parameter is called
do
  local model = nn.Sequential{{"pair", nn.Sequential{{"master", nn.Linear(4, 3)}}}}
  local made = network(model, {2, 4}, nn.CrossEntropyLoss())
  local program = assert(core.compile(made, {precision = "master_bf16"}, device))
  local runtime <close> = assert(core.runtime{programs = {program}, seed = 1})
  local weight, copy = runtime:read "pair.master.weight", runtime:read "pair.master.weight.master"
  tap.ok(weight[1] ~= 0 and math.abs(weight[1] - copy[1]) < 0.01, "a layer called master starts as any other")
end

-- ---- what is seen of a forward function's variables: by a hook, which goes and leaves one that was there
do
  local count = 0
  local function hook() count = count + 1 end
  debug.sethook(hook, "l")
  local good = pcall(nn.Graph, {forward = function(_, x) return nn.relu(x):flatten(1), error "stop" end})
  local found, mask = debug.gethook()
  debug.sethook()
  tap.ok(not good and found == hook and mask == "l", "an error in forward leaves the hook that was set")
  tap.ok(count > 3, "which was called all the time")
  local inner
  local outer = nn.Graph{fc = nn.Linear(2, 2), forward = function(self, x)
    local y = self.fc(x)
    inner = nn.Graph{forward = function(_, z)
      local held = nn.relu(z)
      local read = nn.tanh(held)
      return nn.sigmoid(read)
    end}
    local z = nn.relu(y)
    z = nn.tanh(z)
    return nn.sigmoid(z)
  end}
  tap.is(debug.gethook(), nil, "no hook stays")
  tap.is(table.concat(inner.held, " "), "2 2",
    "a graph in a forward function has variables of its own; a tail call keeps them")
  tap.is(table.concat(outer.held, " "), "3 2 3", "a name that is bound again lets go")
end

-- ---- x += y: the same numbers, and in PyTorch's step one value less
do
  local function model(call)
    return nn.Graph{a = nn.Linear(64, 64), b = nn.Linear(64, 64), forward = function(self, x)
      local y = self.a(x)
      y = call(y, self.b(x))
      return nn.relu(y)
    end}
  end
  local function allocations(call)
    local all = mt.experiment{name = "inplace", model = function() return model(call) end, input = {64}, classes = 64,
      batch = 1024, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1}, framework = "pytorch"}
    local built = cell.compile(cell.build(all:cells()[1]))
    local _, count = built.program:dump():match "= step 3.*":gsub("%+%d+ 262144 ", "")
    cell.release(built)
    return count
  end
  tap.is(allocations(function(a, b) return a + b end) - allocations(function(a, b) return a:add_(b) end), 1,
    "add_ makes no new value")
end

-- ---- layers over the last dimension of (N, H, W, C), and of the same values as (N, H W, C): the same losses
do
  local function model(wide)
    return nn.Graph{conv = nn.Conv2d(3, 5, 2), norm = nn.LayerNorm(5), up = nn.Linear(5, 7), down = nn.Linear(7, 5),
      last = nn.Conv2d(5, 2, 1), forward = function(self, x)
        local image = self.conv(x)
        local y = wide and image:permute(0, 2, 3, 1) or image:flatten(2):transpose(1, 2)
        y = self.down(nn.gelu(self.up(self.norm(y))))
        y = wide and y:permute(0, 3, 1, 2) or y:transpose(1, 2):unflatten(2, {3, 4})
        return self.last(image + y):flatten(1)
      end}
  end
  for _, settings in ipairs{{}, {checkpoint = "all"}, {inplace = true}} do
    local options = {settings = settings, what = "images by their last dimension"}
    local wide, flat = train(model(true), {2, 3, 4, 5}, options), train(model(false), {2, 3, 4, 5}, options)
    for i = 1, 3 do tap.near(wide.losses[i], flat.losses[i], 1e-5, "the same loss " .. i) end
    for name, gradient in pairs(wide.gradients) do
      tap.near(norm(gradient), norm(flat.gradients[name]), 1e-5, "the same gradient of " .. name)
    end
    -- GELU's gradient is not fused across a view: an op of its own, with a gradient of 2 x 12 x 7 numbers of its own
    tap.ok(wide.predicted.peak.bytes <= flat.predicted.peak.bytes + 2 * 12 * 7 * 4, "in no more memory but for one gradient")
  end
end

tap.done()
