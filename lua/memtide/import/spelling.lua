-- How memtide writes what PyTorch calls: one table of modules, one of functions. Modules of torch.nn that have a layer
-- of the same name need no row.
local core = require "memtide.core"
local forms = require "memtide.import.forms"
local literal = require "memtide.base.literal"
local text = forms.text

local spelling = {}

-- ---- layers: their options and defaults, from layers.def

local specs = {} -- [kind] = {{name, default as text or nil, type}, ...}
local roles = {}
for _, kind in ipairs(core.layer_kinds()) do
  specs[kind.name], roles[kind.name] = {}, kind.role
  local by_name
  for word in kind.spec:gmatch "%S+" do
    local name, type, default = word:match "^([%w_]+):([^=]+)=?(.*)$"
    if not name then by_name = true
    else table.insert(specs[kind.name], {name = name, type = type, default = default ~= "" and default or nil,
      by_name = by_name}) end
  end
end

spelling.specs = specs

-- Classes beside torch.nn's own
local MODULES = {
  ["torchvision.ops.stochastic_depth.StochasticDepth"] = "StochasticDepth",
  ["torchtune.modules.position_embeddings.RotaryPositionalEmbeddings"] = "RotaryPositionalEmbeddings",
  ["torchvision.ops.misc.Permute"] = "Permute",
  ["transformers.activations.GELUActivation"] = "GELU",
  ["transformers.activations.SiLUActivation"] = "SiLU",
}

-- Options that say how PyTorch computes and not what
local NO_MATTER = {_stacklevel = true, dtype = true, return_indices = true, sparse = true}

-- The classes that are layers of memtide, as {qualified name = kind}
function spelling.classes()
  local classes = {}
  for kind, role in pairs(roles) do
    if role:find "[lai]" or kind == "MultiheadAttention" or kind == "Embedding" then classes["torch.nn." .. kind] = kind end
  end
  for class, kind in pairs(MODULES) do classes[class] = kind end
  classes["torch.nn.Transpose"], classes["torch.nn.Parameter"] = nil, nil
  return classes
end

local function is_word(value) return type(value) == "table" and value.word ~= nil end

-- A value of a description as a form
local function constant(value, type_of)
  if is_word(value) then return value.word == "None" and "none" or value.word end
  if type(value) ~= "table" then return value end
  local list, equal = {tag = "list"}, true
  for i, one in ipairs(value) do
    list[i] = constant(one)
    equal = equal and list[i] == list[1]
  end
  if equal and (#list == 1 or type_of and type_of:find "pair") then return list[1] end
  return list
end

local WORDS = {["true"] = true, ["false"] = false}

local function default_of(option, options)
  local word = option.default
  if word == nil then return nil end
  if WORDS[word] ~= nil then return WORDS[word] end
  return math.tointeger(tonumber(word)) or tonumber(word) or options[word] or word
end

-- The form of a layer with these options of PyTorch; the second value: what cannot be said.
function spelling.layer(kind, given)
  local options, known = {}, {}
  for _, option in ipairs(specs[kind]) do
    local value = given[option.name]
    known[option.name] = true
    if value ~= nil and not (is_word(value) and value.word == "None" and option.default) then
      options[option.name] = constant(value, option.type)
    else
      options[option.name] = default_of(option, options)
    end
    if is_word(value) and value.word ~= "None" and not tonumber(value.word) then
      return nil, ("%s: %s is a %s"):format(kind, option.name, value.word)
    end
  end
  for name, value in pairs(given) do
    if not known[name] and not NO_MATTER[name] and not (is_word(value) and value.word == "None") and value ~= false then
      return nil, ("%s: %s = %s"):format(kind, name, is_word(value) and value.word or literal.of(value))
    end
  end
  return {tag = "layer", kind = kind, options = options}
end

-- ---- functions

-- Function = {layer, names of the arguments after the input}; "training" false makes nothing of it.
local LAYER_CALLS = {
  relu = {"ReLU", "inplace"}, relu6 = {"ReLU6", "inplace"}, gelu = {"GELU", "approximate"}, silu = {"SiLU", "inplace"},
  hardswish = {"Hardswish", "inplace"}, hardsigmoid = {"Hardsigmoid", "inplace"}, sigmoid = {"Sigmoid", ""},
  tanh = {"Tanh", ""}, leaky_relu = {"LeakyReLU", "negative_slope inplace"}, elu = {"ELU", "alpha inplace"},
  celu = {"CELU", "alpha inplace"},
  softplus = {"Softplus", "beta threshold"}, mish = {"Mish", "inplace"}, selu = {"SELU", "inplace"},
  hardtanh = {"Hardtanh", "min_val max_val inplace"}, logsigmoid = {"LogSigmoid", ""}, softsign = {"Softsign", ""},
  clamp = {"Clamp", "min max"}, clamp_min = {"Clamp", "min"}, clamp_max = {"Clamp", "max"}, clip = {"Clamp", "min max"},
  exp = {"Exp", ""}, abs = {"Abs", ""}, log = {"Log", ""}, sqrt = {"Sqrt", ""}, rsqrt = {"Rsqrt", ""},
  sin = {"Sin", ""}, cos = {"Cos", ""}, reciprocal = {"Reciprocal", ""}, square = {"Pow", "", {exponent = 2}},
  glu = {"GLU", "dim"},
  softmax = {"Softmax", "dim _stacklevel dtype"}, log_softmax = {"LogSoftmax", "dim _stacklevel dtype"},
  dropout = {"Dropout", "p training inplace"}, dropout2d = {"Dropout2d", "p training inplace"},
  max_pool2d = {"MaxPool2d", "kernel_size stride padding dilation ceil_mode return_indices"},
  max_pool1d = {"MaxPool1d", "kernel_size stride padding dilation ceil_mode return_indices"},
  avg_pool2d = {"AvgPool2d", "kernel_size stride padding ceil_mode count_include_pad divisor_override"},
  avg_pool1d = {"AvgPool1d", "kernel_size stride padding ceil_mode count_include_pad"},
  adaptive_avg_pool1d = {"AdaptiveAvgPool1d", "output_size"},
  adaptive_avg_pool2d = {"AdaptiveAvgPool2d", "output_size"},
  adaptive_max_pool2d = {"AdaptiveMaxPool2d", "output_size return_indices"},
  pixel_shuffle = {"PixelShuffle", "upscale_factor"}, pixel_unshuffle = {"PixelUnshuffle", "downscale_factor"},
  channel_shuffle = {"ChannelShuffle", "groups"}, unflatten = {"Unflatten", "dim sizes"},
  interpolate = {"Upsample", "size scale_factor mode align_corners recompute_scale_factor antialias"},
}

-- An op: {name, arguments by position, named ones, where, shapes}. arg(op, i, "name", otherwise)
local function arg(op, i, name, otherwise)
  local value = op.args[i]
  if value == nil then value = op.named[name] end
  if is_word(value) and value.word == "None" then value = nil end
  if value == nil then return otherwise end
  return value
end

local function is_value(value) return type(value) == "table" and (value.value or value.parameter) ~= nil end

-- The dimensions of what an argument holds, the batch as {batch = n}; nil: it is no value
local function shape_of(op, value) return value.value and op.shapes[value.value + 1] or value.shape end

local function whole(value) return math.type(value) == "integer" end

-- Dimension d, counted from the front
local function from_front(op, value, d) return d < 0 and d + #shape_of(op, value) or d end

local function list_of(value)
  if type(value) ~= "table" or is_word(value) then return {value} end
  return value
end

local function list_form(list) return {tag = "list", table.unpack(list)} end

-- A method's call: x:name(...)
local function method(op, x, name, ...)
  local out = text(op.value(x), ":" .. name .. "(")
  for i, one in ipairs{...} do
    if i > 1 then out[#out + 1] = ", " end
    out[#out + 1] = one
  end
  out[#out + 1] = ")"
  return out
end

local IN_PLACE = {["+"] = ":add_(", ["*"] = ":mul_("}

local function operator(symbol)
  return function(op)
    local a, b, alpha = arg(op, 1, "input"), arg(op, 2, "other"), arg(op, nil, "alpha", 1)
    if symbol == "/" and op.named.rounding_mode then return nil, "division that rounds" end
    if alpha ~= 1 then return nil, "alpha" end
    if op.name:match "[^.]*$":find "^_*r" then a, b = b, a end -- __rsub__
    local own = is_value(a) and is_value(b) and forms.identity(shape_of(op, a)) == forms.identity(shape_of(op, b))
    if IN_PLACE[symbol] and own and (op.name:find "[^_]_$" or op.name:find "__i%a+__$") then
      return text(op.value(a), IN_PLACE[symbol], op.value(b), ")")
    end
    return {tag = "text", op.operand(a), " " .. symbol .. " ", op.operand(b)}
  end
end

-- The result's shape as sizes of a view: 0 keeps the batch, -1 is what is left.
local function sizes(op, from)
  local out, into = {tag = "list"}, op.shapes[op.out[1] + 1]
  local first = shape_of(op, from)[1]
  for i, size in ipairs(into) do
    local batch = type(size) == "table"
    if batch and i > 1 then return nil, "the batch as another dimension than the first" end
    if batch and type(first) == "table" and first.batch == size.batch then out[i] = 0
    elseif batch then out[i] = -1
    else out[i] = size end
  end
  return out
end

local function view(op)
  local x = arg(op, 1, "input")
  local shape, why = sizes(op, x)
  if not shape then return nil, why end
  return method(op, x, "view", table.unpack(shape))
end

local function flatten(op)
  local first, last = arg(op, 2, "start_dim", 0), arg(op, 3, "end_dim", -1)
  if first == 0 then return view(op) end
  if last == -1 then return method(op, arg(op, 1, "input"), "flatten", first) end
  return method(op, arg(op, 1, "input"), "flatten", first, last)
end

local function transpose(op)
  local x, a, b = arg(op, 1, "input"), arg(op, 2, "dim0"), arg(op, 3, "dim1")
  return method(op, x, "transpose", a, b)
end

local function permute(op)
  local dims = list_of(arg(op, 2, "dims"))
  if op.args[3] then dims = {table.unpack(op.args, 2)} end
  for i, d in ipairs(dims) do dims[i] = from_front(op, arg(op, 1, "input"), d) end
  return method(op, arg(op, 1, "input"), "permute", table.unpack(dims))
end

local function reduction(name)
  return function(op)
    local dims, keep = arg(op, 2, "dim"), arg(op, 3, "keepdim", false)
    if dims == nil then return nil, "over all dimensions" end
    local list = {tag = "list"}
    for i, d in ipairs(list_of(dims)) do list[i] = d end
    local form = #list == 1 and list[1] or list
    if keep then return method(op, arg(op, 1, "input"), name, form, true) end
    return method(op, arg(op, 1, "input"), name, form)
  end
end

local function cat(op)
  local out = text "nn.cat({"
  for i, one in ipairs(arg(op, 1, "tensors")) do
    if i > 1 then out[#out + 1] = ", " end
    out[#out + 1] = op.value(one)
  end
  out[#out + 1], out[#out + 2], out[#out + 3] = "}, ", arg(op, 2, "dim", 0), ")"
  return out
end

local MOST_PARTS = 8 -- that a script's split and unbind make

-- Parts of x along a dimension, one for each result. In PyTorch they are one call, whose gradients one call puts together.
local function parts(op)
  local x, out, at, all = arg(op, 1, "input"), {}, 0, {tag = "list"}
  local d = from_front(op, x, arg(op, 3, "dim", 0))
  for i, value in ipairs(op.out) do
    all[i] = op.shapes[value + 1][d + 1]
    if not whole(all[i]) then return nil, "of the batch" end
  end
  local together = #all > 1 and #all <= MOST_PARTS and text("{split = ", all, "}") or nil
  for i, size in ipairs(all) do
    out[i] = method(op, x, "narrow", d, at, size, together)
    at = at + size
  end
  return out
end

local function unbind(op)
  local x, out = arg(op, 1, "input"), {}
  local d = from_front(op, x, arg(op, 2, "dim", 0))
  local together = #op.out <= MOST_PARTS and text("{unbind = ", #op.out, "}") or nil
  for i in ipairs(op.out) do out[i] = method(op, x, "select", d, i - 1, together) end
  return out
end

-- x[index]: rows by a constant, whose shape here may be another one than there
local function rows(op, x, index)
  local shape = table.move(index.shape or op.shapes[index.value + 1], 1, 3, 1, {})
  shape[#shape + 1] = shape_of(op, x)[2]
  if #shape_of(op, x) ~= 2 then return nil, "an index of more than rows" end
  local form, into = text(op.value(x), "[", op.index(index), "]"), op.shapes[op.out[1] + 1]
  if forms.identity(shape) == forms.identity(into) then return form end
  return text(form, ":view(", list_form(into), ")")
end

-- x[:, 0, 1:]: one step after the other
local function item(op)
  local x, form = arg(op, 1, "self"), op.value(arg(op, 1, "self"))
  local shape, d = shape_of(op, x), 0
  local index = op.args[2]
  if type(index) == "table" and (index.buffer or index.value) then return rows(op, x, index) end
  if type(index) ~= "table" or index.slice or is_word(index) then index = {index} end
  local rest = #shape
  for _, one in ipairs(index) do if not is_word(one) then rest = rest - 1 end end
  local at = 0 -- of the dimensions of x
  local function step(name, ...)
    local out = text(form, ":" .. name .. "(")
    for i, number in ipairs{...} do
      if i > 1 then out[#out + 1] = ", " end
      out[#out + 1] = number
    end
    out[#out + 1] = ")"
    form = out
  end
  for _, one in ipairs(index) do
    local size = shape[at + 1]
    if is_word(one) and one.word == "None" then
      step("unsqueeze", d)
      d = d + 1
    elseif is_word(one) and one.word == "..." then d, at = d + rest, at + rest
    elseif whole(one) then
      if type(size) == "table" then return nil, "one sample of the batch" end
      step("select", d, one)
      at = at + 1
    elseif type(one) == "table" and one.slice then
      local bound = {}
      for i, word in ipairs(one.slice) do bound[i] = whole(word) and word or nil end
      local by = bound[3] or 1
      if bound[1] or bound[2] or by ~= 1 then
        if type(size) == "table" then return nil, "a part of the batch" end
        local from, to = bound[1] or 0, bound[2] or size
        if from < 0 then from = math.max(from + size, 0) end
        if to < 0 then to = to + size end
        from, to = math.min(from, size), math.min(to, size)
        if by > 1 then step("narrow", d, from, (to - from + by - 1) // by, text("{step = ", by, "}"))
        elseif not (from == 0 and to == size) then step("narrow", d, from, to - from) end
      end
      d, at = d + 1, at + 1
    else return nil, "an index that is a list or a tensor (expected x[:, -1:] for x[:, [-1]])" end
  end
  return form
end

local function same(op) return op.value(arg(op, 1, "input")) end

-- To another type: those of numbers with a point differ in rounding alone.
local function converted(op)
  local function whole_type(list)
    for _, one in pairs(list) do
      local word = is_word(one) and one.word or ""
      if word:find "^torch%.u?int" or word == "torch.bool" then return word end
    end
  end
  local word = whole_type(op.args) or whole_type(op.named)
  if word then return nil, word end
  return same(op)
end

local function product(name)
  return function(op)
    return method(op, arg(op, 1, "input"), name, op.value(arg(op, 2, "other")))
  end
end

local function einsum(op)
  local out = {tag = "text", "nn.einsum(\"" .. arg(op, 1, "equation") .. "\""}
  local operands = op.args[2] and op.args[2].value == nil and op.args[2] or {table.unpack(op.args, 2)}
  for _, one in ipairs(operands) do out[#out + 1], out[#out + 2] = ", ", op.value(one) end
  out[#out + 1] = ")"
  return out
end

-- F.linear(x, self.fc.weight, self.fc.bias) and its like: the child's layer is called, or one that has the module's own
-- parameters. options(op, shape of the weight, is there a bias?): of the layer that does what this call does.
local function with_parameters(weight_at, kind, options)
  return function(op)
    local weight, bias = arg(op, weight_at, "weight"), arg(op, weight_at + 1, "bias")
    local of_values = weight and not weight.parameter or bias and not bias.parameter
    if of_values and kind == "Linear" then
      local form = text("F.linear(", op.value(arg(op, 1, "input")), ", ", op.value(weight))
      if bias then form[#form + 1], form[#form + 2] = ", ", op.value(bias) end
      form[#form + 1] = ")"
      return form
    end
    if of_values or not weight then return nil, "with a weight or a bias that is no parameter" end
    local layer, why = spelling.layer(kind, options(op, op.shape_of(weight.parameter), bias ~= nil))
    if not layer then return nil, why end
    local child = op.layer_of(weight.parameter, bias and bias.parameter, layer)
    if not child then return nil, "with parameters of no layer that does the same" .. (weight_at == 2 and kind == "Linear"
      and op.of_embedding(weight.parameter) and " (expected self.head = nn.Linear(..., bias=False) with self.head.weight = that of the embedding)" or "") end
    return text(child, "(", op.value(arg(op, 1, "input")), ")")
  end
end

local linear = with_parameters(2, "Linear", function(_, shape, bias)
  return {out_features = shape[1], in_features = shape[2], bias = bias}
end)
local layer_norm = with_parameters(3, "LayerNorm", function(op, shape, bias)
  return {normalized_shape = shape, eps = arg(op, 5, "eps"), bias = bias}
end)

local function convolution(kind)
  return with_parameters(2, kind, function(op, shape, bias)
    local groups = arg(op, 7, "groups", 1)
    return {in_channels = shape[2] * groups, out_channels = shape[1], kernel_size = {table.unpack(shape, 3)},
      stride = arg(op, 4, "stride"), padding = arg(op, 5, "padding"), dilation = arg(op, 6, "dilation"), groups = groups, bias = bias}
  end)
end

local function pad(op)
  local list, x = arg(op, 2, "pad"), arg(op, 1, "input")
  if arg(op, 3, "mode", "constant") ~= "constant" or arg(op, 4, "value", 0) ~= 0 then return nil, "mode or value" end
  local zero = true
  for _, one in ipairs(list) do zero = zero and one == 0 end
  if zero then return same(op) end
  if #list == 6 and #shape_of(op, x) == 4 and list[1] == 0 and list[2] == 0 then -- of (N, H, W, C)
    local sides = list_form(table.move(list, 3, 6, 1, {}))
    local image = text(method(op, x, "permute", 0, 3, 1, 2), ":zero_pad2d(", sides, ")")
    return text(image, ":permute(0, 2, 3, 1)")
  end
  if #list == 4 and #shape_of(op, x) == 4 then return method(op, x, "zero_pad2d", list_form(list)) end
  if #list == 2 and #shape_of(op, x) == 3 then return method(op, x, "zero_pad1d", list_form(list)) end
  return nil, "of other dimensions than those of an image"
end

-- What the mask names becomes a number. op.mask(argument): the form of the triangle that it is, or nil
local function masked_fill(op)
  local x, mask, value = arg(op, 1, "input"), op.mask(arg(op, 2, "mask")), arg(op, 3, "value")
  if is_word(value) then value = ({inf = "math.huge", ["-inf"] = "-math.huge"})[value.word] end
  if not mask then return nil, "with a mask that is no triangle of the last two dimensions, the same for each batch" end
  if type(value) == "table" then return nil, "with a value that is a tensor" end
  return method(op, x, "masked_fill", mask, value)
end

local function roll(op)
  return method(op, arg(op, 1, "input"), "roll", list_form(list_of(arg(op, 2, "shifts"))),
    list_form(list_of(arg(op, 3, "dims"))))
end

local function normalize(op)
  local p, dim, eps = arg(op, 2, "p", 2), arg(op, 3, "dim", 1), arg(op, 4, "eps", 1e-12)
  if p ~= 2 then return nil, "with p = " .. tostring(p) end
  local form = text("F.normalize(", op.value(arg(op, 1, "input")), ", {dim = ", dim)
  if eps ~= 1e-12 then form[#form + 1], form[#form + 2] = ", eps = ", eps end
  form[#form + 1] = "})"
  return form
end

local function pow(op)
  local n = arg(op, 2, "exponent")
  if type(n) ~= "number" then return nil, "to the power of a tensor" end
  return text(op.operand(arg(op, 1, "input")), " ^ ", n)
end

-- To a larger size: only a parameter, and only in its first dimension. A value of the batch that is 0 makes it so
-- large.
local function expand(op)
  local x = arg(op, 1, "input")
  local from, into = shape_of(op, x), op.shapes[op.out[1] + 1]
  if forms.identity(from) == forms.identity(into) then return same(op) end
  local grows = x.parameter and from[1] == 1 and #from == #into
  for d = 2, grows and #from or 0 do grows = grows and from[d] == into[d] end
  for n = op.out[1] - 1, grows and 0 or op.out[1], -1 do
    local shape = op.shapes[n + 1]
    local fits = #shape == #into and forms.identity(shape[1]) == forms.identity(into[1])
    for d = 3, fits and #into or 0 do fits = fits and shape[d] == into[d] end
    if fits and shape[2] >= into[2] then
      return {tag = "text", "0 * ", method(op, {value = n}, "narrow", 1, 0, into[2]), " + ", op.value(x)}
    end
  end
  return nil, "to a larger size"
end

-- Names as spelling.short has them
local FUNCTIONS = {
  add = operator "+", iadd = operator "+", radd = operator "+", sub = operator "-", isub = operator "-",
  rsub = operator "-", mul = operator "*", imul = operator "*", rmul = operator "*", div = operator "/",
  idiv = operator "/", true_divide = operator "/", rtruediv = operator "/", truediv = operator "/",
  rdiv = operator "/", pow = pow,
  neg = function(op) return text("-", op.operand(arg(op, 1, "input"))) end,
  view = view, reshape = view, flatten = flatten, squeeze = view, unsqueeze = view, unflatten = view, view_as = view,
  transpose = transpose, swapaxes = transpose, swapdims = transpose, permute = permute,
  mean = reduction "mean", sum = reduction "sum", amax = reduction "amax",
  cat = cat, concat = cat, concatenate = cat, chunk = parts, split = parts, unbind = unbind, getitem = item,
  contiguous = function(op) return method(op, arg(op, 1, "input"), "contiguous") end,
  clone = same, to = converted, type_as = same, float = same, expand = expand, expand_as = expand,
  matmul = product "matmul", bmm = product "bmm", rmatmul = product "matmul", einsum = einsum,
  linear = linear, layer_norm = layer_norm, conv2d = convolution "Conv2d", conv1d = convolution "Conv1d",
  pad = pad, roll = roll, masked_fill = masked_fill, normalize = normalize,
  randn_like = function(op) return text("nn.randn_like(", op.value(arg(op, 1, "input")), ")") end,
}

-- "torch.nn.functional.relu_" -> "relu"
function spelling.short(name)
  local last = name:match "([^.]+)$":gsub("^__", ""):gsub("__$", "")
  return last:match "^(.-)_$" or last
end

function spelling.reads_mask(name) return FUNCTIONS[spelling.short(name)] == masked_fill end

-- The layer that the function is
local function layer_call(op, row)
  local names, given = {}, {}
  for key, value in pairs(row[3] or {}) do given[key] = value end
  for name in row[2]:gmatch "%S+" do names[#names + 1] = name end
  for i, name in ipairs(names) do given[name] = arg(op, i + 1, name) end
  for name, value in pairs(op.named) do
    if name ~= "input" and given[name] == nil then given[name] = value end
  end
  local off = given.training == false
  given.training = nil
  if op.name:find "_$" and not op.name:find "__$" and specs[row[1]][#specs[row[1]]].name == "inplace" then
    given.inplace = true
  end
  if row[1] == "Softplus" and given.threshold == 20 then given.threshold = nil end
  if row[1] == "Unflatten" then given.unflattened_size, given.sizes = given.sizes, nil end
  if given.recompute_scale_factor == true then -- the scale is that of the sizes
    given.size, given.scale_factor, given.recompute_scale_factor = table.move(op.shapes[op.out[1] + 1], 3, 4, 1, {}), nil, nil
  end
  if off then return op.value(arg(op, 1, "input")) end
  local layer, why = spelling.layer(row[1], given)
  if not layer then return nil, why end
  return {tag = "function", layer, op.value(arg(op, 1, "input"))}
end

local OF_LOSSES = " (expected a forward that gives what the loss reads: the script's experiment has the loss)"
local HINTS = {cross_entropy = OF_LOSSES, nll_loss = OF_LOSSES, mse_loss = OF_LOSSES, binary_cross_entropy_with_logits = OF_LOSSES,
  view_as_complex = " (expected x * cos + rotate_half(x) * sin, of real numbers)", polar = " (expected cosines and sines, of real numbers)",
  multi_head_attention_forward = " (expected nn.MultiheadAttention)"}

-- The call `op` as a form for each of its results; nil and why: it cannot be said. op: name, args, named, out and shapes as in the
-- description, and functions:
--   value(argument)           its form
--   index(argument)           the same, which may be whole numbers
--   operand(argument)         the same beside an operator
--   mask(argument)            the form of the triangle that it is, or nil
--   layer_of(weight, bias, layer)  text of the child that has the parameters of these names, or of `layer` where they are the module's own,
--                             "weight" and "bias"; nil: neither
--   shape_of(name)            of a parameter
--   of_embedding(name)        is it an nn.Embedding's weight?
--   note(n, part)             notes that the value n is a part of a wide one (wide.lua)
--   tell(what)                notes what PyTorch does and the script does not say
function spelling.call(op)
  local name = spelling.short(op.name)
  local full = op.name:find "view$" and "view" or name
  local rule, row = FUNCTIONS[full], LAYER_CALLS[name]
  if rule then
    local form, why = rule(op)
    if form then return form.tag and {form} or form end
    return nil, ("%s: %s"):format(op.name, why)
  end
  if not row then return nil, op.name .. (HINTS[name] or "") end
  local form, why = layer_call(op, row)
  if form then return {form} end
  return nil, ("%s: %s"):format(op.name, why)
end

return spelling
