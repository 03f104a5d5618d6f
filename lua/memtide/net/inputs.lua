-- What a network is given: one value, whose shape of a sample is {3, 32, 32}, or several by name, as the arguments of the
-- model's forward function: {ids = {128, tokens = 30522}, pixels = {3, 224, 224}}.
local literal = require "memtide.base.literal"
local util = require "memtide.base.util"

local inputs = {}

inputs.EXPECTED = "the shape of one sample, one to three whole numbers such as {3, 32, 32}, or such shapes by name, " ..
  "{ids = {128, tokens = 30522}, pixels = {3, 224, 224}}"

local function is_whole(value) return math.type(value) == "integer" and value >= 1 end

-- Is it one to three whole numbers, and beside them nothing but an option of that name (nil: nothing)?
local function is_shape(value, option)
  if not literal.is_table(value) or #value < 1 or #value > 3 then return false end
  for key, n in pairs(value) do if not (is_whole(n) and (is_whole(key) or key == option)) then return false end end
  return true
end

function inputs.is_shape(value) return is_shape(value) end

-- Are there several inputs?
function inputs.are_several(input) return type(input) == "table" and input[1] == nil and next(input) ~= nil end

function inputs.is(value)
  if not literal.is_table(value) then return false end
  if not inputs.are_several(value) then return is_shape(value) end
  for name, shape in pairs(value) do
    if type(name) ~= "string" or not is_shape(shape, "tokens") then return false end
  end
  return true
end

local function shape_text(shape) return table.concat(shape, "x") end

-- "3x32x32"; "ids=128 pixels=3x224x224"
function inputs.text(input)
  if not inputs.are_several(input) then return shape_text(input) end
  local parts = {}
  for i, name in ipairs(util.sorted_keys(input)) do parts[i] = ("%s=%s"):format(name, shape_text(input[name])) end
  return table.concat(parts, " ")
end

-- The names of several inputs in the order in which the model takes them; raises unless these are its arguments.
local function ordered(model, input)
  local taken = rawget(model, "takes")
  if not taken then
    util.fail("several inputs (%s) are arguments of an nn.Graph's forward function, found the model %s",
      table.concat(util.sorted_keys(input), ", "), model.kind)
  end
  local known = {}
  for _, name in ipairs(taken) do
    known[name] = true
    if not input[name] then util.fail("the model's forward function takes %s: there is no such input", name) end
  end
  for name in pairs(input) do
    if not known[name] then
      util.fail("the model's forward function takes no %s%s", name, util.meant(name, taken))
    end
  end
  return taken
end

-- The list for core.network: {batch, ...}, or {{name, {batch, ...}}, ...}
function inputs.of(model, batch, input)
  if not inputs.are_several(input) then return {batch, table.unpack(input)} end
  local list = {}
  for i, name in ipairs(ordered(model, input)) do list[i] = {name, {batch, table.unpack(input[name])}} end
  return list
end

-- Raises unless each input that says tokens = n is read as indices that may be as large. made: network:inputs()
function inputs.check_tokens(input, made)
  if not inputs.are_several(input) then return end
  for _, one in ipairs(made) do
    local tokens = input[one.name].tokens
    if tokens and not one.indices then util.fail("input %s: tokens = %d, but no nn.Embedding reads it", one.name, tokens) end
    if tokens and tokens > one.indices then
      util.fail("input %s: tokens = %d, but an nn.Embedding that reads it has %d rows", one.name, tokens, one.indices)
    end
  end
end

return inputs
