-- Learning-rate schedules under PyTorch's names, in closed form: the rate of an update from its number (0, 1, ...) and
-- the optimizer's own rate. PyTorch's schedulers count calls of step(); here `every` updates are one such call.
local plain = require "memtide.plain"
local util = require "memtide.util"

local schedule = {schedules = {}}
local Schedule = {__name = "memtide.schedule"}
Schedule.__index = Schedule

-- name = {its arguments in PyTorch's order, their defaults, rate(arguments, the optimizer's rate, t)}
local KINDS = {
  StepLR = {{"step_size", "gamma"}, {gamma = 0.1}, function(o, lr, t) return lr * o.gamma ^ (t // o.step_size) end},
  MultiStepLR = {{"milestones", "gamma"}, {gamma = 0.1}, function(o, lr, t)
    for _, milestone in ipairs(o.milestones) do if t >= milestone then lr = lr * o.gamma end end
    return lr
  end},
  ExponentialLR = {{"gamma"}, {}, function(o, lr, t) return lr * o.gamma ^ t end},
  LinearLR = {{"start_factor", "end_factor", "total_iters"}, {start_factor = 1 / 3, end_factor = 1, total_iters = 5},
    function(o, lr, t)
      return lr * (o.start_factor + (o.end_factor - o.start_factor) * math.min(t, o.total_iters) / o.total_iters)
    end},
  CosineAnnealingLR = {{"T_max", "eta_min"}, {eta_min = 0}, function(o, lr, t)
    return o.eta_min + (lr - o.eta_min) * (1 + math.cos(math.pi * t / o.T_max)) / 2
  end},
  LambdaLR = {{"lr_lambda"}, {}, function(o, lr, t) return lr * o.lr_lambda(t) end},
  -- steps of a rate that rises in a straight line, reaching the optimizer's own; then `after`, from its own beginning
  LinearWarmup = {{"steps", "after"}, {after = false}, function(o, lr, t)
    if t < o.steps then return lr * (t + 1) / o.steps end
    return o.after and o.after:rate(lr, t - o.steps) or lr
  end},
}

local function is_schedule(value) return getmetatable(value) == Schedule end

local function is_right(name, value)
  if name == "milestones" then
    for _, n in ipairs(type(value) == "table" and value or {}) do if type(n) ~= "number" then return false end end
    return type(value) == "table"
  end
  if name == "lr_lambda" then return type(value) == "function" end
  if name == "after" then return value == false or is_schedule(value) end
  if name == "step_size" or name == "total_iters" or name == "T_max" or name == "steps" or name == "every" then
    return math.type(value) == "integer" and value > 0
  end
  return type(value) == "number"
end

local function show(value)
  if is_schedule(value) then return value.text end
  return type(value) == "function" and "function" or plain.literal(value)
end

-- Arguments by place, then a table of named ones -> {name = value}, with defaults and `every`
local function arguments_of(kind, names, defaults, ...)
  local given, count, options = {...}, select("#", ...), {every = 1}
  local named = given[count]
  if count > 0 and type(named) == "table" and not is_schedule(named) and #named == 0 then count = count - 1
  else named = {} end
  local known = table.move(names, 1, #names, 2, {"every"})
  util.check_keys("optim." .. kind, named, known)
  for name, value in pairs(defaults) do options[name] = value end
  for i = 1, count do options[names[i] or util.fail("optim.%s takes at most %d arguments", kind, #names)] = given[i] end
  for name, value in pairs(named) do options[name] = value end
  for _, name in ipairs(known) do
    if not is_right(name, options[name]) then
      util.fail("optim.%s: %s: found %s", kind, name, options[name] == nil and "nothing" or show(options[name]))
    end
  end
  return options, known
end

for kind, row in pairs(KINDS) do
  local names, defaults, rate = table.unpack(row)
  schedule.schedules[kind] = function(...)
    local options, known = arguments_of(kind, names, defaults, ...)
    local words = {kind}
    for _, name in ipairs(known) do words[#words + 1] = name .. "=" .. show(options[name]) end
    return setmetatable({kind = kind, options = options, curve = rate, text = table.concat(words, " ")}, Schedule)
  end
end

-- The rate of update `update` (0, 1, ...) where the optimizer's is `lr`.
function Schedule:rate(lr, update) return self.curve(self.options, lr, update // self.options.every) end

function Schedule.__tostring(self) return self.text end

schedule.is = is_schedule

return schedule
