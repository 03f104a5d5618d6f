-- Values of more dimensions than memtide has: windows of images, heads beside queries, keys and values. A view makes
-- one, its dimensions are put in another order or one of them is selected, and a view of few dimensions ends it.
-- Neighbours that stay neighbours are one dimension here, so that memtide's four are enough.
local forms = require "memtide.import.forms"
local text = forms.text

local wide = {}
local MOST = 4 -- dimensions of a value of memtide's

-- A wide value: {form = of the value that it is a view of, shape = its sizes in the order in which they lie, order =
-- {place in shape of each dimension, ...}, source = the shape of that value, or nil}

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

-- Into how many runs of neighbours is 1, 2, ... torn?
local function runs_in(list)
  local count = 1
  for i = 2, #list do if list[i] ~= list[i - 1] + 1 then count = count + 1 end end
  return count
end

-- Calls visit(list, blocks, cut) for each list in which two or three blocks of `list` have changed places: up to cut[1],
-- up to cut[2] and so on; the first block and what comes after the last stay
local function each_exchange(list, visit)
  local n = #list
  for a = 1, n do
    for b = a + 1, n do
      for c = b + 1, n do
        local out = table.move(list, 1, a - 1, 1, {})
        table.move(list, b, c - 1, #out + 1, out)
        table.move(list, a, b - 1, #out + 1, out)
        visit(table.move(list, c, n, #out + 1, out))
      end
      local out = table.move(list, 1, a - 1, 1, {})
      table.move(list, b, n, #out + 1, out)
      visit(table.move(list, a, b - 1, #out + 1, out))
    end
  end
end

local ordered

-- An order of more dimensions than memtide's, in two steps. What goes to or comes from the end as a whole, as channels do,
-- does so where the other ones lie as an image.
local function ordered_in_steps(held, list)
  local rank, lying = {}, table.move(list, 1, #list, 1, {})
  for k, one in ipairs(list) do rank[one] = k end
  table.sort(lying, function(a, b) return a[1] < b[1] end)
  local now, best, least = {}, nil, math.huge
  for i, one in ipairs(lying) do now[i] = rank[one] end
  local turns_last = now[#now] == 2
  each_exchange(now, function(next_one)
    local step, place = {}, {}
    for i, k in ipairs(now) do place[k] = i end
    for i, k in ipairs(next_one) do step[i] = place[k] end
    local before, after = runs_in(step), runs_in(next_one)
    local cost = 2 * (before + after) + ((turns_last and after or before) == 3 and 0 or 1)
    if before <= MOST and after <= MOST and cost < least then best, least = next_one, cost end
  end)
  if not best then return nil, ("an order of %d dimensions"):format(#list) end
  local order, shape, place_of = {}, {}, {}
  for _, k in ipairs(best) do
    for place = list[k][1], list[k][2] do
      order[#order + 1], shape[#shape + 1] = place, held.shape[place]
      place_of[place] = #order
    end
  end
  local form, why = ordered{form = held.form, shape = held.shape, order = order}
  if not form then return nil, why end
  local rest = {}
  for i, place in ipairs(held.order) do rest[i] = place_of[place] end
  return ordered{form = form, shape = shape, order = rest}
end

-- The value as it is now, of as many dimensions as there are groups; nil and why
function ordered(held)
  local list = groups(held)
  if #list > MOST then return ordered_in_steps(held, list) end
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

local function is_same(one, other)
  for i = 1, math.max(#one, #other) do
    local a, b = one[i], other[i]
    if (type(a) == "table" and a.batch or a) ~= (type(b) == "table" and b.batch or b) then return false end
  end
  return true
end

-- An image whose channels, in groups, have changed places: into how many groups; else nil. nn.ChannelShuffle says the same of an
-- image that lies as layers leave it, pixel by pixel, where a view and an order of dimensions put it into PyTorch's order and back.
local function shuffled_groups(held, shape)
  local list = groups(held)
  local shuffles = #list == 4 and list[1][2] == 1 and list[2][1] == 3 and list[2][2] == 3 and list[3][1] == 2
  if not shuffles or #shape ~= 4 or not held.source or not is_same(held.source, shape) then return nil end
  return product(held.shape, 2, 3) == shape[2] and held.shape[2] or nil
end

-- A value of few dimensions: the wide one with this shape
local function narrowed(held, shape)
  local channel_groups = shuffled_groups(held, shape)
  if channel_groups then return call(held.form, "channel_shuffle", {channel_groups}) end
  local form, why = ordered(held)
  if not form then return nil, why end
  local sizes = {}
  for i = 1, #shape do sizes[i] = product(shape, i, i) end
  local list = groups(held)
  local alone = #list <= MOST and list[1][2] == 1 -- the first dimension is one of the ordered value, too
  local first = alone and held.order[1] == 1 and held.shape[1]
  if sizes[1] == -1 and type(first) == "table" and first.batch == shape[1].batch then sizes[1] = 0 end
  return call(form, "view", sizes)
end

-- The wide value without one dimension, of which `index` is left; how: what the call is told beside it, or nil
local function selected(held, d, index, how)
  local at, shape, order = held.order[d], {}, {}
  local n = #held.shape
  local sizes = {product(held.shape, 1, at - 1), held.shape[at], product(held.shape, at + 1, n)}
  if at == 1 or type(sizes[2]) == "table" then return nil, "one sample of the batch" end
  for i, size in ipairs(held.shape) do if i ~= at then shape[#shape + 1] = size end end
  for i, place in ipairs(held.order) do
    if i ~= d then order[#order + 1] = place > at and place - 1 or place end
  end
  return {form = call(call(held.form, "view", sizes), "select", {1, index, how}), shape = shape, order = order}
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

wide.VIEWS = {view = true, reshape = true, flatten = true, unflatten = true}

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

-- A form of that shape, in PyTorch's order; source: as of a wide value
local function lying_as(form, shape, source)
  local order = {}
  for i = 1, #shape do order[i] = i end
  return {form = form, shape = shape, order = order, source = source}
end

-- A wide value and another one, which lie as they are, side by side; nil and why
local function joined(symbol, a, b, shape)
  for _ = #b.shape + 1, #a.shape do b.shape = {1, table.unpack(b.shape)} end
  local one, two = merged(a, b), merged(b, a)
  if #one > MOST then return nil, "two values of many dimensions" end
  local form = {tag = "text", call(a.form, "view", one), symbol, call(b.form, "view", two)}
  return lying_as({tag = "operand", form}, shape)
end

-- A shape whose first dimensions are one, so that there are not too many
local function with_first_merged(shape)
  shape = table.move(shape, 1, #shape, 1, {})
  while #shape > MOST do
    local a, b = shape[1], table.remove(shape, 2)
    shape[1] = type(a) == "table" and {batch = a.batch * b} or a * b
  end
  return shape
end

-- Softmax along the last dimension
local function softmax(op, held)
  local dim = op.named.dim or op.args[2]
  if dim ~= -1 and dim ~= #held.order - 1 then return nil, "softmax along another dimension than the last" end
  local shape = op.shapes[op.out[1] + 1]
  local form, why = narrowed(held, with_first_merged(shape))
  if not form then return nil, why end
  return lying_as(text("F.softmax(", form, ", -1)"), shape)
end

-- A product whose operands and result begin with the same letters, of which those that are too many become one
local function einsum(op, held)
  local list = op.args[2].value == nil and op.args[2] or {op.args[2], op.args[3]}
  local letters, forms_of = {}, {}
  for word in op.args[1]:gsub("%s", ""):gmatch "%a+" do letters[#letters + 1] = word end
  local more = #letters[1] - MOST
  for k = 1, 3 do
    local same = letters[k] and #letters[k] == #letters[1] and letters[k]:sub(1, more + 1) == letters[1]:sub(1, more + 1)
    if not same or more < 1 then return nil, "a product of values of many dimensions" end
  end
  for k = 1, 2 do
    local one = held[list[k].value]
    local form, why
    if one then form, why = narrowed(one, with_first_merged(op.shapes[list[k].value + 1])) end
    if not form then return nil, why or "a product of values of many dimensions" end
    forms_of[k], letters[k] = form, letters[k]:sub(more + 1)
  end
  local equation = ("%s,%s->%s"):format(letters[1], letters[2], letters[3]:sub(more + 1))
  return lying_as(text(('nn.einsum("%s", '):format(equation), forms_of[1], ", ", forms_of[2], ")"), op.shapes[op.out[1] + 1])
end

-- What a constant of that shape is: its form as it is, or an empty text and a wide value `out` in `held`
function wide.constant(form, shape, out, held)
  if #shape <= MOST then return form end
  held[out] = lying_as(form, shape)
  return text()
end

-- x.unbind(d) of a wide value: forms of its parts
local function unbound(op, held, from)
  local d, list = (op.args[2] or op.named.dim or 0) % #from.order + 1, {}
  for i, out in ipairs(op.out) do
    local part, why = selected(from, d, i - 1, text("{unbind = ", #op.out, "}"))
    if not part then return false, why end
    if #part.order > MOST then
      held[out], list[i] = part, text()
    else
      list[i], why = narrowed(part, op.shapes[out + 1])
      op.note(out, part)
    end
    if not list[i] then return false, why end
  end
  return list
end

-- op: of spelling.call, and note(value, wide value) for a part that has few dimensions; name: its function's short name; held: {[value] =
-- wide value} of the module, which this writes.
-- Returns the form of the result, or a list of forms, which is an empty text where the result is wide; nil: neither the argument nor the
-- result is wide; false and why: it cannot be said.
function wide.call(op, name, held)
  local x, out = op.args[1], op.out[1]
  local from = type(x) == "table" and x.value and held[x.value]
  local shape = out and op.shapes[out + 1]
  if not from then
    local wide_one, what
    if name == "einsum" and shape and #shape > MOST then wide_one, what = einsum(op, held)
    elseif wide.VIEWS[name] and #shape > MOST then wide_one = lying_as(op.value(x), shape, op.shapes[x.value + 1])
    else return nil end
    held[out] = wide_one
    return wide_one and text() or false, what
  end
  local next_one, why
  if name == "unbind" then return unbound(op, held, from) end
  if ORDERS[name] then
    next_one = {form = from.form, shape = from.shape, order = ORDERS[name](op, from), source = from.source}
  elseif name == "getitem" and math.type(op.args[2]) == "integer" then next_one, why = selected(from, 1, op.args[2])
  elseif wide.VIEWS[name] and #shape <= MOST then
    local form
    form, why = narrowed(from, shape)
    return form or false, why
  elseif wide.VIEWS[name] and is_lying(from) then
    next_one = lying_as(from.form, shape)
  elseif name == "softmax" then next_one, why = softmax(op, from)
  elseif OPERATORS[name] and type(op.args[2]) == "number" then
    local form = {tag = "text", {tag = "operand", from.form}, OPERATORS[name], op.args[2]}
    next_one = {form = {tag = "operand", form}, shape = from.shape, order = from.order}
  elseif OPERATORS[name] then
    local given = op.args[2]
    local y = held[given.value] or given.value and lying_as(op.value(given), op.shapes[given.value + 1])
    if y and is_lying(from) and is_lying(y) then next_one, why = joined(OPERATORS[name], from, y, shape) end
  end
  if not next_one then why = why or ("a value of %d dimensions"):format(#from.order) end
  if not next_one then return false, why end
  if #next_one.order <= MOST then
    local form
    form, why = narrowed({form = next_one.form, shape = next_one.shape, order = next_one.order}, shape)
    if name == "getitem" then op.note(out, next_one) end
    return form or false, why
  end
  held[out] = next_one
  return text()
end

return wide
