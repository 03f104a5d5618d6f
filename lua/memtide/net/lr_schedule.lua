-- Learning-rate schedules with PyTorch's names, in closed form: the rate of an update as a function of its number (0,
-- 1, ...) and of the optimizer's own rate. PyTorch's schedulers count calls of step(); here `every` updates are one
-- call.
local literal = require "memtide.base.literal"
local util = require "memtide.base.util"

local lr_schedule = {schedules = {}}
local Schedule = {__name = "memtide.net.lr_schedule"}
Schedule.__index = Schedule

-- The rate after `part`, 0 to 1, of the way from one rate to another
local ANNEAL = {
  cos = function(from, to, part) return to + (from - to) * (1 + math.cos(math.pi * part)) / 2 end,
  linear = function(from, to, part) return from + (to - from) * part end,
}

-- The phases of PyTorch's OneCycleLR: up to the highest rate, then down; with three_phase, down in two phases
local function one_cycle(o, _, t)
  local total = o.total_steps or o.epochs * o.steps_per_epoch
  local low, peak = o.max_lr / o.div_factor, o.pct_start * total - 1
  local ends, rates = {peak, total - 1}, {low, o.max_lr, low / o.final_div_factor}
  if o.three_phase then ends, rates = {peak, 2 * peak, total - 1}, {low, o.max_lr, low, low / o.final_div_factor} end
  local begin = 0
  t = math.min(t, total - 1)
  for i, last in ipairs(ends) do
    if t <= last or i == #ends then
      return ANNEAL[o.anneal_strategy](rates[i], rates[i + 1], (t - begin) / (last - begin))
    end
    begin = last
  end
end

local function warm_restarts(o, lr, t)
  local length = o.T_0
  while t >= length do t, length = t - length, length * o.T_mult end
  return ANNEAL.cos(lr, o.eta_min, t / length)
end

-- SequentialLR: after each milestone the next schedule, from its own beginning
local function in_turns(o, lr, t)
  local turn, begin = 1, 0
  for i, milestone in ipairs(o.milestones) do
    if t >= milestone then turn, begin = i + 1, milestone end
  end
  return o.schedulers[turn]:rate(lr, t - begin)
end

-- name = {its arguments in PyTorch's order, their defaults (false: none), rate(arguments, the optimizer's rate, t), how
-- many arguments may be positional (nil: all); before the others PyTorch has arguments that are not here}
local KINDS = {
  StepLR = {{"step_size", "gamma"}, {gamma = 0.1}, function(o, lr, t) return lr * o.gamma ^ (t // o.step_size) end},
  MultiStepLR = {{"milestones", "gamma"}, {gamma = 0.1}, function(o, lr, t)
    for _, milestone in ipairs(o.milestones) do if t >= milestone then lr = lr * o.gamma end end
    return lr
  end},
  ConstantLR = {{"factor", "total_iters"}, {factor = 1 / 3, total_iters = 5}, function(o, lr, t)
    return t < o.total_iters and lr * o.factor or lr
  end},
  ExponentialLR = {{"gamma"}, {}, function(o, lr, t) return lr * o.gamma ^ t end},
  LinearLR = {{"start_factor", "end_factor", "total_iters"}, {start_factor = 1 / 3, end_factor = 1, total_iters = 5},
    function(o, lr, t)
      return lr * ANNEAL.linear(o.start_factor, o.end_factor, math.min(t, o.total_iters) / o.total_iters)
    end},
  PolynomialLR = {{"total_iters", "power"}, {total_iters = 5, power = 1}, function(o, lr, t)
    return lr * (1 - math.min(t, o.total_iters) / o.total_iters) ^ o.power
  end},
  CosineAnnealingLR = {{"T_max", "eta_min"}, {eta_min = 0}, function(o, lr, t)
    return ANNEAL.cos(lr, o.eta_min, t / o.T_max)
  end},
  CosineAnnealingWarmRestarts = {{"T_0", "T_mult", "eta_min"}, {T_mult = 1, eta_min = 0}, warm_restarts},
  OneCycleLR = {{"max_lr", "total_steps", "epochs", "steps_per_epoch", "pct_start", "anneal_strategy",
    "cycle_momentum", "div_factor", "final_div_factor", "three_phase"}, {total_steps = false, epochs = false,
    steps_per_epoch = false, pct_start = 0.3, anneal_strategy = "cos", div_factor = 25, final_div_factor = 1e4,
    three_phase = false}, one_cycle, 7},
  LambdaLR = {{"lr_lambda"}, {}, function(o, lr, t)
    local factor = o.lr_lambda(t)
    return type(factor) == "number" and lr * factor or factor
  end},
  SequentialLR = {{"schedulers", "milestones"}, {}, in_turns},
  -- the rate rises linearly for `steps` steps to the optimizer's own; then `after` begins
  LinearWarmup = {{"steps", "after"}, {after = false}, function(o, lr, t)
    if t < o.steps then return lr * (t + 1) / o.steps end
    return o.after and o.after:rate(lr, t - o.steps) or lr
  end},
}
lr_schedule.kinds = KINDS

local function is_schedule(value) return getmetatable(value) == Schedule end

local function is_list_of(test)
  return function(value)
    if type(value) ~= "table" or getmetatable(value) then return false end
    for _, item in ipairs(value) do if not test(item) then return false end end
    return true
  end
end

local function is_number(value) return type(value) == "number" end
local function is_count(value) return math.type(value) == "integer" and value > 0 end

-- Checks of arguments that are not any number
local RIGHT = {
  milestones = is_list_of(is_number), schedulers = is_list_of(is_schedule), after = is_schedule,
  lr_lambda = function(value) return type(value) == "function" end,
  anneal_strategy = function(value) return ANNEAL[value] ~= nil end,
  three_phase = function(value) return type(value) == "boolean" end,
  cycle_momentum = function(value) return value == false end,
}
for name in ("step_size total_iters T_max T_0 T_mult steps every total_steps epochs steps_per_epoch"):gmatch "%S+" do
  RIGHT[name] = is_count
end

-- Checks of arguments together, when each is right by itself: a message, or nil
local WRONG = {
  OneCycleLR = function(o)
    local given = o.total_steps or (o.epochs and o.steps_per_epoch)
    return not given and "expected total_steps, or epochs and steps_per_epoch" or nil
  end,
  SequentialLR = function(o)
    return #o.schedulers ~= #o.milestones + 1 and ("expected a milestone between each two of %d schedules, found %d")
      :format(#o.schedulers, #o.milestones) or nil
  end,
}

local function show(value)
  if is_schedule(value) then return value.text end
  if type(value) == "table" and is_schedule(value[1]) then
    local parts = {}
    for i, part in ipairs(value) do parts[i] = show(part) end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  return type(value) == "function" and "function" or literal.of(value)
end

-- Positional arguments, then a table of named ones -> {name = value} with defaults and `every`, and the list of names
local function arguments_of(kind, row, ...)
  local names, defaults, places = row[1], row[2], row[4] or #row[1]
  local given, count, options = {...}, select("#", ...), {every = 1}
  local named = given[count]
  if count > 0 and type(named) == "table" and not is_schedule(named) and #named == 0 then count = count - 1
  else named = {} end
  local known = table.move(names, 1, #names, 2, {"every"})
  util.check_keys("optim." .. kind, named, known)
  for name, value in pairs(defaults) do options[name] = value end
  if count > places then util.fail("optim.%s takes at most %d arguments in place", kind, places) end
  for i = 1, count do options[names[i]] = given[i] end
  for name, value in pairs(named) do options[name] = value end
  for _, name in ipairs(known) do
    local value = options[name]
    if not (RIGHT[name] or is_number)(value) and not (value == false and defaults[name] == false) then
      util.fail("optim.%s: %s: %sfound %s", kind, name, name == "cycle_momentum" and
        "only false is known here, and PyTorch's default is true: " or "", value == nil and "nothing" or show(value))
    end
  end
  local wrong = WRONG[kind] and WRONG[kind](options)
  if wrong then util.fail("optim.%s: %s", kind, wrong) end
  return options, known
end

for kind, row in pairs(KINDS) do
  lr_schedule.schedules[kind] = function(...)
    local options, known = arguments_of(kind, row, ...)
    local words = {kind}
    for _, name in ipairs(known) do words[#words + 1] = name .. "=" .. show(options[name]) end
    return setmetatable({kind = kind, options = options, curve = row[3], text = table.concat(words, " ")}, Schedule)
  end
end

-- The rate of update number `update` (0, 1, ...); lr: the optimizer's own rate. Raises where it is no finite number, as a
-- script's own function may give it.
function Schedule:rate(lr, update)
  assert(update >= 0)
  local rate = self.curve(self.options, lr, update // self.options.every)
  if type(rate) ~= "number" or rate - rate ~= 0 then
    util.fail("optim.%s: the rate of update %d: expected a finite number, found %s", self.kind, update, literal.of(rate))
  end
  return rate
end

function Schedule.__tostring(self) return self.text end

lr_schedule.is = is_schedule

return lr_schedule
