-- Heads of attention: PyTorch's functions have them in a dimension of their own, (N, H, T, D), memtide's attention side by side,
-- (N, T, H D), as products leave them. Here is noted which value of many dimensions is which one of few.
local forms = require "memtide.import.forms"
local wide = require "memtide.import.wide"
local text = forms.text

local heads = {}

-- A record of a value with heads:
--   form    of the value with heads side by side, (N, T, H D)
--   heads   H
--   apart   true where it is (N, H, T, D), false where it is (N, T, H, D)
--   flat    true where the script's own step gives the form, as attention does
--   times   how often heads are repeated; nil: they are not
--   stage   of heads that are being repeated: 1 where they have got a dimension for that, 2 where it is as large as `times`
--   copied  true, and no other field: it is a copy that lies in another order

local function with(held, changes)
  return setmetatable(changes, {__index = held})
end

-- The text of a value that was made of one with heads side by side
function heads.text(held, shape)
  local t, h, d = table.unpack(held.apart and {shape[3], shape[2], shape[4]} or {shape[2], shape[3], shape[4]})
  return text(held.form, (":view(0, %d, %d, %d)"):format(t, h, d) .. (held.apart and ":transpose(1, 2)" or ""))
end

-- A value (N, H, T, D), or (N, T, H, D), as one with heads side by side, whatever it was made of
local function taken_together(op, value, shape, apart)
  local t, h = table.unpack(apart and {shape[3], shape[2]} or {shape[2], shape[3]})
  local form = text(op.value(value), (apart and ":transpose(1, 2)" or "") .. (":view(0, %d, %d)"):format(t, h * shape[4]))
  return {form = form, heads = h, apart = apart}
end

local function dims_of(op)
  local list = op.args[2]
  return op.named.dims or type(list) == "table" and list or {table.unpack(op.args, 2)}
end

-- Does the call put dimensions 1 and 2 of 4 in each other's place?
local function exchanges(op, name)
  if name == "transpose" or name == "swapaxes" then
    local a, b = (op.args[2] or op.named.dim0) % 4, (op.args[3] or op.named.dim1) % 4
    return a + b == 3 and a * b == 2
  end
  local dims = name == "permute" and dims_of(op) or {}
  return #dims == 4 and dims[1] % 4 == 0 and dims[2] % 4 == 2 and dims[3] % 4 == 1 and dims[4] % 4 == 3
end

-- Where a dimension is put in after the heads of a value of 4: 2, 3; nil: it is none
local function gets_dimension(op, name)
  if name == "unsqueeze" then return (op.args[2] or op.named.dim) % 5 end
  local index = name == "getitem" and op.args[2]
  if type(index) ~= "table" or index.value or index.slice then return nil end
  local at
  for i, one in ipairs(index) do
    if type(one) == "table" and one.word == "None" then
      if at then return nil end
      at = i - 1
    elseif type(one) ~= "table" or not one.slice and one.word ~= "..." then return nil
    else
      for _, bound in ipairs(one.slice or {}) do if math.type(bound) == "integer" then return nil end end
    end
    if type(one) == "table" and one.word == "..." then return nil end
  end
  return at
end

-- Repeated heads: x[:, :, None].expand(N, K, n, T, D).reshape(N, K n, T, D), repeat_interleave(n, 1). Returns the record of what the call
-- gives; nil: it is none of that
local function repeated(op, name, from, shape, into)
  local value = op.args[1]
  if name == "repeat_interleave" and #shape == 4 then
    local times, dim = op.args[2] or op.named.repeats, op.args[3] or op.named.dim
    if math.type(times) ~= "integer" or math.type(dim) ~= "integer" then return nil end
    dim = dim % 4
    if dim ~= 1 and dim ~= 2 then return nil end
    local held = from or taken_together(op, value, shape, dim == 1)
    if held.times or (held.apart and 1 or 2) ~= dim then return nil end
    return with(held, {times = times})
  end
  local at = #shape == 4 and gets_dimension(op, name)
  if at == 2 or at == 3 then
    local held = from or taken_together(op, value, shape, at == 2)
    if held.times or (held.apart and 2 or 3) ~= at then return nil end
    return with(held, {times = 1, stage = 1})
  elseif not from or not from.stage then return nil end
  local place = from.apart and 3 or 4 -- of the dimension that is repeated
  if name == "expand" and from.stage == 1 then return with(from, {times = into[place], stage = 2})
  elseif wide.VIEWS[name] and from.stage == 2 and #into == 4 and into[place - 1] == from.heads * from.times then
    return with(from, {stage = false})
  end
  return nil
end

local NAMES = {"query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"} -- of attention's arguments

local function attention(op, held)
  local given = {}
  for i, name in ipairs(NAMES) do
    local one = op.args[i]
    if one == nil then one = op.named[name] end
    if type(one) == "table" and one.word == "None" then one = nil end
    given[name] = one
  end
  local parts, shapes = {}, {}
  for k = 1, 3 do
    local value = given[NAMES[k]]
    if type(value) ~= "table" or math.type(value.value) ~= "integer" then return nil, "of what is no value" end
    local shape = op.shapes[value.value + 1]
    local one = held[value.value]
    if one and one.copied then
      op.tell('PyTorch copies heads (contiguous) before attention: framework = "pytorch" predicts another copy of them')
      one = nil
    end
    if #shape == 3 then one = {form = op.value(value), heads = 1, apart = true}
    elseif #shape ~= 4 or one and (not one.apart or one.stage) then
      return nil, "of other values than (N, heads, T, features) (write x.view(N, T, heads, features).transpose(1, 2))"
    end
    parts[k], shapes[k] = one or taken_together(op, value, shape, true), shape
  end
  local q, k, v = table.unpack(parts)
  local mask = given.attn_mask
  if type(mask) == "table" and (not (mask.value or mask.parameter) or op.mask(mask)) then
    return nil, "with an attn_mask of booleans, or with infinities (write is_causal=True where it hides later steps)"
  elseif q.times or (k.times or 1) ~= (v.times or 1) then return nil, "of heads that are repeated in another way than keys and values are" end
  local out = text("F.scaled_dot_product_attention(", q.form, ", ", k.form, ", ", v.form)
  if mask then out[#out + 1], out[#out + 2] = ", ", op.value(mask) end
  out[#out + 1], out[#out + 2] = ", {num_heads = ", q.heads
  local function option(name, value, otherwise)
    if value ~= nil and value ~= otherwise then out[#out + 1], out[#out + 2] = (", %s = "):format(name), value end
  end
  option("is_causal", given.is_causal, false)
  option("dropout_p", given.dropout_p, 0)
  option("scale", given.scale, nil)
  option("enable_gqa", k.heads ~= q.heads or nil, nil)
  option("repeats", k.times and k.times > 1 or nil, nil)
  out[#out + 1] = "})"
  if k.heads ~= v.heads or k.heads * (k.times or 1) ~= q.heads and not given.enable_gqa then return nil, "of other heads of keys than of queries" end
  if shapes[3][#shapes[3]] ~= shapes[1][#shapes[1]] then return nil, "of values of another width than the queries" end
  return out, #shapes[1] == 4 and q.heads or nil
end

-- Notes what is a part of a value of more dimensions (wide.lua).
function heads.note(held, out, value)
  local shape, order = value.shape, value.order
  if #shape ~= 4 or order[1] ~= 1 or order[2] + order[3] ~= 5 or order[4] ~= 4 then return end
  held[out] = {form = text(value.form, (":view(-1, %d, %d)"):format(shape[2], shape[3] * shape[4])), heads = shape[3], apart = order[2] == 3}
end

heads.REPEATED = "of repeated heads, which scaled_dot_product_attention alone reads"

-- op: of spelling.call; name: its function's short name; held: {[value] = such a record} of the module, which this writes. Returns the form
-- of the result, or nil where it is none of attention's; false and why: it cannot be said.
function heads.call(op, name, held)
  local value, out = op.args[1], op.out[1]
  if name == "scaled_dot_product_attention" then
    local form, count = attention(op, held)
    if not form then return false, count end
    if count then held[out] = {form = {tag = "value", n = out}, heads = count, apart = true, flat = true} end
    return form
  end
  if not out or type(value) ~= "table" or math.type(value.value) ~= "integer" then return nil end
  local shape, into, from = op.shapes[value.value + 1], op.shapes[out + 1], held[value.value]
  if from and from.copied then from = nil end
  local many = repeated(op, name, from, shape, into)
  if many then
    held[out] = many
    return text()
  elseif from and not from.stage and exchanges(op, name) then
    held[out] = with(from, {apart = not from.apart, flat = false})
    return from.times and text() or from.flat and heads.text(held[out], into) or nil
  elseif from and from.times then return false, heads.REPEATED
  elseif from and name == "contiguous" then held[out] = from.apart and {copied = true} or with(from, {flat = false})
  elseif from and not from.apart and wide.VIEWS[name] and #into == 3 and into[3] == shape[3] * shape[4] then return from.form
  elseif not from and wide.VIEWS[name] and #shape == 3 and #into == 4 and into[3] * into[4] == shape[3] and shape[2] == into[2] then
    held[out] = {form = op.value(value), heads = into[3], apart = false}
  end
  return nil
end

return heads
