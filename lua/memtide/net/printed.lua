-- A layer as PyTorch prints it: Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
local core = require "memtide.core"

-- Options in PyTorch's order. `name`: its value alone; `name=`: with its name; `name?`: with its name if it is not the
-- default. Options that are not listed, most of which PyTorch does not print, follow if they are not the default. Of a
-- pair, convolutions show both numbers, other layers one if they are equal.
local convolution = "in_channels out_channels kernel_size= stride= padding? dilation? "
local pooling = "kernel_size= stride= padding= "
local recurrent = "input_size hidden_size num_layers? bias? batch_first? dropout? bidirectional?"
local batchnorm = "num_features eps= momentum= affine= track_running_stats="
local FORMS = {
  Conv1d = convolution .. "groups? bias?", ConvTranspose1d = convolution .. "output_padding? groups? bias?",
  Conv2d = convolution .. "groups? bias?", ConvTranspose2d = convolution .. "output_padding? groups? bias?",
  Linear = "in_features= out_features= bias=", LeakyReLU = "negative_slope= inplace?", ELU = "alpha= inplace?",
  CELU = "alpha= inplace?",
  Linear4bit = "input_features= output_features= bias=", Linear8bitLt = "input_features= output_features= bias=",
  Hardtanh = "min_val= max_val= inplace?",
  Softplus = "beta=", GELU = "approximate=", GLU = "dim=", PReLU = "num_parameters=",
  BatchNorm1d = batchnorm, BatchNorm2d = batchnorm,
  InstanceNorm1d = batchnorm, InstanceNorm2d = batchnorm, RMSNorm = "normalized_shape eps= elementwise_affine=",
  LayerNorm = "normalized_shape eps= elementwise_affine= bias?",
  GroupNorm = "num_groups num_channels eps= affine=", Embedding = "num_embeddings embedding_dim padding_idx?",
  PositionEmbedding = "num_positions embedding_dim", Upsample = "size? scale_factor? mode=",
  MaxPool1d = pooling .. "dilation= ceil_mode=", MaxPool2d = pooling .. "dilation= ceil_mode=",
  AvgPool1d = pooling, AvgPool2d = pooling, AdaptiveAvgPool1d = "output_size=", AdaptiveAvgPool2d = "output_size=",
  Dropout = "p= inplace=", Dropout2d = "p= inplace=", Flatten = "start_dim= end_dim=",
  ZeroPad1d = "padding", ZeroPad2d = "padding", RNN = recurrent, LSTM = recurrent, GRU = recurrent,
}

local types, defaults = {}, {} -- [kind][option]
for _, kind in ipairs(core.layer_kinds()) do
  types[kind.name], defaults[kind.name] = {}, {}
  for name, type, default in kind.spec:gmatch "(%w[%w_]*):([^=%s]+)=?(%S*)" do
    types[kind.name][name], defaults[kind.name][name] = type, default
  end
end

-- 1e-5 -> 1e-05, 1 -> 1.0
local function float(value)
  local text = ("%.15g"):format(value)
  return text:find "[.e]" and text or text .. ".0"
end

local function pair(kind, value)
  local h, w = value:match "^(%d+)x(%d+)$"
  if not h then h, w = value, value end
  return (h ~= w or kind:find "^Conv") and ("(%s, %s)"):format(h, w) or h
end

local WORDS = {["true"] = "True", ["false"] = "False", none = "None"}
-- Options that PyTorch keeps as a tuple of one number in some of its layers for (N, C, L)
local TUPLES = {kernel_size = true, stride = true, padding = true, output_padding = true, dilation = true}
local QUOTED = {GELU = "approximate", Upsample = "mode"}

local function value_text(kind, option, value)
  local type = types[kind][option]
  if QUOTED[kind] == option then return ("'%s'"):format(value) end
  local single = TUPLES[option] and value:find "^%d" and (kind:find "^Conv.*1d" or kind == "AvgPool1d")
  if single or option == "normalized_shape" then return ("(%s,)"):format(value) end
  if type == "list" then return ("(%s)"):format(value:gsub(",", ", ")) end
  if WORDS[value] then return WORDS[value] end
  if type:find "^pair" and value:find "^%d" then return pair(kind, value) end
  return type:find "^float" and tonumber(value) and float(tonumber(value)) or value
end

local printed = {}

-- parts: {{name, text}, ...}
function printed.tree(title, parts)
  local lines = {title .. "("}
  for _, part in ipairs(parts) do
    lines[#lines + 1] = ("  (%s): %s"):format(part[1], (part[2]:gsub("\n", "\n  ")))
  end
  return table.concat(lines, "\n") .. "\n)"
end

-- PyTorch shows attention without options, but with the projection after it.
local function attention(layer)
  local linear = "NonDynamicallyQuantizableLinear(in_features=%d, out_features=%d, bias=%s)"
  local width, bias = layer.options.embed_dim, layer.options.bias ~= false
  return printed.tree(layer.kind, {{"out_proj", linear:format(width, width, bias and "True" or "False")}})
end

function printed.layer(layer)
  if layer.kind == "MultiheadAttention" then return attention(layer) end
  local kind, given, told, parts = layer.kind, {}, {}, {}
  local function add(mark, name, value)
    local text = value_text(kind, name, value)
    parts[#parts + 1] = mark == "" and text or ("%s=%s"):format(name, text)
  end
  for name, value in layer.text:gmatch "(%S+)=(%S+)" do given[name] = value end
  for name, mark in (FORMS[kind] or ""):gmatch "([%w_]+)([=?]?)" do
    local default = defaults[kind][name] -- of a pooling's stride: "kernel_size"
    if given[name] or mark ~= "?" then add(mark, name, given[name] or given[default] or default) end
    told[name] = true
  end
  for name, value in layer.text:gmatch "(%S+)=(%S+)" do
    if not told[name] then add("=", name, value) end
  end
  return ("%s(%s)"):format(kind, table.concat(parts, ", "))
end

return printed
