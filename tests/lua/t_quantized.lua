-- Weights of 4 and 8 bits: codes and scales are bitsandbytes' to the bit, files are exchanged with it, layers train beside
-- them, and a model's linear layers become such ones.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local core = require "memtide.core"
local nn, optim = mt.nn, mt.optim

-- Numbers that tests/peers/quantized_cases.py makes, too
local function numbers(count, scale)
  local state, out = 12345, {}
  for i = 0, count - 1 do
    local total = 0
    for _ = 1, 4 do
      state = (state * 1103515245 + 12345) % 2147483648
      total = total + state
    end
    out[i + 1] = (total / 2147483648 - 2) * scale * (1 + i // 64 % 7)
  end
  return out
end

local function layer_of(kind, nested, columns, rows, bias)
  if kind == "int8" then return nn.Linear8bitLt(columns, rows, {bias = bias or false}) end
  return nn.Linear4bit(columns, rows, {bias = bias or false, quant_type = kind, compress_statistics = nested})
end

-- The checksums of all persistent buffers, by name
local function checksums(trainer)
  local sums = {}
  for i, buffer in ipairs(core.persistent(trainer.runtime)) do sums[buffer.name] = core.checksum(trainer.runtime, i) end
  return sums
end

local function packed(values)
  for i, x in ipairs(values) do values[i] = ("<f"):pack(x) end
  return table.concat(values)
end

local oracle = dofile "tests/oracle/quantized.lua"

-- ---- the bits of bitsandbytes
for _, case in ipairs(oracle.cases) do
  local what = ("%s%s of (%d, %d)"):format(case.kind, case.nested and ", nested" or "", case.rows, case.columns)
  local trainer = mt.trainer{model = layer_of(case.kind, case.nested, case.columns, case.rows), input = {case.columns},
    batch = 1, loss = nn.MSELoss(), optimizer = optim.SGD{lr = 1}}
  trainer:write("weight", numbers(case.rows * case.columns, 0.02))
  local sums = checksums(trainer)
  for name, sum in pairs(case.parts) do tap.is(sums[name], sum, what .. ": " .. name) end
  local values, shape = trainer:read("weight")
  tap.is(table.concat(shape, " "), ("%d %d"):format(case.rows, case.columns), what .. ": is read as the weight")
  tap.is(core.checksum(packed(values)), case.values, what .. ": its values")
end
tap.done()
