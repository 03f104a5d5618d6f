-- The exponents of a training's gradients: how many of them the precision of a step loses, and where a loss scale moves them.
-- A step of its own gives them, of a copy of the parameters in another runtime, so that the training's memory, time and numbers
-- stay as they are. It is made twice: as the training makes it, and in fp32.
local cell_settings = require "memtide.net.settings"
local core = require "memtide.core"
local optim = require "memtide.net.optim"
local util = require "memtide.base.util"

local exponents = {}

-- What the step needs of a training: {values = of parameters and buffers by name, scale = the loss scale, or nil}
function exponents.copy(runtime, network)
  local values = {}
  for _, list in ipairs{network:params(), network:buffers()} do
    for _, one in ipairs(list) do values[one.name] = util.must(runtime:read(one.name, 1, true)) end
  end
  return {values = values, scale = runtime:loss_scale(1)}
end

-- The settings of a step that keeps its gradients. What is computed again or offloaded changes none of them; a budget was
-- that of the other step.
local function settings_of(values, precision, scale)
  local out = cell_settings.for_core(values)
  out.precision, out.grad_scaler, out.keep_gradients = precision, scale or false, true
  out.optimizer = optim.optim.SGD{lr = 0} -- no states
  if math.type(out.checkpoint) then out.checkpoint = "all" end
  if math.type(out.offload) then out.offload = "none" end
  return out
end

-- Gradients by name, as batches. of: {network, device, values = settings, seed}; step(runtime) makes one step of program 1.
local function gradients(of, copy, precision, scale, step)
  local program <close> = util.must(core.compile(of.network, settings_of(of.values, precision, scale), of.device))
  local runtime <close> = util.must(core.runtime{programs = {program}, allocator = of.values.allocator, seed = of.seed})
  for name, values in pairs(copy.values) do util.must(runtime:write(name, values)) end
  util.must(step(runtime))
  local found = {}
  for _, param in ipairs(of.network:params()) do
    if param.trainable then found[param.name] = util.must(runtime:read(param.name .. ".grad", 1, true)) end
  end
  util.must(runtime:finish())
  return found
end

local LAST = {inf = 1, nan = 2}
local function before(a, b)
  local x, y = a.exponent, b.exponent
  local p = x == "zero" and -math.huge or LAST[x] and 1000 + LAST[x] or x
  local q = y == "zero" and -math.huge or LAST[y] and 1000 + LAST[y] or y
  return p < q
end

-- A list of {exponent =, exact =, stored =, underflow =}, with loss_scale and underflow_share.
--   exponent   e: magnitudes from 2^e, below 2^(e+1); or "zero" (which is first), "inf", "nan" (last)
--   exact      elements of the gradients of all trained parameters, as a step in fp32 without a loss scale has them
--   stored     the same elements as the training's own step leaves them to the optimizer: times the loss scale
--   underflow  of `exact`, those that are zero in `stored`
-- underflow_share: the sum of `underflow`, divided by all of `exact` that are not zero; nil: all are.
function exponents.of(of, copy, step)
  local exact = gradients(of, copy, "fp32", nil, step)
  local stored = gradients(of, copy, of.values.precision, copy.scale, step)
  local zero = {exponent = "zero", exact = 0, stored = 0, underflow = 0}
  local bins, list, lost, all = {zero = zero}, {zero, loss_scale = copy.scale}, 0, 0
  for name, values in pairs(exact) do
    for exponent, counts in pairs(core.exponents(values, stored[name])) do
      local bin = bins[exponent]
      if not bin then
        bin = {exponent = exponent, exact = 0, stored = 0, underflow = 0}
        bins[exponent], list[#list + 1] = bin, bin
      end
      for what, count in pairs(counts) do bin[what] = bin[what] + count end
    end
  end
  table.sort(list, before)
  for _, bin in ipairs(list) do
    lost = lost + bin.underflow
    if bin.exponent ~= "zero" then all = all + bin.exact end
  end
  list.underflow_share = all > 0 and lost / all or nil
  return list
end

-- The list as the text of the column gradient_histogram, "scale:1024 zero:12/30/0 -24:100/20/80": the loss scale, if there is
-- one; then of each exponent exact/stored/underflow
function exponents.text(list)
  local words = {list.loss_scale and "scale:" .. core.number(list.loss_scale)}
  for _, bin in ipairs(list) do
    words[#words + 1] = ("%s:%d/%d/%d"):format(bin.exponent, bin.exact, bin.stored, bin.underflow)
  end
  return table.concat(words, " ")
end

-- The list {{exponent =, exact =, stored =, underflow =}, ...} of such a text, with its loss_scale; nil: it is empty.
function exponents.read(text)
  local list = {loss_scale = tonumber(text:match "^scale:(%S+)")}
  for exponent, exact, stored, underflow in text:gmatch "(%S+):(%d+)/(%d+)/(%d+)" do
    list[#list + 1] = {exponent = math.tointeger(tonumber(exponent)) or exponent, exact = tonumber(exact),
      stored = tonumber(stored), underflow = tonumber(underflow)}
  end
  return list[1] and list
end

return exponents
