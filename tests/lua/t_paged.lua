-- Paged optimizers: bit for bit what the optimizers without pages do, in less memory of the device, to the byte that is predicted,
-- with every other technique, and resumed from a file. TEST_DEVICE: where, else on the CPU.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local DEVICE = os.getenv "TEST_DEVICE" or "cpu"
local BATCH, FEATURES, CLASSES, STEPS = 4, 320, 10, 4
local BASE = {PagedAdam = "Adam", PagedAdamW = "AdamW", PagedAdam8bit = "Adam8bit", PagedAdamW8bit = "AdamW8bit", PagedLion = "Lion"}

-- Weights of 102,400, 131,200 and 4,100 numbers: the first two are paged, and of these the second has no whole blocks of 256
local function chain()
  return nn.Sequential{nn.Linear(FEATURES, 320), nn.ReLU(), nn.Linear(320, 410), nn.Tanh(), nn.Linear(410, CLASSES)}
end

local function new(options)
  local all = {model = chain(), input = {FEATURES}, batch = BATCH, loss = nn.CrossEntropyLoss(), seed = 3, device = DEVICE}
  for key, value in pairs(options) do all[key] = value end
  return assert(mt.trainer(all))
end

local function batch(s, size, features)
  local x, y = {}, {}
  for i = 1, size * features do x[i] = math.sin(0.377 * i + s) end
  for i = 1, size do y[i] = (i + s) % CLASSES end
  return x, y
end

-- Trains -> losses and all parameters, the trainer's memory and what is predicted of it
local function run(options, steps)
  local trainer <close> = new(options)
  local all = {}
  for s = 1, steps or STEPS do
    if options.parts then
      trainer:zero_grad()
      for part = 1, 2 do
        all[#all + 1] = trainer:forward(batch(s + part, BATCH, FEATURES))
        trainer:backward()
      end
      trainer:update()
    else all[#all + 1] = trainer:step(batch(s, (options.batch or BATCH) * (options.accumulate or 1), FEATURES)) end
  end
  for _, param in ipairs((trainer:parameters())) do
    local values = trainer:read(param.name)
    table.move(values, 1, #values, #all + 1, all)
  end
  return all, trainer:memory(), trainer:predicted(STEPS)
end

local function difference(a, b)
  if #a ~= #b then return "another number" end
  for i = 1, #a do if a[i] ~= b[i] then return ("%d: %.9g, %.9g"):format(i, a[i], b[i]) end end
end

local function combined(options, optimizer)
  local all = {optimizer = optimizer}
  for key, value in pairs(options) do all[key] = value end
  return all
end

-- ---- with every other technique

for _, case in ipairs{
  {"PagedAdam", "plain"},
  {"PagedAdam", "amsgrad, master copies, a budget", {amsgrad = true}, {precision = "master_bf16", offload = 16 << 20}},
  {"PagedAdam", "a clipped norm", {clip_norm = 0.5}},
  {"PagedAdam", "a step in parts", nil, {parts = true}},
  {"PagedAdam", "a schedule", nil, {schedule = optim.StepLR(2)}},
  {"PagedAdamW", "micro-batches", nil, {accumulate = 3}},
  {"PagedAdamW", "loss scaling, offloading", nil, {precision = "amp_fp16", offload = "all", batch = 512}},
  {"PagedAdamW", "a first scale that overflows", nil, {precision = "amp_fp16", grad_scaler = {init_scale = 2 ^ 100}}},
  {"PagedAdamW", "the caching allocator", nil, {allocator = "caching"}},
  {"PagedAdamW", "an allocation for each tensor", nil, {allocator = "direct", accumulate = 2}},
  {"PagedAdam8bit", "codes", nil},
  {"PagedAdam8bit", "codes, micro-batches, checkpoints", nil, {accumulate = 2, checkpoint = "all", precision = "amp_bf16"}},
  {"PagedAdamW8bit", "codes of other blocks, master copies", {block_size = 128}, {precision = "master_bf16"}},
  {"PagedAdamW8bit", "codes in place, offloading", nil, {inplace = true, offload = "all", precision = "fp16"}},
  {"PagedLion", "16 bits", nil, {precision = "bf16"}},
  {"PagedLion", "offloading", {weight_decay = 0.1}, {offload = "all"}},
} do
  local kind, name, arguments, options = case[1], case[2], case[3] or {}, case[4] or {}
  arguments.lr = 0.003
  local what = ("%s, %s"):format(kind, name)
  local found, paged, predicted = run(combined(options, optim[kind](arguments)))
  local wanted, whole = run(combined(options, optim[BASE[kind]](arguments)))
  tap.is(difference(found, wanted), nil, what .. ": the losses and parameters are those without pages")
  tap.is(paged.peak.bytes .. " " .. paged.host, predicted.peak.bytes .. " " .. predicted.host,
    "... in the bytes that are predicted, on the device and on the host")
  if options.offload == "all" and options.batch then tap.ok(whole.host > 0, "... beside activations that wait there") end
  tap.ok(paged.peak.used < whole.peak.used and paged.host > whole.host, -- segments of the caching allocator are as large
    ("... %d of the device instead of %d, %d more of the host"):format(paged.peak.used, whole.peak.used, paged.host - whole.host))
end

-- ---- what is saved: at the update of the largest parameter its states are there, and those of no other that is paged

do
  local _, paged = run{optimizer = optim.PagedAdam{}, accumulate = 2}
  local _, whole = run{optimizer = optim.Adam{}, accumulate = 2}
  local states, largest = 8 * (102400 + 131200), 8 * 131200
  tap.is(paged.host, states, "the states of both large weights lie on the host")
  tap.is(whole.categories.optimizer - paged.categories.optimizer, states, "and not on the device between steps")
  local rounding = 6 * 256 -- a state's end
  local saved = whole.peak.bytes - paged.peak.bytes
  tap.ok(saved >= states - largest - rounding, ("the peak is lower by %d bytes: all states but the largest weight's"):format(saved))
  local _, small = run{optimizer = optim.PagedAdam{}, model = nn.Sequential{nn.Linear(FEATURES, 312), nn.Tanh(), nn.Linear(312, CLASSES)}}
  tap.is(small.host, 0, "weights below 100,000 numbers keep theirs on the device")
end

-- ---- adapters over quantised weights

do
  local function model()
    local made = mt.models.Llama{hidden_size = 128, intermediate_size = 1024, num_attention_heads = 4, num_hidden_layers = 1,
      vocab_size = 64}
    mt.peft.quantize(made, {load_in_4bit = true, bnb_4bit_quant_type = "nf4"})
    return mt.peft.lora(made, {r = 128, target_modules = "all-linear"}) -- adapters of 128 x 1024: 131,072 numbers
  end
  local function trained(optimizer)
    local trainer <close> = new{model = model(), input = {8}, batch = 2, optimizer = optimizer, precision = "bf16"}
    local x, y, all = {}, {}, {}
    for i = 1, 16 do x[i], y[i] = i % 64, (i + 1) % 64 end
    for s = 1, STEPS do all[s] = trainer:step(x, y) end
    return all, trainer:memory(), trainer:predicted(STEPS)
  end
  local found, paged, predicted = trained(optim.PagedAdamW8bit{lr = 1e-2})
  local wanted, whole = trained(optim.AdamW8bit{lr = 1e-2})
  tap.is(difference(found, wanted), nil, "QLoRA: the same losses")
  tap.ok(found[STEPS] < found[1], "... which fall")
  tap.is(paged.peak.bytes .. " " .. paged.host, predicted.peak.bytes .. " " .. predicted.host, "... in the bytes that are predicted")
  tap.is(paged.host, 3 * (2 * 131072 + 8 * 131072 // 256), "... the states of three adapters on the host")
  tap.ok(paged.peak.bytes < whole.peak.bytes, "... and fewer on the device")
end

-- ---- a run that is resumed

local folder = os.tmpname()
os.remove(folder)
assert(os.execute(("mkdir '%s'"):format(folder)))

local function content(name)
  local file <close> = assert(io.open(folder .. "/" .. name, "rb"))
  return file:read "a"
end

local function resumed(kind, from, first, last, to, strict)
  local trainer <close> = new{optimizer = optim[kind]{lr = 0.003}, precision = "master_bf16"}
  if from then assert(trainer:load_state(folder .. "/" .. from, {strict = strict})) end
  for s = first, last do trainer:step(batch(s, BATCH, FEATURES)) end
  assert(trainer:save_state(folder .. "/" .. to))
end

for _, kind in ipairs{"PagedAdamW", "PagedAdamW8bit"} do
  resumed(kind, nil, 1, 6, "straight")
  resumed(kind, nil, 1, 3, "half")
  resumed(kind, "half", 4, 6, "resumed")
  tap.ok(content "straight" == content "resumed", kind .. ": 3 and 3 steps end as 6, byte by byte")
  resumed(BASE[kind], nil, 1, 3, "half")
  resumed(kind, "half", 4, 6, "resumed", false)
  tap.ok(content "straight" == content "resumed", "... and it goes on from a file of " .. BASE[kind])
  resumed(kind, nil, 1, 3, "half")
  resumed(BASE[kind], "half", 4, 6, "resumed", false)
  resumed(BASE[kind], nil, 1, 6, "straight")
  tap.ok(content "straight" == content "resumed", "... which goes on from its files")
end
os.execute(("rm -r '%s'"):format(folder))

-- ---- states are read and written by name, as others

do
  local trainer <close> = new{optimizer = optim.PagedAdam{}}
  trainer:step(batch(1, BATCH, FEATURES))
  local values = trainer:read "0.weight.exp_avg"
  tap.ok(#values == 102400 and values[1] ~= 0, "a paged state is read")
  values[1] = 0.5
  assert(trainer:write("0.weight.exp_avg", values))
  tap.is(trainer:read "0.weight.exp_avg"[1], 0.5, "and written")
end
tap.done()
