-- Operations on values in forward that are no layers in PyTorch: nn.cat({x, y}, 1), x + y, 2 * x,
-- x:view(x:size(0), -1), x:mean(1), x:roll(1, 2). Here each calls layers.
local literal = require "memtide.base.literal"
local util = require "memtide.base.util"

local MOST = 8 -- values that one Concat joins
local Size = {__name = "memtide.size"} -- x:size(0) = {0}; only usable as size 0 of x:view(x:size(0), -1)

-- dim and keepdim, or one table {dim = ..., keepdim = ...}; dim: a number or a list -> "1" or "2,3", and keepdim
local function dimensions(dim, keepdim)
  if type(dim) == "table" and (dim.dim ~= nil or dim.keepdim ~= nil) then dim, keepdim = dim.dim, dim.keepdim end
  return type(dim) == "table" and table.concat(dim, ",") or tostring(dim), keepdim
end

-- {dimensions of a mean = {the pooling that computes it, does it need (N, T, F) transposed?}}
local MEANS = {
  ["1"] = {"AdaptiveAvgPool1d", true}, ["2"] = {"AdaptiveAvgPool1d"},
  ["2,3"] = {"AdaptiveAvgPool2d"}, ["-2,-1"] = {"AdaptiveAvgPool2d"},
}

-- Methods of PyTorch's tensors that values do not have, and what to use instead
local MISSING = {
  shape = "sizes are not known in forward; x:size(0) is good for x:view(x:size(0), -1)",
  chunk = "x:narrow(dim, start, length) cuts out a part",
  to = "the device is a setting",
}

return function(nn, graph)
  local functions, operators = graph.functions, graph.operators
  for name, text in pairs(MISSING) do graph.missing[name] = text end

  -- ---- arithmetic

  function functions.add(...) return graph.call(nn.Add{}, ...) end
  function functions.mul(...) return graph.call(nn.Mul{}, ...) end
  -- x = x:add_(y) is PyTorch's x += y
  function functions.add_(...) return graph.call(nn.Add{inplace = true}, ...) end
  function functions.mul_(...) return graph.call(nn.Mul{inplace = true}, ...) end

  local function scaled(x, factor, offset) return graph.call(nn.Scale(factor, offset), x) end

  function functions.sub(a, b) return a - b end
  function functions.div(a, b) return a / b end

  -- a OP b: of two values, or of one and a number
  local function operator(symbol, of_values, number_after, number_before)
    return function(a, b)
      local two = {graph.is_value(a), graph.is_value(b)}
      if two[1] and two[2] and of_values then return of_values(a, b) end
      if two[1] and type(b) == "number" then return number_after(a, b) end
      if two[2] and type(a) == "number" and number_before then return number_before(b, a) end
      util.fail("%s stands between %s, found a %s and a %s", symbol, of_values and "two values, or a value and a number"
        or "a value and a number after it", two[1] and "value" or type(a), two[2] and "value" or type(b))
    end
  end
  local function plus(x, n) return scaled(x, 1, n) end
  local function minus(x, n) return scaled(x, 1, -n) end
  local function taken_from(x, n) return scaled(x, -1, n) end
  local function times(x, n) return scaled(x, n, 0) end
  local function over(x, n) return scaled(x, 1 / n, 0) end
  local function under(x, n) return scaled(graph.call(nn.Reciprocal{}, x), n, 0) end
  operators.__add = operator("+", functions.add, plus, plus)
  operators.__mul = operator("*", functions.mul, times, times)
  operators.__sub = operator("-", function(a, b) return graph.call(nn.Sub{}, a, b) end, minus, taken_from)
  operators.__div = operator("/", function(a, b) return graph.call(nn.Div{}, a, b) end, over, under)
  function operators.__unm(x) return scaled(x, -1, 0) end

  function functions.pow(x, n)
    if not (graph.is_value(x) and type(n) == "number") then
      util.fail("^ stands between a value and a number, found %s", graph.is_value(n) and "a value" or literal.of(n))
    end
    return graph.call(nn.Pow(n), x)
  end
  function functions.neg(x) return -x end
  operators.__pow = functions.pow

  -- ---- triangles of the last two dimensions: torch.tril(torch.ones(rows, columns), diagonal), as a mask

  local Mask = {__name = "memtide.mask"}

  local function mask(upper)
    return function(rows, columns, diagonal)
      columns, diagonal = columns or rows, diagonal or 0
      for _, n in ipairs{rows or 0.5, columns, diagonal} do
        if math.type(n) ~= "integer" then
          util.fail("expected rows, columns and a diagonal, whole numbers, found %s", n)
        end
      end
      return setmetatable({rows, columns, diagonal, upper}, Mask)
    end
  end
  nn.tril, nn.triu = mask(false), mask(true)

  -- ~mask: all that lies outside of it
  function Mask.__bnot(m) return setmetatable({m[1], m[2], m[3] + (m[4] and -1 or 1), not m[4]}, Mask) end

  -- ---- the same by comparison: seq = nn.arange(n), nn.ge(seq:unsqueeze(1), seq:unsqueeze(0)). What PyTorch allocates
  -- for the mask are values of the graph, which live as long as variables hold them.

  local TRIANGLES = {ge = {0, false}, gt = {-1, false}, le = {0, true}, lt = {1, true}} -- diagonal, upper
  local Triangles = setmetatable({}, {__mode = "k"}) -- by value of a comparison: the mask
  local Ends = setmetatable({}, {__mode = "k"})      -- by value of arange: how many numbers it has

  function nn.arange(n)
    local value = graph.call(nn.Arange(n), graph.input())
    Ends[value] = n
    return value
  end

  -- Of arange's value a view, which takes nothing: a list that holds the value, for comparisons alone
  local unsqueeze = functions.unsqueeze
  function functions.unsqueeze(x, dim)
    if Ends[x] == nil then return unsqueeze(x, dim) end
    if dim ~= 0 and dim ~= 1 and dim ~= -1 then
      util.fail("unsqueeze: expected 0, 1 or -1 for a value of arange, found %s", literal.of(dim))
    end
    return {x, dim = dim == 0 and 0 or 1}
  end

  local function end_of(name, side, dim)
    return type(side) == "table" and rawget(side, "dim") == dim and Ends[rawget(side, 1)] or
      util.fail("%s: expected nn.arange(rows):unsqueeze(1) and nn.arange(columns):unsqueeze(0)", name)
  end

  for name, triangle in pairs(TRIANGLES) do
    nn[name] = function(rows, columns)
      local m = {end_of(name, rows, 1), end_of(name, columns, 0), triangle[1], triangle[2]}
      local value = graph.call(nn.Compare(name), rows[1], columns[1])
      Triangles[value] = setmetatable(m, Mask)
      return value
    end
  end

  -- A triangle as a value, for PyTorch's step, which asks how it is made: nn.Mask in forward
  function nn.mask(...) return graph.call(nn.Mask(...), graph.input()) end

  -- The triangle that a mask is, and the value that holds it; nil: it is made in the call that reads it
  local function mask_of(name, m)
    if getmetatable(m) == Mask then return m end
    if Triangles[m] then return Triangles[m], m end
    local maker = graph.is_value(m) and graph.maker(m)
    if maker and maker.kind == "Mask" then
      local o = maker.options
      return setmetatable({o.rows, o.columns, o.diagonal, o.upper}, Mask), m
    end
    util.fail("%s: expected nn.tril(...), nn.triu(...) or what nn.ge(...) gives, found a %s", name, type(m))
  end

  local function number_of(x) return x == math.huge and "inf" or x == -math.huge and "-inf" or x end

  -- What the mask names becomes the number.
  function functions.masked_fill(x, m, value)
    local mask_value
    m, mask_value = mask_of("masked_fill", m)
    util.check_type("masked_fill: the value", value, "number")
    local outside = ~m
    local layer = nn.MaskedFill(outside[1], outside[2], outside[3], outside[4], {value = number_of(value)})
    return graph.call(layer, table.unpack{x, mask_value})
  end

  -- a where the mask is, b elsewhere; one of them may be a number
  local function where(m, a, b)
    local mask_value
    m, mask_value = mask_of("where", m)
    if type(a) == "number" then m, a, b = ~m, b, a end
    if type(b) ~= "number" then return graph.call(nn.Where(m[1], m[2], m[3], m[4]), table.unpack{a, b, mask_value}) end
    return graph.call(nn.Where(m[1], m[2], m[3], m[4], {value = number_of(b)}), table.unpack{a, mask_value})
  end

  -- ---- several values as one

  function functions.cat(values, dim)
    util.check_type("cat", values, "table")
    if type(dim) == "table" then dim = dim.dim end
    local joined = {}
    for i = 1, #values, MOST do
      local last = math.min(i + MOST - 1, #values)
      joined[#joined + 1] = graph.call(nn.Concat{dim = dim or 0}, table.unpack(values, i, last))
    end
    return #joined > 1 and functions.cat(joined, dim) or joined[1] or util.fail "cat: expected a list of values"
  end

  -- x:split({sizes}, dim): parts that lie one after the other, as several values. In PyTorch's step one call makes all.
  function functions.split(x, sizes, dim)
    util.check_type("split: the sizes of the parts", sizes, "table")
    local out, at = {}, 0
    for i, size in ipairs(sizes) do
      util.check_type("split: a size", size, "number")
      out[i] = graph.call(nn.Narrow(dim or 0, at, size, {split = sizes}), x)
      at = at + size
    end
    return table.unpack(out)
  end

  -- ---- products

  -- "batch query d, batch key d -> batch query key", where some operand has words, as "abc,adc->abd"
  local function letters_of(equation)
    local letters, count = {}, 0
    local function letter(word)
      if word == "..." then return word end
      if not letters[word] then
        count = count + 1
        letters[word] = string.char(96 + count)
      end
      return letters[word]
    end
    local worded = false
    for operand in equation:gsub("%->", ","):gmatch "[^,]+" do
      local _, words = operand:gsub("%S+", "")
      worded = worded or words > 1 and operand:find "[%w_][%w_]" ~= nil
    end
    if worded then equation = equation:gsub("[%a_][%w_]*", letter) end
    return (equation:gsub("%s+", ""))
  end

  function functions.einsum(equation, ...)
    util.check_type("einsum: the equation", equation, "string")
    return graph.call(nn.Einsum(letters_of(equation)), ...)
  end

  -- F.linear(x, weight, bias) of values
  function functions.linear(x, weight, bias)
    return graph.call(nn.LinearFunction(), table.unpack({x, weight, bias}, 1, bias == nil and 2 or 3))
  end

  -- x:norm(2, dims, keepdim): the square root of the sum of the squares
  function functions.norm(x, p, dim, keepdim)
    if p ~= 2 then util.fail("norm: expected p = 2, found %s", literal.of(p)) end
    util.check_flag("norm: keepdim", keepdim)
    return graph.call(nn.Norm(type(dim) == "table" and dim or {dim}, keepdim or false), x)
  end

  -- F.normalize(x, {p = 2, dim = 1, eps = 1e-12}): x divided by its norm, which is eps at least
  function functions.normalize(x, options)
    options = options or {}
    util.check_keys("normalize", options, {"p", "dim", "eps"})
    local length = graph.call(nn.Clamp{min = options.eps or 1e-12}, functions.norm(x, options.p or 2, options.dim or 1, true))
    return graph.call(nn.Div{expand = true}, x, length)
  end

  -- ---- the same value in other dimensions

  -- Values are laid out as layers need them; PyTorch's step makes a copy of what does not lie so.
  function functions.contiguous(x) return graph.call(nn.Contiguous(), x) end

  function functions.size(_, dim)
    if math.type(dim) ~= "integer" then
      util.fail("size: expected a dimension, as in x:view(x:size(0), -1), found a %s", type(dim))
    end
    return setmetatable({dim}, Size)
  end

  -- Sizes as arguments or as one list. x:size(k) at place k is Reshape's 0, which keeps the size.
  function functions.view(x, ...)
    local first, shape = ..., {}
    for i, size in ipairs(type(first) == "table" and getmetatable(first) ~= Size and first or {...}) do
      shape[i] = getmetatable(size) == Size and size[1] == i - 1 and 0 or size
      if math.type(shape[i]) ~= "integer" then
        util.fail("view: place %d: expected a whole number or x:size(%d), found a %s", i - 1, i - 1,
          getmetatable(size) == Size and "size of another place" or type(size))
      end
    end
    if #shape == 2 and shape[1] == 0 and shape[2] == -1 then return functions.flatten(x) end
    return graph.call(nn.Reshape(shape), x)
  end
  functions.reshape = functions.view

  -- 0, 2, 1 moves nothing: see nn.Transpose.
  function functions.permute(x, ...)
    local dims = type(...) == "table" and ... or {...}
    if table.concat(dims, ",") == "0,2,1" then return functions.transpose(x, 1, 2) end
    return graph.call(nn.Permute(dims), x)
  end

  -- Dimensions as a list of numbers, and keepdim
  local function reduced(name, dim, keepdim)
    if type(dim) == "table" and (dim.dim ~= nil or dim.keepdim ~= nil) then dim, keepdim = dim.dim, dim.keepdim end
    util.check_flag(name .. ": keepdim", keepdim)
    if dim == nil then util.fail("%s: expected a dimension, or a list of them", name) end
    return dim, keepdim or false
  end

  local function reduction(name, layer)
    return function(x, ...)
      local dim, keepdim = reduced(name, ...)
      return graph.call(layer(type(dim) == "table" and dim or {dim}, keepdim), x)
    end
  end

  functions.sum, functions.amax = reduction("sum", nn.Sum), reduction("amax", nn.Amax)

  -- The values of torch.max(x, dim), without their places
  function functions.max(x, ...)
    local dim, keepdim = reduced("max", ...)
    return graph.call(nn.Max(dim, keepdim), x)
  end

  function functions.mean(x, ...)
    local dims, keepdim = dimensions(...)
    util.check_flag("mean: keepdim", keepdim)
    if not MEANS[dims] then return reduction("mean", nn.Mean)(x, ...) end
    local pool, of_steps = table.unpack(MEANS[dims])
    x = graph.call(nn[pool](1, {listing = "mean"}), of_steps and functions.transpose(x, 1, 2) or x)
    if not keepdim then return functions.flatten(x) end
    return of_steps and functions.transpose(x, 1, 2) or x
  end

  -- shifts and dims are two numbers, two lists of the same length, or {shifts =, dims =}; dimensions are rolled in
  -- order.
  function functions.roll(x, shifts, dims)
    if type(shifts) == "table" and (shifts.shifts ~= nil or shifts.dims ~= nil) then
      shifts, dims = shifts.shifts, shifts.dims
    end
    shifts, dims = type(shifts) == "table" and shifts or {shifts}, type(dims) == "table" and dims or {dims}
    if #shifts == 0 or #shifts ~= #dims then
      util.fail("roll: expected a dimension for each shift, found %d for %d", #dims, #shifts)
    end
    for i, shift in ipairs(shifts) do x = graph.call(nn.Roll(shift, dims[i]), x) end
    return x
  end

  -- torch.tensor: a constant that each call makes
  function nn.tensor(values, options) return graph.call(nn.Tensor(values, options), graph.input()) end

  for _, name in ipairs{"arange", "compare", "mask", "buffer", "tensor", "linearfunction"} do functions[name] = nil end -- they are no methods
  for name, call in pairs(functions) do
    if name ~= "size" and name ~= "view" then nn[name] = call end
  end
  nn.where = where
end
