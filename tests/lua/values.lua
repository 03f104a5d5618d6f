-- The numbers that fill the parameters and inputs of models of transformers on both sides: tests/peers/hf_cases.py has the same
-- formulas.
local values = {}

-- A fixed whole number below 2^32 for element i of what has the number h
function values.mixed(i, h)
  local x = (i * 0x9E3779B1 + h * 0x85EBCA77) & 0xFFFFFFFF
  x = (x ~ (x >> 15)) * 0x2C1B3C6D & 0xFFFFFFFF
  return x ~ (x >> 12)
end

-- `count` numbers from -1 to 1 for a name
function values.numbers(count, name)
  local h, list = 0, {}
  for k = 1, #name do h = h + k * name:byte(k) end
  for i = 0, count - 1 do list[i + 1] = values.mixed(i, h) / (1 << 31) - 1 end
  return list
end

-- The values of a parameter
function values.value_of(name, count, shape)
  local list = values.numbers(count, name)
  for i, x in ipairs(list) do
    list[i] = #shape == 1 and name:find "weight$" and 1 + 0.1 * x or (#shape == 1 and 0.1 or 0.3) * x
  end
  return list
end

-- `count` tokens below 43
function values.tokens(count)
  local ids = {}
  for i = 0, count - 1 do ids[i + 1] = 3 + values.mixed(i, 1) % 40 end
  return ids
end

return values
