-- The loss scale: the scales and the steps without an update are those of torch.amp.GradScaler (tests/oracle/grad_scaler.lua,
-- by tests/peers/grad_scaler.py, which has these formulas, too), on the CPU or the device that TEST_DEVICE names; its options are
-- PyTorch's; and what it needs is predicted.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local settings = require "memtide.net.settings"
local nn, optim = mt.nn, mt.optim
local INPUTS, HIDDEN, OUTPUTS, BATCH, RATE = 6, 16, 4, 8, 0.02

local function values(count, seed, factor)
  local out = {}
  for i = 1, count do out[i] = (((i - 1) * 7 + seed * 5) % 17 - 8) / 16 * (factor or 1) end
  return out
end

local function new_trainer(precision, grad_scaler, more)
  local options = {model = nn.Sequential{nn.Linear(INPUTS, HIDDEN, {bias = false}), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS, {bias = false})},
    input = {INPUTS}, batch = BATCH, loss = nn.MSELoss(), optimizer = optim.SGD{lr = RATE}, precision = precision,
    grad_scaler = grad_scaler, device = os.getenv "TEST_DEVICE" or "cpu"}
  for key, value in pairs(more or {}) do options[key] = value end
  local made = assert(mt.trainer(options))
  for k, param in ipairs(made:parameters()) do assert(made:write(param.name, values(param.elements, k - 1))) end
  return made
end

local function batch_of(step, factor) return values(BATCH * INPUTS, step, factor), values(BATCH * OUTPUTS, step + 3) end

local function set_of(list)
  local set = {}
  for _, item in ipairs(list) do set[item] = true end
  return set
end

local function norm(list)
  local sum = 0
  for _, x in ipairs(list) do sum = sum + x * x end
  return math.sqrt(sum)
end

-- ---- PyTorch's sequences

for _, case in ipairs(dofile "tests/oracle/grad_scaler.lua") do
  local trainer <close> = new_trainer("amp_fp16", next(case.options) and case.options or nil)
  local large, scales, skipped = set_of(case.large), {}, {}
  tap.is(trainer:loss_scale(), case.options.init_scale or 65536, case.name .. ": the first scale")
  for step = 1, case.steps do
    local loss, _, was_skipped = trainer:step(batch_of(step, large[step] and 2.0 ^ 14))
    if was_skipped then skipped[#skipped + 1] = step end
    scales[step] = trainer:loss_scale()
    tap.near(loss, case.losses[step], 2e-3 * case.losses[step], ("%s: the loss of step %d"):format(case.name, step))
    tap.is(scales[step], case.scales[step], "and the scale after it")
  end
  tap.is(table.concat(skipped, " "), table.concat(case.skipped, " "), case.name .. ": the steps without an update")
  for k, param in ipairs(trainer:parameters()) do
    tap.near(norm(trainer:read(param.name)), case.norms[k], 1e-3 * case.norms[k], case.name .. ": " .. param.name)
  end
  local predicted = trainer:predicted(case.steps)
  tap.is(predicted.peak.bytes, trainer:memory().peak.bytes, case.name .. ": the peak was predicted")
end

-- ---- what a fixed scale, none, and a scale in other precisions do

-- The last four losses of six steps, of which the second's gradients overflow in fp16; the steps without an update; the scale
local function six(precision, grad_scaler, more)
  local trainer <close> = new_trainer(precision, grad_scaler, more)
  local losses, skipped = {}, {}
  for step = 1, 6 do
    local loss, _, was_skipped = trainer:step(batch_of(step, step == 2 and precision:find "fp16" and 2.0 ^ 14))
    losses[step] = loss
    if was_skipped then skipped[#skipped + 1] = step end
  end
  tap.is(trainer:predicted(6).peak.bytes, trainer:memory().peak.bytes,
    ("%s, %s: the peak was predicted"):format(precision, settings.text(grad_scaler or false)))
  return table.concat(losses, " ", 3), table.concat(skipped, " "), trainer:loss_scale()
end

-- by a power of two, and back: the same numbers, where nothing overflows
local plain, none, no_scale = six "fp32"
tap.is(no_scale, nil, "fp32 has no loss scale")
for _, given in ipairs{1024, true, {init_scale = 2.0 ^ -10}} do
  local losses, skipped = six("fp32", given)
  tap.is(losses .. skipped, plain .. none, "a scale in fp32 changes no number: " .. settings.text(given))
end
for _, precision in ipairs{"amp_fp16", "master_fp16", "fp16", "amp_bf16"} do
  local narrow = precision:find "fp16" ~= nil
  local losses, skipped, scale = six(precision, 1024)
  tap.is(scale, 1024.0, precision .. ": a fixed scale stays")
  tap.is(skipped, narrow and "2" or "", "also after an overflow, which has no update")
  tap.ok(not losses:find "nan", "so that the next losses are numbers")
  losses, skipped, scale = six(precision, false)
  tap.is(scale, nil, precision .. ": no scale")
  tap.is(skipped, "", "nothing is skipped")
  tap.is(losses:find "nan" ~= nil, narrow, "and an overflow stays in the parameters")
end
local _, skipped, scale = six("amp_fp16", {enabled = false, init_scale = 8})
tap.ok(skipped == "" and scale == nil, "enabled = false is false")
_, _, scale = six "fp16"
tap.is(scale, nil, "fp16 has no scale of itself")

-- a step in parts
do
  local trainer <close> = new_trainer("amp_fp16", {init_scale = 2.0 ^ 30}, {parts = true})
  trainer:forward(batch_of(1))
  trainer:backward()
  tap.is(select(3, trainer:update()), true, "update says that it was left out")
  tap.is(trainer:loss_scale(), 2.0 ^ 29, "and the scale has backed off")
end

-- a run that is resumed has its scale; another scaler is another run
do
  local path = os.tmpname()
  local trainer <close> = new_trainer("amp_fp16", {init_scale = 2.0 ^ 30})
  trainer:step(batch_of(1))
  assert(trainer:save_state(path))
  local again <close> = new_trainer("amp_fp16", {init_scale = 2.0 ^ 30})
  assert(again:load_state(path))
  tap.is(again:loss_scale(), 2.0 ^ 29, "the scale goes on")
  local other <close> = new_trainer("amp_fp16", 1024)
  tap.raises("grad_scaler", "another scaler is refused", other.load_state, other, path)
  os.remove(path)
end

-- several networks: each has a scale of its own
do
  local function program(name, given)
    return {name = name, model = nn.Sequential{{name, nn.Linear(2, 1)}}, input = {2}, loss = nn.MSELoss(),
      optimizer = optim.SGD{lr = 0.1}, grad_scaler = given}
  end
  local joint <close> = assert(mt.joint{programs = {program("a", 8), program("b", {init_scale = 2.0 ^ 100}), program("c", false)},
    batch = 1, precision = "amp_fp16"})
  for _, name in ipairs{"a", "b", "c"} do
    tap.is(select(3, joint:step(name, {1, 2}, {3})), name == "b", name .. ": whether it is skipped")
  end
  tap.ok(joint:loss_scale "a" == 8 and joint:loss_scale "b" == 2.0 ^ 99 and not joint:loss_scale "c", "a scale for each program")
end

-- ---- options

local check = settings.known.grad_scaler.check
local function refused(value, problem, what)
  local good, expected, wrong = check(value)
  tap.is(good, nil, what)
  tap.has(wrong or expected, problem, "says what is wrong")
end
tap.is(check{}, true, "an empty table is PyTorch's scaler")
tap.is(check{growth_interval = 3, init_scale = 1024}, "growth_interval=3 init_scale=1024", "options as text")
refused({growth_factor = 1}, "growth_factor: expected a number above 1, found 1", "PyTorch: the growth factor must be > 1")
refused({backoff_factor = 1}, "backoff_factor: expected a number above 0 and below 1, found 1", "the backoff factor must be < 1")
refused({backoff_factor = 0}, "backoff_factor: expected", "a scale of 0 divides by 0")
refused({growth_interval = 0}, "growth_interval: expected a number from 1 to 2147483647, found 0", "an interval of no steps")
refused({growth_interval = 1.5}, "growth_interval", "of one and a half")
refused({init_scale = 0}, "init_scale: expected a number above 0, of fp32, found 0", "no scale")
refused({init_scale = 1e39}, "init_scale: expected", "more than fp32 holds")
refused({enabled = 1}, "enabled", "a number for a flag")
refused({init_scale = true}, "init_scale", "a flag for a number")
refused({init_scale = "many"}, "init_scale: expected a number, true or false, found many", "a word for a number")
refused({interval = 3}, "interval", "an option that PyTorch's lacks")
refused(-2, "the fixed scale: expected a number above 0, of fp32, found -2", "a negative scale")
refused(0 / 0, "the fixed scale", "no number")
refused("often", "expected name=value, found often", "a word")
refused(print, "true, false, a fixed scale, or a table", "a function")
tap.raises("grad_scaler: growth_factor: expected a number above 1", "a trainer's", new_trainer, "fp16", {growth_factor = 0.5})

tap.done()
