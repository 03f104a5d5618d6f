-- Weights to and from safetensors files, runs that are interrupted and go on, and PyTorch reading and writing the same.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local core = require "memtide.core"
local nn, optim = mt.nn, mt.optim

local program = os.getenv "MEMTIDE" or "build/memtide"
local folder = arg[4] or os.tmpname()
local function path(name) return folder .. "/" .. name end

local function content(name)
  local file <close> = assert(io.open(path(name), "rb"))
  return file:read "a"
end

local function write(name, bytes)
  local file <close> = assert(io.open(path(name), "wb"))
  file:write(bytes)
end

-- Convolutions and a flattened image (stored channels-last), nested containers, dropout.
local function net(outputs)
  return nn.Sequential{
    nn.Conv2d(2, 4, 3, {padding = 1}), nn.Residual{nn.Sequential{nn.Conv2d(4, 4, 1), nn.ReLU()}, nn.Conv2d(4, 4, 1)},
    nn.Checkpoint(nn.Sequential{nn.Conv2d(4, 3, 2, {bias = false}), nn.ReLU()}), nn.Flatten(),
    nn.Dropout(0.3), nn.Sequential{nn.Linear(3 * 5 * 4, 7), nn.Tanh()}, nn.Linear(7, outputs or 3)}
end
local NAMES = "0.weight 0.bias 1.body.0.weight 1.body.0.bias 1.shortcut.weight 1.shortcut.bias 2.0.weight 5.0.weight "
  .. "5.0.bias 6.weight 6.bias"

local function open(more, outputs)
  local model = net(outputs)
  if more and more.wide then
    model = nn.Sequential{nn.Conv2d(2, 256, 3), nn.ReLU(), nn.Conv2d(256, 2, 3), nn.Flatten(), nn.Linear(4, 3)}
  end
  local options = {model = model, input = {2, 6, 5}, batch = 4, loss = nn.CrossEntropyLoss(), seed = 5}
  for key, value in pairs(more or {}) do options[key] = value end
  options.name, options.prefetch, options.pieces, options.wide = nil, nil, nil, nil -- of a case
  return assert(mt.trainer(options))
end

local function loader(more)
  local options = {mt.data.random{count = 10, shape = {2, 6, 5}, classes = 3, seed = 1}, batch = 4, shuffle = true,
    seed = 3}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.data.loader(options)
end

-- ---- interrupted runs: 6 steps at once and 3 + 3 in two processes end in the same file
local CASES = {
  {name = "SGD with momentum", optimizer = optim.SGD{lr = 0.1, momentum = 0.9}},
  {name = "SGD with dampening", optimizer = optim.SGD{lr = 0.1, momentum = 0.9, dampening = 0.5}},
  {name = "Adam", optimizer = optim.Adam{lr = 0.01}},
  {name = "RMSprop", optimizer = optim.RMSprop{lr = 0.01, momentum = 0.5, centered = true}, precision = "master_bf16"},
  {name = "Adagrad", optimizer = optim.Adagrad{lr = 0.01, lr_decay = 0.1, initial_accumulator_value = 0.1}},
  {name = "Adafactor", optimizer = optim.Adafactor{weight_decay = 0.1}, precision = "master_fp16"},
  {name = "loss scaling", precision = "amp_fp16", optimizer = optim.AdamW{lr = 0.01, amsgrad = true}},
  {name = "master copies", precision = "master_bf16", optimizer = optim.SGD{lr = 0.1, momentum = 0.9}},
  {name = "master copies and loss scaling", precision = "master_fp16"},
  {name = "weights of 16 bits", precision = "bf16", optimizer = optim.SGD{lr = 0.1}},
  {name = "accumulation", accumulate = 2, batch = 2, pieces = 2},
  {name = "a loader that reads ahead", prefetch = true},
  {name = "class weights", loss = nn.CrossEntropyLoss{1, 2, 0.5}},
  {name = "Adam8bit", optimizer = optim.Adam8bit{lr = 0.01, block_size = 128, amsgrad = true}, wide = true},
}

-- The next batch of a loader, one epoch after another.
local function batches(from)
  local epoch = from:epoch()
  return function()
    local x, y, n = epoch()
    if not x then
      epoch = from:epoch()
      x, y, n = epoch()
    end
    return x, y, n
  end
end

local function run(case, from, to, steps)
  local trainer <close> = open(case)
  local data = loader{mt.data.random{count = 18, shape = {2, 6, 5}, classes = 3}, prefetch = case.prefetch}
  if from ~= "-" then assert(trainer:load_state(path(from), {loader = data})) end
  local next_batch = batches(data)
  for _ = 1, steps do
    local x, y, n = next_batch()
    while case.pieces and n < 4 do x, y, n = next_batch() end -- all the micro-batches of a step
    assert(trainer:step(x, y))
  end
  assert(trainer:save_state(path(to), {loader = data}))
  data:close()
end

if arg[1] then
  run(CASES[tonumber(arg[1])], arg[2], arg[3], 3)
  return
end

os.remove(folder)
assert(os.execute(("mkdir '%s'"):format(folder)))

local function in_new_process(case, from, to)
  return os.execute(("'%s' tests/lua/t_weights.lua %d %s %s '%s'"):format(program, case, from, to, folder))
end

for i, case in ipairs(CASES) do
  run(case, "-", "straight", 6)
  tap.ok(in_new_process(i, "-", "half") and in_new_process(i, "half", "resumed"), case.name .. ": two runs of 3 steps")
  local straight, half = content "straight", content "half"
  tap.ok(straight == content "resumed", "... end as one of 6 steps, byte by byte")
  tap.ok(straight:sub(-100) ~= half:sub(-100) and #straight == #half, "... which are not the first 3")
end

do
  local one <close> = open{loss = nn.CrossEntropyLoss{1, 2, 0.5}}
  local other <close> = open{loss = nn.CrossEntropyLoss{3, 1, 1}}
  assert(one:save_state(path "weighted"))
  assert(other:load_state(path "weighted", {strict = false}))
  tap.is(other:read("class_weights")[1], 3, "class weights are the loss's, not the run's")
  tap.raises("loss: expected CrossEntropyLoss(weight=3,1,1), found CrossEntropyLoss(weight=1,2,0.5)",
    "and a run goes on with its own", other.load_state, other, path "weighted")
  local ce = nn.CrossEntropyLoss{1, 2, 0.5}
  local two <close> = open{loss = ce + 0.5 * ce, model = nn.Graph{fc = nn.Linear(60, 3), forward = function(self, x)
    local y = self.fc(x:flatten())
    return y, y:tanh()
  end}}
  assert(two:save_state(path "two"))
  for _, tensor in ipairs(assert(core.safetensors(path "two")):list()) do
    tap.ok(not tensor.name:find "class_weights", "nor those of several: " .. tensor.name)
  end
end

local buffers = {}
do
  local trainer <close> = open(CASES[9])
  for _, buffer in ipairs(core.persistent(trainer.runtime)) do buffers[buffer.name] = buffer.dtype end
end
tap.is(buffers["0.weight"] .. buffers["0.weight.master"] .. buffers["0.weight.exp_avg"], "F16F32F32",
  "buffers have the types of the run")
tap.ok(buffers.state == "I32" and buffers.calls == "I32", "and counters are among them")

-- ---- the place of a loader
do
  local first, second = loader(), loader()
  local epoch = first:epoch()
  epoch()
  tap.is(table.concat({first:place()}, " "), "0 1", "a loader knows its place")
  second:seek(first:place())
  local rest, expected = second:epoch(), epoch():values()
  tap.is(table.concat(rest():values(), " "), table.concat(expected, " "), "goes there")
  epoch()
  tap.is(table.concat({first:place()}, " "), "1 0", "after the last batch the next epoch begins")
  tap.ok(rest() and not rest(), "what was left of the epoch comes to its end")
  local n = 0
  for _ in second:epoch() do n = n + 1 end
  tap.is(n, 3, "and the next one is whole")
  tap.raises("expected a batch from 0 to 2, found 3", "a place that is not there", second.seek, second, 0, 3)
end

-- ---- weights
local function values(trainer)
  local all = {}
  for _, param in ipairs((trainer:parameters())) do
    all[#all + 1] = table.concat(trainer:read(param.name), " ")
  end
  return table.concat(all, "\n")
end

local trainer = open()
assert(trainer:save(path "weights"))
do
  local file <close> = assert(core.safetensors(path "weights"))
  local list, names = file:list(), {}
  for i, tensor in ipairs(list) do names[i] = tensor.name end
  local sorted = {}
  for name in NAMES:gmatch "%S+" do sorted[#sorted + 1] = name end
  table.sort(sorted)
  tap.is(table.concat(names, " "), table.concat(sorted, " "), "names are those of PyTorch's state_dict")
  tap.is(list[2].dtype .. " " .. table.concat(list[2].shape, "x"), "F32 4x2x3x3", "in its shapes, in fp32")
  tap.is(file:metadata().format, "pt", "and marked as its tensors")
end
local other = open{seed = 6}
tap.ok(values(other) ~= values(trainer), "another seed has other weights")
local report = assert(other:load(path "weights"))
tap.is(values(other), values(trainer), "loading makes them equal")
tap.is(#report.missing + #report.unexpected, 0, "with nothing left over")

do -- 16-bit weights
  local narrow <close> = open{precision = "master_bf16"}
  local again <close> = open{precision = "master_bf16", seed = 7}
  assert(narrow:load(path "weights"))
  tap.near(narrow:read("0.weight.master")[3], trainer:read("0.weight")[3], 0, "a master copy gets every bit")
  tap.ok(narrow:read("0.weight")[3] ~= trainer:read("0.weight")[3], "the weight beside it is rounded")
  assert(narrow:save(path "master"))
  tap.ok(content "master" == content "weights", "and the master copy is what is saved")
  assert(narrow:save(path "stored", {stored = true}))
  do
    local file <close> = assert(core.safetensors(path "stored"))
    tap.is(file:list()[1].dtype, "BF16", "as stored, on request")
  end
  assert(again:load(path "stored"))
  tap.is(values(again), values(narrow), "which loads as well")
  tap.near(again:read("0.weight.master")[3], narrow:read("0.weight")[3], 0, "... into the master copies, too")
end

-- ---- what does not fit
local wide = open({classes = 5}, 5)
local before = values(wide)
tap.raises("weights does not fit this trainer: 6.weight: expected the shape (5, 7), found (3, 7); "
  .. "6.bias: expected the shape (5), found (3)", "other shapes are refused", wide.load, wide, path "weights")
tap.raises(tap.line(1) .. " trainer:load: ", "at the script's line, also where names may differ", function()
  wide:load(path "weights", {strict = false}) end)
tap.is(values(wide), before, "and nothing was changed")
tap.raises("missing: 6.weight, 6.bias", "a tensor that is skipped is missing", wide.load, wide, path "weights",
  {skip = {"6.weight", "6.bias"}})
report = assert(wide:load(path "weights", {skip = {"6.weight", "6.bias"}, strict = false}))
tap.is(table.concat(report.missing, " "), "6.weight 6.bias", "unless it may be")
tap.is(wide:read("0.weight")[1], trainer:read("0.weight")[1], "the others are loaded")
tap.is(table.concat(wide:read "6.bias", " "), before:match "[^\n]*$", "and the missing ones stay")
tap.raises('has no tensor "6.wieght" (did you mean "6.weight"?)', "a misspelt name", wide.load, wide, path "weights",
  {skip = {"6.wieght"}})
local small <close> = assert(mt.trainer{model = nn.Linear(2, 2), input = {2}, loss = nn.MSELoss(), batch = 1})
tap.raises("missing: weight, bias; unexpected: 0.bias, 0.weight, 1.body.0.bias", "another network", small.load, small,
  path "weights")
tap.has(select(2, pcall(small.load, small, path "weights")), "... (11 in all)", "a long list is cut")
report = assert(small:load(path "weights", {strict = false}))
tap.is(#report.missing .. " " .. #report.unexpected, "2 11", "nothing in common is no error, if asked for")

local function tensors(header, bytes) return string.pack("<s8", header) .. bytes end
write("ints", tensors('{"weight":{"dtype":"I64","shape":[2,2],"data_offsets":[0,32]},'
  .. '"bias":{"dtype":"F64","shape":[2],"data_offsets":[32,48]}}', ("\0"):rep(48)))
tap.raises("weight: expected F32, found I64", "labels for weights", small.load, small, path "ints")
tap.ok(small:load(path "ints", {strict = false, skip = {"weight"}}) and small:read("bias")[1] == 0, "doubles are taken")
write("cut", content("weights"):sub(1, -2))
local none, message, code = trainer:load(path "cut")
tap.ok(none == nil and code == "format" and message:find("data_offsets", 1, true), "a file that was cut off")
none, message, code = trainer:load(path "nothing")
tap.ok(none == nil and code == "file" and message:find "No such file", "one that is not there")
none, message, code = trainer:save(path "no/folder")
tap.ok(none == nil and code == "file" and message:find "No such file", "a folder that is not there")
tap.raises("trainer:save: path: expected a string, found nil", "no path", trainer.save, trainer)
tap.raises('unknown key "strcit" (did you mean "strict"?)', "a misspelt option", trainer.load, trainer, "x",
  {strcit = 1})

-- ---- states that do not fit
local data = loader()
assert(trainer:save_state(path "state", {loader = data}))
other:write("0.bias", {0, 0, 0, 0})
report = assert(other:load(path "state", {strict = false}))
tap.ok(values(other) == values(trainer) and #report.missing == 0, "weights can be had from a state, in the same order")
local function refuses(text, what, more, options)
  local one <close> = open(more)
  tap.raises(text, what, one.load_state, one, path "state", options)
end
local with = {loader = data}
refuses("seed: expected 6, found 5", "another seed", {seed = 6}, with)
refuses("optimizer: expected Adam(lr=0.5), found Adam()", "another rate", {optimizer = optim.Adam{lr = 0.5}}, with)
refuses("network: expected (6): Linear(in_features=7, out_features=4, bias=True), found (6): Linear(",
  "another network", {model = net(4)}, with)
refuses("precision: expected amp_bf16, found fp32", "another precision", {precision = "amp_bf16"}, with)
refuses("loader: expected none, found random", "a loader that is forgotten")
refuses("loader: expected random", "another loader", nil, {loader = loader{seed = 4}})
refuses("loader: expected a loader of mt.data, found a table", "no loader", nil, {loader = {}})
refuses("missing: 0.weight.momentum_buffer", "other buffers, even so", {optimizer = optim.SGD{momentum = 0.9}},
  {strict = false})
do
  local one <close> = open{optimizer = optim.Adam{lr = 0.5}, seed = 9}
  tap.ok(one:load_state(path "state", {strict = false, loader = data}), "other settings, where they may differ")
  tap.is(values(one), values(trainer), "the values are loaded")
  none, message, code = one:load_state(path "weights")
  tap.ok(none == nil and code == "format", "weights alone are no state")
  tap.has(message, 'expected a saved run ("memtide state 2"), found "pt"', "... which is told")

  -- a header that was changed, of the same length or not
  local function change(from, to, text)
    local header, rest = ("<s8"):unpack(text or content "state")
    return tensors(header:gsub(from, to), (text or content "state"):sub(rest))
  end
  local function state_refused(part, what, text)
    local unharmed = values(one)
    write("damaged", text)
    none, message, code = one:load_state(path "damaged", {strict = false, loader = data})
    local told = none == nil and code == "format" and message:find(part, 1, true)
    if not tap.ok(told and values(one) == unharmed, what) then
      print("# found", none, message, code)
    end
  end
  state_refused("the metadata of the saved run is damaged", "a place that is another one",
    change("epoch 0 batch 0", "epoch 0 batch 2"))
  state_refused("the metadata of the saved run is damaged", "no checksums",
    change('"crc32"', '"crc33"'))

  -- states of earlier versions have no checksums: they are taken, and looked at all the same
  local older = change("memtide state 2", "memtide state 1", change('"crc32":"[^"]*",', ""))
  write("older", older)
  tap.ok(one:load_state(path "older", {strict = false, loader = data}), "a state without checksums is taken")
  state_refused("epoch 0 batch x", "a damaged place is told", change("epoch 0 batch 0", "epoch 0 batch x", older))
  state_refused("epoch 9223372036854775807", "an epoch after which there is none",
    change("epoch 0 batch 0", "epoch 9223372036854775807 batch 0", older))
  state_refused("found 0x10", "updates that are no digits", change('"updates":"%d+"', '"updates":"0x10"', older))
  state_refused("found 1e3", "nor these", change('"updates":"%d+"', '"updates":"1e3"', older))

  -- every tensor, at its first and its last byte; every byte of the metadata's text
  local text = content "state"
  local header, data_at = ("<s8"):unpack(text)
  local flipped = 0
  local function flip(at)
    return text:sub(1, at - 1) .. string.char(text:byte(at) ~ 1) .. text:sub(at + 1)
  end
  local pattern = '"([^"]+)":{"dtype":"%w+","shape":%[[%d,]*%],"data_offsets":%[(%d+),(%d+)%]}'
  for name, first, last in header:gmatch(pattern) do
    for _, at in ipairs{data_at + tonumber(first), data_at + tonumber(last) - 1} do
      state_refused(('tensor "%s" is damaged: expected the checksum '):format(name), name .. " with a flipped bit",
        flip(at))
      flipped = flipped + 1
    end
  end
  tap.is(flipped, 2 * select(2, header:gsub('"dtype"', "")), "all tensors were tried")
  local from, to = header:find('"__metadata__":{.-}')
  local taken = 0
  for at = from, to do
    write("damaged", flip(8 + at))
    local good, found = pcall(one.load_state, one, path "damaged", {strict = false, loader = data})
    if good and found then taken = taken + 1 end
  end
  tap.is(taken, 0, "no flipped bit of the settings is taken")
end

-- ---- convolutions over (N, C, L): PyTorch's shapes, however they are stored
do
  local lines = nn.Sequential{nn.Conv1d(2, 4, 3), nn.ReLU(), nn.ConvTranspose1d(4, 3, 2, {stride = 2}), nn.Flatten()}
  local options = {model = lines, input = {2, 9}, batch = 2, classes = 42, loss = nn.CrossEntropyLoss()}
  local one <close> = assert(mt.trainer(options))
  assert(one:save(path "lines"))
  tap.has(content "lines", '"0.weight":{"dtype":"F32","shape":[4,2,3]', "a convolution's weight in the file")
  tap.has(content "lines", '"2.weight":{"dtype":"F32","shape":[4,3,2]', "and a transposed one's")
  options.seed = 2
  local two <close> = assert(mt.trainer(options))
  tap.ok(two:load(path "lines") and values(two) == values(one), "both are read again")
  two:write("0.weight", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24})
  two:write("0.bias", {0, 0, 0, 0})
  assert(two:save(path "lines"))
  local file = content "lines"
  local start, rising = 8 + ("<I8"):unpack(file) + 16, true -- after the header and the bias
  for k = 1, 24 do rising = rising and ("<f"):unpack(file, start + 4 * k - 3) == k end
  tap.ok(rising, "and written, in PyTorch's order")
end

-- ---- PyTorch
local python = os.getenv "PYTHON" or "/usr/bin/python3"
local found = io.popen(python .. " -c 'import torch; print(torch.__version__)' 2>&1"):read "a"
if found:find "^%d" then
  local peer = ("'%s' tests/peers/pytorch_weights.py '%s'"):format(python, folder)
  local numbers = {}
  for i = 1, 4 * 60 do numbers[i] = math.sin(i) end
  tap.ok(os.execute(peer), "PyTorch " .. found:match "%S+" .. " loads the file, and writes one")
  local eval = open{seed = 8}
  for _, name in ipairs{"f32", "f16", "bf16", "f64"} do
    assert(eval:load(path("torch_" .. name)))
    local outputs, worst = eval:predict(numbers), 0
    local i = 0
    for line in io.lines(path("torch_" .. name .. ".txt")) do
      i = i + 1
      worst = math.max(worst, math.abs(outputs[i] - tonumber(line)) / math.max(1, math.abs(tonumber(line))))
    end
    tap.ok(i == 12 and worst < 1e-5, ("its %s file gives its outputs (%.1g)"):format(name, worst))
  end
  assert(eval:load(path "weights"))
  local outputs, i = eval:predict(numbers), 0
  local worst = 0
  for line in io.lines(path "ours.txt") do
    i = i + 1
    worst = math.max(worst, math.abs(outputs[i] - tonumber(line)))
  end
  tap.ok(i == 12 and worst < 1e-5, ("our file gives ours there (%.1g)"):format(worst))
else
  tap.ok(true, ("PyTorch's files # SKIP no PyTorch in %s (PYTHON)"):format(python))
end

assert(os.execute(("rm -r '%s'"):format(folder)))
tap.done()
