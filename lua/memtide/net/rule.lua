-- optim.Rule: an update that is written as a formula. The function runs once, on symbolic values; each operation is a
-- step, and the steps are the formula (core/program/formula.h), which memtide runs as one loop over the elements. What
-- variables hold is noted beside it: framework = "pytorch" takes the function as the body of a for-loop over
-- parameters.
local core = require "memtide.core"
local literal = require "memtide.base.literal"
local util = require "memtide.base.util"

local LATER, KEPT = 128, 255 -- as in core/math/formula.h
local OWN = {name = true, states = true, update = true, clip_norm = true} -- options that no formula reads
local RESERVED = {get = true, master = true} -- names that no state can have

local Value = {__name = "memtide.formula_value"} -- {trace, at = its step, storage = {last = , next = , kept = }}
local functions = {}                             -- by name: x:sqrt() and optim.sqrt(x)

local function is_value(x) return getmetatable(x) == Value end

-- ---- what variables hold

local function note(trace, value)
  if is_value(value) and value.trace == trace and value.storage then value.storage.last = #trace.steps end
end

-- A value that a variable of the running functions holds lives during the next step. A variable of the update itself
-- keeps what it was bound to last until the next parameter's turn binds it.
local function observe(trace)
  local function each(frame)
    for name, held in pairs(frame) do
      if name == 1 then each(held)
      elseif is_value(held) then note(trace, held)
      else
        for _, value in pairs(held) do note(trace, value) end
      end
    end
  end
  local frames = trace.locals:frames()
  for depth, frame in pairs(frames) do
    if depth > 0 then each(frame) end
  end
  trace.frame = frames[trace.depth] or trace.frame
  for name, held in pairs(trace.frame or {}) do
    if is_value(held) then
      trace.first[name] = trace.first[name] or #trace.steps
      trace.bound[name] = held
    end
  end
end

-- ---- steps

local function append(trace, step)
  trace.steps[#trace.steps + 1] = step
  return #trace.steps - 1
end

-- The tensor that the step makes
local function tensor(trace, at)
  local storage = {made = at, last = at}
  trace.storages[at] = storage
  return setmetatable({trace = trace, at = at, storage = storage}, Value)
end

-- A number that is the same for all elements; text: of the step that is added when it is first read
local function scalar_of(trace, at, text)
  return setmetatable({trace = trace, at = at or false, text = text or false, storage = false}, Value)
end

-- The step of an operand; a number is a step of its own, once.
local function step_of(trace, fn, x)
  if is_value(x) then
    if x.trace ~= trace or not trace.open then util.fail("%s: a value of another formula", fn) end
    x.at = x.at or append(trace, {text = x.text, scalar = true})
    return x.at
  end
  if type(x) == "boolean" then x = x and 1 or 0 end
  if type(x) ~= "number" then util.fail("%s: expected values and numbers, found a %s", fn, type(x)) end
  if x ~= x then util.fail("%s: found a number that is none (NaN)", fn) end
  trace.numbers[x] = trace.numbers[x] or append(trace, {text = ("number %.17g"):format(x), scalar = true})
  return trace.numbers[x]
end

-- Adds fn(...) and returns its value: the first operand, changed, where it works in place.
local function emit(fn, inplace, ...)
  local trace, of, scalar = nil, {}, true
  for i = 1, select("#", ...) do
    local x = select(i, ...)
    if is_value(x) then trace = trace or x.trace end
  end
  if not trace then util.fail("%s: expected a value of a formula, found %s", fn, literal.of((...))) end
  for i = 1, select("#", ...) do
    local x = select(i, ...)
    of[i] = step_of(trace, fn, x)
    scalar = scalar and trace.steps[of[i] + 1].scalar
  end
  observe(trace)
  for i = 1, select("#", ...) do
    local x = select(i, ...)
    if is_value(x) and x.storage then x.storage.last = #trace.steps end
  end
  local target = (...)
  if inplace and not (is_value(target) and target.storage) then
    util.fail("%s_: only parameters, gradients, states and what is computed from them can be changed in place", fn)
  end
  local at = append(trace, {text = ("%s%s %s"):format(fn, inplace and "!" or "", table.concat(of, " ")), scalar = scalar})
  if not inplace then return scalar and scalar_of(trace, at) or tensor(trace, at) end
  target.at = at
  return target
end

-- ---- what a formula can be made of

local function define(name, call, has_inplace)
  functions[name] = function(...) return call(false, ...) end
  if has_inplace then functions[name .. "_"] = function(...) return call(true, ...) end end
end

for name in ("neg abs sign sqrt rsqrt reciprocal exp log square"):gmatch "%a+" do
  define(name, function(inplace, x) return emit(name, inplace, x) end, true)
end
for name in ("maximum minimum gt ge lt le eq ne"):gmatch "%a+" do
  define(name, function(_, a, b) return emit(name, false, a, b) end)
end
define("clone", function(_, x) return emit("clone", false, x) end)
define("mul", function(inplace, a, b) return emit("mul", inplace, a, b) end, true)
define("lerp", function(inplace, a, b, weight) return emit("lerp", inplace, a, b, weight) end, true)
function functions.copy_(a, b) return emit("copy", true, a, b) end

-- The option of that name of a call's last argument, a table; default: where it is not given.
local function named(fn, options, name, default)
  if options == nil then return default end
  util.check_type(fn .. ": options", options, "table")
  for key in pairs(options) do
    if key ~= name then util.fail("%s: there is no option %s, only %s", fn, tostring(key), name) end
  end
  return options[name] == nil and default or options[name]
end

for name in ("add sub"):gmatch "%a+" do
  define(name, function(inplace, a, b, options)
    local alpha = named(name, options, "alpha", 1)
    if alpha == 1 then return emit(name, inplace, a, b) end
    return emit(name .. "_scaled", inplace, a, b, alpha)
  end, true)
end
for name in ("addcmul addcdiv"):gmatch "%a+" do
  define(name, function(inplace, a, b, c, options)
    return emit(name, inplace, a, b, c, named(name, options, "value", 1))
  end, true)
end

local function is_scalar(x) return not is_value(x) or not x.storage end

-- As Python and PyTorch: a number divided by a tensor is its reciprocal, times the number.
define("div", function(inplace, a, b)
  if not inplace and is_scalar(a) and not is_scalar(b) then return emit("mul", false, emit("reciprocal", false, b), a) end
  return emit("div", inplace, a, b)
end, true)

-- As PyTorch, powers that are simpler than pow are computed by what is simpler.
local POWERS = {[2] = "square", [0.5] = "sqrt", [-1] = "reciprocal", [-0.5] = "rsqrt"}
define("pow", function(inplace, x, n)
  if POWERS[n] then return emit(POWERS[n], inplace, x) end
  return emit("pow", inplace, x, n)
end, true)

define("clamp", function(inplace, x, options)
  util.check_type("clamp: options", options, "table")
  local least, most = options.min or -math.huge, options.max or math.huge
  for key in pairs(options) do
    if key ~= "min" and key ~= "max" then util.fail("clamp: there is no option %s, only min and max", tostring(key)) end
  end
  return emit("clamp", inplace, x, least, most)
end, true)

function functions.where(condition, a, b) return emit("where", false, condition, a, b) end

function functions.zeros_like(x)
  if is_scalar(x) then util.fail "zeros_like: expected a parameter, a gradient or what is like them" end
  observe(x.trace)
  return tensor(x.trace, append(x.trace, {text = "zeros_like"}))
end

Value.__add, Value.__sub, Value.__mul = functions.add, functions.sub, functions.mul
Value.__div, Value.__pow, Value.__unm = functions.div, functions.pow, functions.neg

local function no_order()
  util.fail("values of a formula are compared by a:lt(b), a:gt(b), ... and chosen by optim.where(condition, a, b)")
end
Value.__lt, Value.__le = no_order, no_order

function Value.__index(_, name)
  return functions[name] or util.fail("a value of a formula has no method %s%s", tostring(name),
    util.meant(name, util.sorted_keys(functions)))
end

-- ---- the function's arguments

-- s: s.m is a state's value, s.m = x binds another, s:get("m", optim.zeros_like(g)) is the value, where PyTorch's
-- program makes zeros in each turn.
local function states_of(trace, names)
  local cells, own = {}, {}
  for k, name in ipairs(names) do
    own[k] = tensor(trace, append(trace, {text = "state " .. k - 1}))
    cells[name] = own[k]
  end
  local function known(name)
    return cells[name] or util.fail("there is no state %s%s", tostring(name), util.meant(name, names))
  end
  local function get(_, name, default)
    local value, step = known(name), is_value(default) and default.storage and trace.steps[default.storage.made + 1]
    if not step or step.text ~= "zeros_like" then util.fail('get: expected optim.zeros_like(g) in place of a state') end
    for k, one in ipairs(names) do
      if one == name then step.text = "default " .. k - 1 end
    end
    return value
  end
  return cells, own, setmetatable({}, {
    __index = function(_, name) return name == "get" and get or known(name) end,
    __newindex = function(_, name, value)
      known(name)
      if is_scalar(value) then
        util.fail("s.%s: expected a value like the parameter, found %s", name, is_value(value) and "one number" or literal.of(value))
      end
      observe(trace)
      cells[name].storage.last = math.max(cells[name].storage.last, #trace.steps - 1)
      cells[name] = value
    end,
  })
end

local function options_of(trace, options)
  local lr = scalar_of(trace, nil, "lr")
  return setmetatable({}, {
    __index = function(_, name)
      if name == "lr" then return lr end
      local value = not OWN[name] and options[name]
      if value == nil or OWN[name] then
        util.fail("o.%s: the rule has no such option%s", tostring(name), util.meant(name, util.sorted_keys(options)))
      end
      return value
    end,
    __newindex = function(_, name) util.fail("o.%s is set in update: options do not change", tostring(name)) end,
  })
end

-- When a storage goes, as FormulaStep.until
local function until_of(storage)
  if storage.kept then return KEPT end
  return storage.next and LATER + storage.next or storage.last
end

-- ---- the formula

-- Runs options.update on symbolic values -> the trace, and what the names of its arguments hold then
local function trace_of(options)
  local names = options.states
  local trace = {steps = {}, numbers = {}, storages = {}, first = {}, bound = {}, open = true}
  local p, g = tensor(trace, append(trace, {text = "param"})), tensor(trace, append(trace, {text = "grad"}))
  local cells, own, s = states_of(trace, names)
  local t = scalar_of(trace, nil, "step")
  local o = options_of(trace, options)
  local param, grad = p.storage, g.storage
  local locals <close> = core.locals(Value)
  trace.locals = locals
  trace.depth = 2
  local result = options.update(p, g, s, t, o)
  if result ~= nil then
    if is_scalar(result) then util.fail "update: expected nothing or the parameter's new value as its result" end
    if result ~= p then emit("copy", true, p, result) end
  end
  observe(trace)
  trace.open = false
  return trace, {p = p, param = param, grad = grad, cells = cells, own = own, names = names}
end

local function text_of(trace, made)
  local results, replaced = {made.p.at}, {}
  if made.p.at == 0 then util.fail "update: the parameter stays as it was: expected its new value, or p:sub_(...)" end
  for name, value in pairs(trace.bound) do
    local storage = value.storage
    if storage then storage.next = math.max(storage.next or 0, trace.first[name]) end
  end
  for k, name in ipairs(made.names) do
    local value, own = made.cells[name], made.own[k].storage
    if value.storage == made.param or value.storage == made.grad then
      util.fail("s.%s is bound to the parameter or the gradient itself: expected a value of its own, as g:clone() is", name)
    end
    for other = 1, #made.names do
      if value.storage == made.own[other].storage and other ~= k then
        util.fail("s.%s is bound to the state %s: expected a value of its own, as s.%s:clone() is", name,
          made.names[other], made.names[other])
      end
    end
    value.storage.kept = true
    results[k + 1], replaced[k] = value.at, own
  end
  for k, own in ipairs(replaced) do replaced[k] = until_of(own) end
  local lines = {}
  for i, step in ipairs(trace.steps) do
    local storage = i > 2 + #made.names and trace.storages[i - 1]
    lines[i] = storage and ("%s @%d"):format(step.text, until_of(storage)) or step.text
  end
  return ("states %s; %s; results %s; replaced %s;"):format(table.concat(made.names, " "), table.concat(lines, "; "),
    table.concat(results, " "), table.concat(replaced, " "))
end

local function check(options)
  util.check_type("Rule: update", options.update, "function")
  util.check_type("Rule: states", options.states, "table")
  for _, name in ipairs(options.states) do
    if type(name) ~= "string" or not name:match "^[%a_][%w_]*$" or RESERVED[name] then
      util.fail("Rule: %s cannot be the name of a state", literal.of(name))
    end
  end
  for name, value in pairs(options) do
    local known = type(value) == "number" or type(value) == "boolean" or type(value) == "string" or OWN[name]
    if type(name) ~= "string" or not known then
      util.fail("Rule: options are numbers, flags and words by name, found %s", literal.of(name))
    end
  end
end

-- Rule{update = function(p, g, s, t, o) ... end, states = {names}, lr = 1e-3, clip_norm = 0, name = value, ...} ->
-- {kind, options = those that the core knows, formula, text, where}: a table for optim.lua. specs_check: of the core's
-- options
local function build(given, specs_check)
  util.check_type("Rule", given, "table")
  local options, words, own = {lr = 1e-3, states = {}}, {}, {lr = given.lr, clip_norm = given.clip_norm}
  for name, value in pairs(given) do options[name] = value end
  check(options)
  specs_check(own)
  local formula = text_of(trace_of(options))
  for _, name in ipairs(util.sorted_keys(options)) do
    if name ~= "states" and name ~= "update" then words[#words + 1] = name .. "=" .. literal.text(options[name]):gsub("%s", "_") end
  end
  words[#words + 1] = "formula=" .. core.hash(formula):sub(-8)
  return {kind = "Rule", options = own, formula = formula, text = table.concat(words, " "),
    where = core.where():gsub(": $", "")}
end

return {functions = functions, build = build}
