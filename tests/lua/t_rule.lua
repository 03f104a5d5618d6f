-- optim.Rule: an update that a script writes as a formula, beside the built-in optimizer that it stands for.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

-- ---- the same optimizers, as users write them

local function AdamW(options)
  return optim.Rule{lr = options.lr, clip_norm = options.clip_norm, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.01,
    states = {"m", "v"}, update = function(p, g, s, t, o)
      p:sub_(o.lr * o.decay * p)
      s.m = o.beta1 * s.m + (1 - o.beta1) * g
      s.v = o.beta2 * s.v + (1 - o.beta2) * g ^ 2
      local rate = o.lr * optim.sqrt(1 - o.beta2 ^ t) / (1 - o.beta1 ^ t)
      p:sub_(rate * s.m / (s.v:sqrt() + o.eps * optim.sqrt(1 - o.beta2 ^ t)))
    end}
end

local function Momentum(options)
  return optim.Rule{lr = options.lr, clip_norm = options.clip_norm, momentum = 0.5, states = {"buffer"},
    update = function(p, g, s, _, o)
      s.buffer = o.momentum * s.buffer + g
      return p - o.lr * s.buffer
    end}
end

local function RMSprop(options) -- in place, as PyTorch's own for-loop writes it
  return optim.Rule{lr = options.lr, clip_norm = options.clip_norm, alpha = 0.99, eps = 1e-8,
    states = {"square"}, update = function(p, g, s, _, o)
    s.square:mul_(o.alpha):addcmul_(g, g, {value = 1 - o.alpha})
    p:addcdiv_(g, s.square:sqrt():add_(o.eps), {value = -o.lr})
  end}
end

local PAIRS = { -- name, the rule, the built-in one, largest difference of a parameter after the steps
  {"AdamW", AdamW, optim.AdamW, 3e-6}, {"RMSprop", RMSprop, optim.RMSprop, 3e-6}, {"SGD", Momentum, function(o)
    return optim.SGD{lr = o.lr, momentum = 0.5, clip_norm = o.clip_norm}
  end, 0},
}

local function network() return nn.Sequential{nn.Linear(40, 96), nn.Tanh(), nn.Linear(96, 5)} end

local function train(optimizer, options)
  local all = {model = network(), input = {40}, batch = 6, loss = nn.CrossEntropyLoss(), optimizer = optimizer, seed = 3}
  for key, value in pairs(options or {}) do all[key] = value end
  local trainer <close> = assert(mt.trainer(all))
  for s = 1, 8 do
    local x, y = {}, {}
    for i = 1, 6 * 40 * (all.accumulate or 1) do x[i] = math.cos(0.37 * i + s) end
    for i = 1, 6 * (all.accumulate or 1) do y[i] = (i + s) % 5 end
    assert(trainer:step(x, y))
  end
  local found = trainer:read "0.weight"
  return table.move(trainer:read "2.weight", 1, 96 * 5, #found + 1, found)
end

local function farthest(a, b)
  local most = 0
  for i = 1, #a do
    local d = math.abs(a[i] - b[i])
    if d > most or d ~= d then most = d end -- a NaN, too
  end
  return most
end

for _, pair in ipairs(PAIRS) do
  local name, rule, built_in, tolerance = table.unpack(pair)
  for _, case in ipairs{{"fp32"}, {"amp_bf16", {precision = "amp_bf16"}}, {"accumulated", {accumulate = 2}},
      {"masters", {precision = "master_bf16"}}, {"clipped", {}, 0.1},
      {"falling", {schedule = optim.ExponentialLR(0.5)}}} do
    local options = {lr = 0.01, clip_norm = case[3]}
    local d = farthest(train(rule(options), case[2]), train(built_in(options), case[2]))
    tap.ok(d <= (case[1] == "fp32" and tolerance or 20 * tolerance + (case[1] == "masters" and 2e-3 or 0)),
      ("%s as a formula, %s: %g"):format(name, case[1], d))
  end
end

-- ---- the whole program: prediction is measurement, states are saved and come back
local row = mt.experiment{name = "rule", model = network(), input = {40}, batch = 6, loss = nn.CrossEntropyLoss(),
  optimizer = AdamW{lr = 0.01}, sweep = {{"precision", {"fp32", "master_bf16"}}}}
tap.ok(row ~= nil, "an experiment takes a rule")

-- ---- mistakes, with the line of the script
local function wrong(expected, options, what)
  tap.raises(expected, what, optim.Rule, options)
end
wrong("expected a function", {lr = 1}, "no formula")
wrong("the parameter stays as it was", {update = function() end}, "a formula that changes nothing")
wrong("there is no state k", {states = {"m"}, update = function(_, _, s) return s.k end}, "an unknown state")
wrong("has no such option", {update = function(p, _, _, _, o) return p * o.beta end}, "an unknown option")
wrong("compared by a:lt", {update = function(p, g, _, t) return t > 3 and p - g or p end}, "an if")
wrong("has no method exq", {update = function(p, g) return p - g:exq() end}, "an unknown function")
wrong(tap.line(), {update = function(p, g) return p - g:exq() end}, "says the line")
wrong("cannot be the name of a state", {states = {"get"}, update = function(p, g) return p - g end}, "a reserved name")
wrong("a value of its own", {states = {"last"}, update = function(p, g, s)
  s.last = g
  return p - g
end}, "a state that is the gradient")
wrong("at most 3 states", {states = {"a", "b", "c", "d"}, update = function(p, g) return p - g end}, "too many states")
wrong("must not be negative", {lr = -1, update = function(p, g) return p - g end}, "a negative rate")
tap.done()
