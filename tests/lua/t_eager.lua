-- What eager PyTorch allocates, beside what framework = "pytorch" predicts of it: lists that tests/peers/eager.py wrote
-- (--short), for machines without PyTorch. `make peer-eager` compares many more networks with PyTorch itself.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"

local program = os.getenv "MEMTIDE" or "build/memtide"

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

-- One event: what it is, "bytes" or "= mark", where it stands in the text, and what was freed before the next one.
local function add(events, what, text) events[#events + 1] = {what = what, text = text, freed = {}} end

local function sorted(freed)
  table.sort(freed)
  return table.concat(freed, " ")
end

-- A list of tests/peers/eager/: see short_form in eager.py.
local function expected_of(text)
  local events, allocations, step, last = {}, 0, {}, {}
  local function take(line)
    local bytes, op, freed = line:match "^(%d+) (%S+)(.*)$"
    allocations = allocations + 1
    add(events, bytes, op)
    for back in freed:gmatch "%-(%d+)" do table.insert(events[#events].freed, allocations - tonumber(back)) end
  end
  for line in text:gmatch "[^\n]+" do
    if line:find "^= " then
      add(events, line, "")
      step, last = {}, step
    elseif line == "as before" then
      for _, before in ipairs(last) do take(before) end
      step = last
    else
      take(line)
      step[#step + 1] = line
    end
  end
  return events
end

-- What `memtide dump` prints of a step of PyTorch, without the workspaces that only cuDNN knows.
local function found_of(text)
  local events, place, allocations, unknown = {}, {}, 0, {}
  add(events, "= setup", "")
  for line in text:gmatch "[^\n]+" do
    local id, bytes, op = line:match "^%+(%d+) (%d+) %S+ (.*)$"
    if id and op:find("aten::cudnn_convolution", 1, true) then unknown["-" .. id] = true
    elseif id then
      allocations = allocations + 1
      place[id] = allocations
      add(events, bytes, op)
    elseif line:find "^= " then add(events, line, "")
    elseif not unknown[line] then
      local freed = events[#events].freed
      freed[#freed + 1] = assert(place[line:match "^%-(%d+)$"], line)
    end
  end
  return events
end

local NOTHING = {what = "nothing", text = "", freed = {}}

-- nil, or the first difference
local function difference(expected, found)
  for i = 1, math.max(#expected, #found) do
    local a, b = expected[i] or NOTHING, found[i] or NOTHING
    if a.what ~= b.what then
      return ("event %d: PyTorch %s %s, memtide %s %s"):format(i, a.what, a.text, b.what, b.text)
    elseif sorted(a.freed) ~= sorted(b.freed) then
      return ("after event %d (%s %s), freed by PyTorch: %s; by memtide: %s"):format(i, a.what, a.text, sorted(a.freed),
        sorted(b.freed))
    end
  end
end

-- The events that memtide predicts of the script, for a rank (nil: the first), or nil and its message
local function predicted(script, rank)
  local path, errors = os.tmpname(), os.tmpname()
  local file = assert(io.open(path, "w"))
  assert(file:write(script))
  file:close()
  local command = rank and "%s tests/peers/rank.lua %s " .. rank or "%s dump %s --set framework=pytorch"
  local pipe = assert(io.popen((command .. " 2>%s"):format(program, path, errors)))
  local text = pipe:read "a"
  local good, message = pipe:close(), read(errors)
  os.remove(path)
  os.remove(errors)
  if good then return found_of(text) end
  return nil, message
end

-- Floating-point operations of the products, convolutions and attention of a step of the script
local function flops_of(script)
  local one = assert(load(script))():cells()[1]
  one.values.framework, one.values.device = "pytorch", "pytorch:a100-80gb"
  local flops = cell.compile(cell.build(one)).program:cost()
  cell.release(one)
  return flops
end

-- The comparison itself: a list that is equal, and ones in which a size, a lifetime or the end differs
local list = "= setup\n8 a\n= step 1\n16 b\n4 c -1\n= step 2\nas before\n"
local dumped = "+1 8 - a - -\n= step 1\n+2 16 - b - -\n+3 4 - c - -\n-2\n= step 2\n+5 16 - b - -\n+6 4 - c - -\n-5\n"
tap.is(difference(expected_of(list), found_of(dumped)), nil, "a list is equal to what was dumped")
tap.has(difference(expected_of(list), found_of((dumped:gsub("16", "17")))), "event 4: PyTorch 16 b, memtide 17 b",
  "a size differs")
tap.has(difference(expected_of(list), found_of((dumped:gsub("%-5\n", "")))), "freed by PyTorch: 4; by memtide: ",
  "a lifetime differs")
tap.has(difference(expected_of(list), found_of(dumped .. "+7 1 - d - -\n")), "PyTorch nothing", "one more is allocated")

local pipe = assert(io.popen "ls tests/peers/eager/*.txt")
local count = 0
for path in pipe:lines() do
  local name, text = path:match "([^/]+)%.txt$", read(path)
  local flops, rank, script, events = text:match "^%-%- (%S+) FLOP in a step(.-)\n(.-)\n%-%-\n(.*)$"
  local found, message = predicted(script, rank:match "rank (%d+)")
  local what = found and difference(expected_of(events), found) or not found and message
  tap.ok(not what, name)
  if what then print("# " .. what) end
  if flops ~= "-" then tap.is(flops_of(script), tonumber(flops) * 1.0, name .. ": as many operations") end
  count = count + 1
end
pipe:close()
tap.ok(count >= 20, "there are lists")

-- ---- what PyTorch would refuse, and what is not what it says

local SCRIPT = [[
local mt = require "memtide"
local nn, optim, models = mt.nn, mt.optim, mt.models
return mt.experiment{name = "refused", model = %s, input = {%d, %d}, loss = nn.MSELoss(), batch = 2, optimizer = optim.SGD{lr = 1},
  precision = "%s", pytorch = {%s}, device = "pytorch:%s"}]]

local ATTENTION = [[nn.Graph{q = nn.Linear(24, 4 * %d), k = nn.Linear(24, %d * %d), forward = function(self, x)
  local k = self.k(x)
  return nn.scaled_dot_product_attention(self.q(x), k, k, {num_heads = 4, is_causal = true, enable_gqa = true})
end}]]

local function refused(want, what, model, precision, chosen, card, steps, features)
  local found, message = predicted(SCRIPT:format(model, steps or 5, features or 24, precision, chosen, card or "a100-80gb"))
  tap.ok(not found, what)
  tap.has(message or "", want, "... with its reason")
end

refused("torch.amp.GradScaler refuses gradients of fp16", "a scaler of fp16 gradients", "nn.Linear(24, 24)", "fp16",
  "}, grad_scaler = {init_scale = 8")

local function attention(width, heads) return ATTENTION:format(width, heads, width) end

-- The op of attention that is predicted
local function kernel(model, precision, chosen, card)
  local found, message = predicted(SCRIPT:format(model, 5, 24, precision, chosen, card))
  for _, event in ipairs(found or {}) do
    local name = event.text:match "aten::_scaled_dot_product_(%l+)_attention"
    if name then return name end
  end
  return found and "math" or message
end

refused("attention = \"flash\": PyTorch refuses it: flash attention takes 16 bits alone", "flash in fp32", attention(8, 4), "fp32",
  'attention = "flash"')
refused("at most 256 features", "flash of wide heads", attention(264, 4), "amp_bf16", 'attention = "flash"')
refused("needs compute capability 8.0", "flash on a T4", attention(8, 4), "amp_fp16", 'attention = "flash"', "t4")
refused("does not train heads of that size on this card", "flash of 200 features on a 4090", attention(200, 4), "amp_bf16",
  'attention = "flash"', "rtx4090")
refused("multiple of 4, in 16 bits of 8", "memory-efficient in 16 bits, 12 features", attention(12, 4), "amp_bf16",
  'attention = "memory_efficient"')
refused("as many heads of keys as of queries", "memory-efficient, grouped, in 2.6", attention(8, 2), "fp32",
  'attention = "memory_efficient", version = "2.6"')
refused("at most 128, or 256 on Hopper", "cuDNN's of 136 features on an A100", attention(136, 4), "amp_bf16", 'attention = "cudnn"')
refused("not predicted for version 2.6", "cuDNN's in 2.6", attention(8, 4), "amp_bf16", 'attention = "cudnn", version = "2.6"')
local MASKED = [[nn.Graph{q = nn.Linear(24, 32), %s forward = function(self, x)
  local q = self.q(x)
  return nn.scaled_dot_product_attention(q, q, q, %s{num_heads = 4, is_causal = true, %s})
end}]]

-- Steps of 5; bias: a layer that is one, as text, or nil
local function masked(bias, option)
  return MASKED:format(bias and "bias = " .. bias .. "," or "", bias and "self.bias, " or "", option or "")
end
local BIAS = "nn.Parameter{5, 5}"
refused("flash attention takes no mask", "flash with a bias", masked(BIAS), "amp_bf16", 'attention = "flash"')
refused("flash attention takes no mask", "flash with a window", masked(nil, "window = 5"), "amp_bf16", 'attention = "flash"')
refused("a mask of 2 or 4 dimensions without a gradient", "cuDNN's with a bias that is trained", masked(BIAS), "amp_bf16",
  'attention = "cudnn"', "h100")

refused("attention: expected one of default flash memory_efficient cudnn math, found fast", "an unknown one", attention(8, 4),
  "fp32", 'attention = "fast"')
refused("version 1.13 is not known: expected one of 2.6, 2.15", "an unknown version", attention(8, 4), "fp32", 'version = "1.13"')

for _, case in ipairs{
  {"efficient", 8, 2, "fp32", "", "a100-80gb", "grouped heads in fp32"},
  {"math", 8, 2, "fp32", 'version = "2.6"', "a100-80gb", "... in 2.6"},
  {"flash", 8, 2, "amp_bf16", "", "a100-80gb", "16 bits"},
  {"cudnn", 8, 2, "amp_bf16", "", "h100", "... on Hopper"}, {"cudnn", 8, 2, "amp_bf16", "", "b200", "... on a B200"},
  {"flash", 8, 2, "amp_bf16", "", "rtx5090", "... on a 5090"},
  {"flash", 8, 2, "amp_bf16", 'version = "2.6"', "h100", "... on Hopper, in 2.6"},
  {"efficient", 8, 2, "amp_fp16", "", "t4", "fp16 on a T4"}, {"math", 8, 2, "amp_bf16", "", "t4", "bf16 on a T4"},
  {"efficient", 6, 4, "fp32", "", "t4", "6 features in fp32 on a T4"}, {"math", 6, 4, "fp32", "", "a100-80gb", "... on an A100"},
  {"flash", 200, 4, "amp_bf16", "", "a100-80gb", "200 features"},
  {"efficient", 200, 4, "amp_bf16", "", "rtx4090", "... on a 4090, in training"}} do
  tap.is(kernel(attention(case[2], case[3]), table.unpack(case, 4, 6)), case[1], "attention: " .. case[7])
end
for _, case in ipairs{
  {"efficient", BIAS, "", "amp_bf16", "a100-80gb", "a bias in 16 bits"}, {"efficient", BIAS, "", "fp32", "a100-80gb", "... in fp32"},
  {"efficient", BIAS, "", "amp_bf16", "h100", "... on Hopper, which is trained"},
  {"cudnn", "nn.Frozen(nn.Parameter{5, 5})", "", "amp_bf16", "h100", "... which is not"},
  {"efficient", "nn.Frozen(nn.Parameter{4, 5, 5})", "", "amp_bf16", "h100", "... of 3 dimensions"},
  {"efficient", nil, "window = 5", "amp_bf16", "a100-80gb", "a window"}, {"cudnn", nil, "window = 5", "amp_bf16", "h100", "... on Hopper"},
  {"flash", nil, "window = 6", "amp_bf16", "a100-80gb", "... that has more places than there are keys"},
  {"math", nil, "softcap = 3", "amp_bf16", "a100-80gb", "a cap"}} do
  tap.is(kernel(masked(case[2], case[3]), case[4], "", case[5]), case[1], "attention with a mask: " .. case[6])
end

refused("PyTorch refuses it: loss.backward() expects a parameter that gets a gradient", "a frozen model", "nn.Frozen(nn.Linear(24, 24))", "fp32", "}, sweep = {")

-- A parameter that no expandable segment has the addresses for, where memory has no limit
local mt = require "memtide"
local huge = cell.compile(cell.build(mt.experiment{name = "huge", input = {1 << 24}, classes = 2, loss = mt.nn.CrossEntropyLoss(), framework = "pytorch",
  pytorch = {alloc_conf = "expandable_segments:True"}, model = mt.nn.Linear(1 << 24, 1 << 22), optimizer = mt.optim.SGD()}:cells()[1]))
tap.ok(cell.predict(huge).peak.bytes > 2 * 4 * (1 << 46), "a parameter of 256 TiB in expandable segments, and its gradient")
cell.release(huge)

-- ---- a rank of several: what DistributedDataParallel would refuse

refused("expects a parameter that gets a gradient", "a frozen model of four ranks", "nn.Frozen(nn.Linear(24, 24))", "fp32", "}, world = 4, sweep = {")
refused("checkpoint_sequential does not call the model", "checkpoint_sequential of four ranks",
  "nn.Sequential{nn.Linear(24, 24), nn.Linear(24, 24)}", "fp32", '}, world = 4, checkpoint = "sqrt", sweep = {')
refused("expected true or false, found 3", "an option of DistributedDataParallel", "nn.Linear(24, 24)", "fp32", "gradient_as_bucket_view = 3")

refused("expected q, k and v by Linear", "a LlamaAttention that is none", [[nn.Graph{a = nn.Linear(24, 24),
  listing = "LlamaAttention", forward = function(self, x) return self.a(x) end}]], "fp32", "")
local LLAMA = [[
local mt = require "memtide"
local nn = mt.nn
local attention = nn.Graph{q = nn.Linear(24, 24), k = nn.Linear(24, 24), v = nn.Linear(24, 24), o = nn.Linear(24, 24),
  turn = nn.RotaryPositionalEmbeddings(6, {interleaved = false}), listing = "LlamaAttention", forward = function(self, x)
    local q, k, v = self.q(x), self.k(x), self.v(x)
    return self.o(nn.scaled_dot_product_attention(self.turn(q), self.turn(k), v, {num_heads = 4, is_causal = true, %s}))
  end}
return mt.experiment{name = "llama", input = {5}, loss = nn.MSELoss(), batch = 2, optimizer = mt.optim.SGD{lr = 1},
  device = "pytorch:a100-80gb", model = nn.Graph{embed = nn.Embedding(9, 24), attention = attention, listing = "LlamaModel",
    forward = function(self, x) return self.attention(self.embed(x)) end}}]]
tap.ok(predicted(LLAMA:format "window = 6"), "a LlamaAttention whose window leaves out no key")
for _, option in ipairs{"window = 5", "softcap = 3"} do
  local found, message = predicted(LLAMA:format(option))
  tap.ok(not found, "a LlamaAttention with " .. option)
  tap.has(message or "", "their attention without a window or a cap", "... with its reason")
end
refused("expected an Embedding first", "a LlamaModel that is none", [[nn.Graph{a = nn.Linear(24, 24), listing = "LlamaModel",
  forward = function(self, x) return self.a(x) end}]], "fp32", "")
refused("expected elementwise_affine = true", "a LlamaRMSNorm without a weight",
  [[nn.RMSNorm(24, {elementwise_affine = false, listing = "LlamaRMSNorm"})]], "fp32", "")

-- All that a script of memtide may say and PyTorch's step has not, or is not known of; other layers and losses are predicted
local CHAIN = "nn.Sequential{nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 4)}"
local REFUSALS = {
  {"expected a precision that PyTorch has", 'precision = "master_bf16"'},
  {'expected checkpoint = "none", "marked" or "sqrt"', 'checkpoint = "all"'},
  {'expected checkpoint = "none", "marked" or "sqrt"', 'checkpoint = "selective"'},
  {'expected checkpoint = "none", "marked" or "sqrt"', 'checkpoint = "1MB"'},
  {"expects one nn.Sequential", 'checkpoint = "sqrt"', "nn.Graph{a = nn.Linear(24, 4), forward = function(self, x) return self.a(x) end}"},
  {"the first segment's weights get no gradients", 'checkpoint = "sqrt", pytorch = {use_reentrant = true}'},
  {"expected loss_chunks = 1", "loss_chunks = 4"},
  {'expected offload = "none" or "all"', 'offload = "1MB"'},
  {'expected checkpoint = "none" with offload = "all"', 'offload = "all", checkpoint = "sqrt"'},
  {"8-bit optimizers are not predicted", "optimizer = optim.Adam8bit{}"},
  {"8-bit optimizers are not predicted", "optimizer = optim.AdamW8bit{}"},
  {"bitsandbytes' optimizers have no amsgrad", "optimizer = optim.PagedAdam{amsgrad = true}"},
  {"bitsandbytes' optimizers have a block_size of 256", "optimizer = optim.PagedAdamW8bit{block_size = 128}"},
  {"has no fused form", "optimizer = optim.PagedAdamW{}, pytorch = {fused = true}"},
  {"lay parameters in order again", "optimizer = optim.PagedLion{}, pytorch = {channels_last = true}"},
  {"has no fused form", "optimizer = optim.RMSprop{}, pytorch = {fused = true}"},
  {"expected use_reentrant = false", "world = 4, zero = 3, pytorch = {use_reentrant = true}"},
  {"expected version 2.15", 'world = 4, zero = 2, pytorch = {version = "2.6"}'},
  {'expected offload = "none"', 'world = 4, zero = 3, offload = "all"'},
  {"PyTorch refuses Adafactor", "world = 4, zero = 3, optimizer = optim.Adafactor{}"},
  {"PyTorch refuses Adafactor, Lion and the fused Adagrad", "world = 4, zero = 3, optimizer = optim.Adagrad{}, pytorch = {fused = true}"},
  {"recurrent layers are not predicted in fully_shard", "world = 4, zero = 3", "nn.Sequential{nn.Unflatten(1, {6, 4}), nn.LSTM(4, 3)}"},
  {"two uses is not predicted", "world = 4, zero = 3",
   "nn.Graph{a = nn.Linear(24, 24), forward = function(self, x) return self.a(self.a(x)) end}"},
  {"fully_shard expects parameters of one type", 'world = 4, zero = 3, precision = "bf16"',
   "nn.Sequential{nn.Linear(24, 8), nn.Linear(8, 4):float()}"},
  {"ZeroRedundancyOptimizer expects parameters of one type", 'world = 4, zero = 1, precision = "bf16"',
   "nn.Sequential{nn.Linear(24, 8), nn.Linear(8, 4):float()}"},
  {"param_dtype and reduce_dtype are of fully_shard", 'world = 4, zero = 1, pytorch = {param_dtype = "bfloat16"}'},
  {"param_dtype: expected bfloat16 or float32, found float16", 'world = 4, zero = 3, pytorch = {param_dtype = "float16"}'},
}
for _, case in ipairs(REFUSALS) do
  local want, extra, model = table.unpack(case)
  local optimizer = extra:find "optimizer" and "" or "optimizer = optim.SGD{lr = 1},"
  local found, message = predicted(([[local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{name = "refused", model = %s, input = {24}, loss = nn.MSELoss(), batch = 2, device = "pytorch:a100-80gb",
  %s %s}]]):format(model or CHAIN, optimizer, extra))
  tap.ok(not found, extra ~= "" and extra or model)
  tap.has(message or "", want, "... with its reason")
end
tap.done()
