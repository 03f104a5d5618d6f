-- Quantised weights in files: bitsandbytes' names and bytes, which transformers exchanges, too.
--
-- A weight X of 4 bits is X (two codes in a byte), X.absmax, X.quant_map, with double quantisation X.nested_absmax and
-- X.nested_quant_map, and X.quant_state.bitsandbytes__nf4 (or fp4), a JSON text as bytes, which has nested_offset. One
-- of 8 bits is X (I8), and SCB and weight_format beside it. A file may have the plain weight X instead.
local core = require "memtide.core"
local util = require "memtide.base.util"

local quantized = {}
local BLOCK, NESTED_BLOCK = 64, 256 -- math/quantized.h
local TYPES = {"nf4", "fp4"}

local function state_name(weight, format) return weight.name .. ".quant_state.bitsandbytes__" .. format end
local function offset_name(weight) return weight.name .. ".nested_offset" end
local function format_name(weight) return weight.name:gsub("weight$", "weight_format") end

-- The name of the weight that a derived tensor belongs to: "fc.weight" of "fc.weight.absmax" and of "fc.SCB"
local function weight_of(name) return name:match "^(.*weight)%.[%w_]+$" or (name:gsub("SCB$", "weight")) end

-- Names that files have beside those of the tensors
function quantized.names(weight)
  if weight.quantized.format == "int8" then return {(format_name(weight))} end
  local names = {}
  for i, format in ipairs(TYPES) do names[i] = state_name(weight, format) end
  return names
end

-- ---- writing

-- The JSON text of a weight. offset: a number, with double quantisation
local function state_text(weight, offset)
  local shape = weight.quantized.shape
  local text = ('"quant_type": "%s", "blocksize": %d, "dtype": "float32", "shape": [%d, %d]'):format(
    weight.quantized.format, BLOCK, shape[1], shape[2])
  if not weight.quantized.nested then return "{" .. text .. "}" end
  local nested = '"nested_blocksize": %d, "nested_dtype": "float32", "nested_offset": %.17g'
  return ("{%s, %s}"):format(text, nested:format(NESTED_BLOCK, offset))
end

-- Changes the list {name, number, ...} of what is saved: quant_state takes the place of nested_offset. weights: of the
-- network; read(name) -> {values}
function quantized.save(list, weights, read)
  local states = {}
  for _, weight in ipairs(weights) do
    if weight.quantized and weight.quantized.format ~= "int8" then
      states[offset_name(weight)] = true
      local offset = weight.quantized.nested and read(offset_name(weight))[1]
      list[#list + 1] = state_name(weight, weight.quantized.format)
      list[#list + 1] = state_text(weight, offset)
    end
  end
  local kept = {}
  for i = 1, #list, 2 do
    if not states[list[i]] then kept[#kept + 1], kept[#kept + 2] = list[i], list[i + 1] end
  end
  return kept
end

-- The list of tensors, in which the weights whose names `chosen` has are numbers, not codes
function quantized.as_numbers(list, chosen)
  local kept = {}
  for _, tensor in ipairs(list) do
    if tensor.quantized and chosen[tensor.name] then tensor.quantized = nil end
    if not (tensor.derived and chosen[weight_of(tensor.name)]) then kept[#kept + 1] = tensor end
  end
  return kept
end

-- ---- reading

local function refuse(path, name, format, ...)
  util.fail("trainer:load: %s: %s: %s", path, name, format:format(...))
end

local function same(path, name, field, expected, found)
  if found ~= expected then refuse(path, name, "%s: expected %s, found %s", field, expected, tostring(found)) end
end

-- The state of a weight of 4 bits in the file, checked -> its nested_offset, or nil
local function read_state(path, weight, tensor)
  local want, name = weight.quantized, tensor.name
  same(path, name, "quant_type", want.format, name:match "[^_]*$")
  local state = core.json(util.must(tensor.file:bytes(name)), path)
  if type(state) ~= "table" then refuse(path, name, "expected a JSON object") end
  same(path, name, "quant_type", want.format, state.quant_type)
  same(path, name, "blocksize", BLOCK, state.blocksize)
  local shape = type(state.shape) == "table" and table.concat(state.shape, ", ")
  same(path, name, "shape", table.concat(want.shape, ", "), shape)
  local offset = state.nested_offset
  if not want.nested then
    if offset then refuse(path, name, "nested_offset: expected none (compress_statistics = false), found %s", tostring(offset)) end
  elseif type(offset) ~= "number" or offset ~= offset or math.abs(offset) == math.huge then
    refuse(path, name, "nested_offset: expected a number (compress_statistics = true), found %s",
      type(offset) == "number" and offset or "none")
  else same(path, name, "nested_blocksize", NESTED_BLOCK, state.nested_blocksize) end
  return offset
end

-- The state that the file has for a weight of 4 bits, or nil
local function find_state(path, weight, found)
  for _, format in ipairs(TYPES) do
    local tensor = found[state_name(weight, format)]
    if tensor then return read_state(path, weight, tensor) or true end
  end
end

local function must_be_finite(path, tensor)
  if tensor and tensor.as == "f32" and not util.must(tensor.file:finite(tensor.name)) then
    refuse(path, tensor.name, "has a number that is not finite")
  end
end

-- Takes the texts that belong to the weight out of what was found -> is it codes in the file?, its nested_offset
local function take_texts(path, weight, found)
  if weight.quantized.format == "int8" then
    local name = format_name(weight)
    if found[name] and util.must(found[name].file:bytes(found[name].name)) ~= "\0" then
      refuse(path, name, "expected 0, rows of weights as they are")
    end
    found[name] = nil
    return found[weight.name].dtype == "I8"
  end
  local state = find_state(path, weight, found)
  for _, format in ipairs(TYPES) do found[state_name(weight, format)] = nil end
  local codes = state ~= nil or found[weight.name].dtype == "U8"
  if codes and not state then
    refuse(path, weight.name, "has codes, but the file has no %s", state_name(weight, weight.quantized.format))
  end
  return codes, tonumber(state)
end

-- Says of a network's tensors what a file must have for them, and which of them are read as bytes (stored = true).
-- list: {name, shape, dtype, as, quantized, derived, ...}, which are changed. found: by the network's names; texts are
-- taken out of it. Raises at codes that do not fit. -> list, {name = number} of values that no tensor has
function quantized.expect(path, list, found)
  local kept, values, codes = {}, {}, {}
  for _, want in ipairs(list) do
    if want.quantized and found[want.name] then
      codes[want.name], values[offset_name(want)] = take_texts(path, want, found)
      if not codes[want.name] then want.shape, want.as = want.quantized.shape, "f32" end
    elseif want.quantized then codes[want.name] = true end
  end
  for _, want in ipairs(list) do
    local is_codes = codes[want.derived and weight_of(want.name) or want.name]
    local in_text = want.derived and want.name:find "%.nested_offset$"
    if is_codes then
      want.stored = true
      must_be_finite(path, found[want.name])
      if want.derived and not in_text and found[weight_of(want.name)] and not found[want.name] then
        refuse(path, want.name, "is missing, but its codes are there")
      end
    end
    if not in_text and (is_codes or not want.derived) then kept[#kept + 1] = want end
  end
  return kept, values
end

return quantized
