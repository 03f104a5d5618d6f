-- Values of more dimensions than memtide has: windows of images, heads beside queries, keys and values. A view makes
-- one, its dimensions are put in another order or one of them is selected, and a view of few dimensions ends it.
-- Neighbours that stay neighbours are one dimension here, so that memtide's four are enough.
local forms = require "memtide.import.forms"
local text = forms.text

local wide = {}
local MOST = 4 -- dimensions of a value of memtide's

-- A wide value: {form = of the value that it is a view of, shape = its sizes in the order in which they lie, order =
-- {place in shape of each dimension, ...}}

local function product(sizes, first, last)
  local count, batch = 1, false
  for i = first, last do
    batch = batch or type(sizes[i]) == "table"
    count = count * (type(sizes[i]) == "table" and sizes[i].batch or sizes[i])
  end
  return batch and -1 or count
end

local function call(form, name, list)
  local out = text(form, (":%s("):format(name))
  for i, one in ipairs(list) do
    if i > 1 then out[#out + 1] = ", " end
    out[#out + 1] = one
  end
  out[#out + 1] = ")"
  return out
end

-- {{first, last}, ...}: places in shape that stay beside each other, in the order of the dimensions
local function groups(held)
  local list = {}
  for _, place in ipairs(held.order) do
    local last = list[#list]
    if last and last[2] == place - 1 then last[2] = place else list[#list + 1] = {place, place} end
  end
  return list
end

-- The value as it is now, of as many dimensions as there are groups; nil and why
local function ordered(held)
  local list = groups(held)
  if #list > MOST then return nil, ("an order of %d dimensions"):format(#list) end
  if #list == 1 then return held.form end
  local lying = table.move(list, 1, #list, 1, {})
  table.sort(lying, function(a, b) return a[1] < b[1] end)
  local sizes, dims = {}, {}
  for i, one in ipairs(lying) do
    sizes[i] = product(held.shape, one[1], one[2])
    for k, other in ipairs(list) do if other == one then dims[k] = i - 1 end end
  end
  return call(call(held.form, "view", sizes), "permute", dims)
end

-- A value of few dimensions: the wide one with this shape
local function narrowed(held, shape)
  local form, why = ordered(held)
  if not form then return nil, why end
  local sizes = {}
  for i = 1, #shape do sizes[i] = product(shape, i, i) end
  local alone = groups(held)[1][2] == 1 -- the first dimension is one of the ordered value, too
  local first = alone and held.order[1] == 1 and held.shape[1]
  if sizes[1] == -1 and type(first) == "table" and first.batch == shape[1].batch then sizes[1] = 0 end
  return call(form, "view", sizes)
end

-- The wide value without one dimension, of which `index` is left
local function selected(held, d, index)
  local at, shape, order = held.order[d], {}, {}
  local n = #held.shape
  local sizes = {product(held.shape, 1, at - 1), held.shape[at], product(held.shape, at + 1, n)}
  if at == 1 or type(sizes[2]) == "table" then return nil, "one sample of the batch" end
  for i, size in ipairs(held.shape) do if i ~= at then shape[#shape + 1] = size end end
  for i, place in ipairs(held.order) do
    if i ~= d then order[#order + 1] = place > at and place - 1 or place end
  end
  return {form = call(call(held.form, "view", sizes), "select", {1, index}), shape = shape, order = order}
end

local function dims_of(op, first)
  local list = op.args[first]
  return type(list) == "table" and list or {table.unpack(op.args, first)}
end

-- Another order of the dimensions of `held`
local ORDERS = {}

function ORDERS.permute(op, held)
  local order = {}
  for i, d in ipairs(op.named.dims or dims_of(op, 2)) do order[i] = held.order[d % #held.order + 1] end
  return order
end

function ORDERS.transpose(op, held)
  local order, n = table.move(held.order, 1, #held.order, 1, {}), #held.order
  local a, b = (op.args[2] or op.named.dim0) % n + 1, (op.args[3] or op.named.dim1) % n + 1
  order[a], order[b] = order[b], order[a]
  return order
end

function ORDERS.contiguous(_, held) return held.order end

local VIEWS = {view = true, reshape = true, flatten = true, unflatten = true}

local function is_lying(held)
  for i, place in ipairs(held.order) do if place ~= i then return false end end
  return true
end

-- Sizes of `held` and of what it is broadcast with, in which dimensions of one kind that lie beside each other are one:
-- those of both, and those of one alone
local function merged(held, other)
  local sizes, kind = {}, nil
  for d, size in ipairs(held.shape) do
    local now = ((size == 1) and 1 or 0) + ((other.shape[d] == 1) and 2 or 0)
    if now == kind then sizes[#sizes][2] = d else sizes[#sizes + 1] = {d, d} end
    kind = now
  end
  for i, one in ipairs(sizes) do sizes[i] = product(held.shape, one[1], one[2]) end
  return sizes
end

local OPERATORS = {add = " + ", sub = " - ", mul = " * ", div = " / ", iadd = " + ", isub = " - ", imul = " * "}

-- Two wide values of as many dimensions, which lie as they are, side by side; nil and why
local function joined(symbol, a, b, shape)
  local one, two = merged(a, b), merged(b, a)
  if #a.shape ~= #b.shape or #one > MOST then return nil, "two values of many dimensions" end
  local form = {tag = "text", call(a.form, "view", one), symbol, call(b.form, "view", two)}
  local order = {}
  for i = 1, #shape do order[i] = i end
  return {form = {tag = "operand", form}, shape = shape, order = order}
end

-- What a constant of that shape is: its form as it is, or an empty text and a wide value `out` in `held`
function wide.constant(form, shape, out, held)
  if #shape <= MOST then return form end
  local order = {}
  for i = 1, #shape do order[i] = i end
  held[out] = {form = form, shape = shape, order = order}
  return text()
end

-- op: of spelling.call; name: its function's short name; held: {[value] = wide value} of the module, which this writes.
-- Returns the form of the result, which is an empty text where the result is wide; nil: neither the argument nor the
-- result is wide; false and why: it cannot be said.
function wide.call(op, name, held)
  local x, out = op.args[1], op.out[1]
  local from = type(x) == "table" and x.value and held[x.value]
  local shape = out and op.shapes[out + 1]
  if not from then
    if not (VIEWS[name] and #shape > MOST) then return nil end
    local order = {}
    for i = 1, #shape do order[i] = i end
    held[out] = {form = op.value(x), shape = shape, order = order}
    return text()
  end
  local next_one, why
  if ORDERS[name] then next_one = {form = from.form, shape = from.shape, order = ORDERS[name](op, from)}
  elseif name == "getitem" and math.type(op.args[2]) == "integer" then next_one, why = selected(from, 1, op.args[2])
  elseif VIEWS[name] and #shape <= MOST then
    local form
    form, why = narrowed(from, shape)
    return form or false, why
  elseif VIEWS[name] and is_lying(from) then
    next_one = {form = from.form, shape = shape, order = {}}
    for i = 1, #shape do next_one.order[i] = i end
  elseif OPERATORS[name] then
    local y = type(op.args[2]) == "table" and held[op.args[2].value]
    if y and is_lying(from) and is_lying(y) then next_one, why = joined(OPERATORS[name], from, y, shape) end
  end
  if not next_one then why = why or ("a value of %d dimensions"):format(#from.order) end
  if not next_one then return false, why end
  if #next_one.order <= MOST then
    local form
    form, why = narrowed({form = next_one.form, shape = next_one.shape, order = next_one.order}, shape)
    return form or false, why
  end
  held[out] = next_one
  return text()
end

return wide
