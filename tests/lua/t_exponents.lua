-- The exponents of gradients: what is counted of numbers that are known, that a cell's memory, losses and prediction are the
-- same with and without the count, and that files and pictures hold it.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local core = require "memtide.core"
local columns = require "memtide.results.columns"
local exponents = require "memtide.net.exponents"
local nn, optim = mt.nn, mt.optim
local MEMTIDE = os.getenv "MEMTIDE" or "build/memtide"

-- ---- bins

local function batch(list) return core.pack(list, false, "numbers") end
local function shown(bins)
  local out = {}
  for exponent, counts in pairs(bins) do
    out[#out + 1] = ("%s:%d/%d/%d"):format(exponent, counts.exact, counts.stored, counts.underflow)
  end
  table.sort(out)
  return table.concat(out, " ")
end

local INF, NAN = math.huge, 0 / 0
tap.is(shown(core.exponents(batch{0, 1, -1.5, 1.999, 2, 2.0 ^ -149, 2.0 ^ -24, -65504, INF, NAN, 0, 2.0 ^ -126},
    batch{0, 2, 0, 4, -INF, 0, 2.0 ^ -14, NAN, 1, 1, 8, 0})),
  "-126:1/0/1 -149:1/0/1 -14:0/1/0 -24:1/0/0 0:3/2/1 15:1/0/0 1:1/1/0 2:0/1/0 3:0/1/0 inf:1/1/0 nan:1/1/0 zero:2/4/0",
  "each number in its bin, and what is zero in the other batch")
tap.raises("the same size", "batches of two sizes", core.exponents, batch{1}, batch{1, 2})

-- ---- gradients that are known: y = w x with w = 0, loss = (y - t)^2, so that dw = -2 t x

local POWERS = {-2, -16, -18, -19, -21, -24}
local function weights_of(precision, grad_scaler, t)
  local trainer <close> = assert(mt.trainer{model = nn.Linear(#POWERS + 1, 1, {bias = false}), input = {#POWERS + 1}, batch = 1,
    loss = nn.MSELoss(), optimizer = optim.Adam{lr = 0.1}, precision = precision, grad_scaler = grad_scaler})
  local x = {}
  for i, power in ipairs(POWERS) do x[i] = 2.0 ^ power end
  x[#x + 1] = 0
  trainer:write("weight", function() return 0 end)
  local before = trainer:memory()
  local found = trainer:gradient_exponents(x, {t})
  local after = trainer:memory()
  tap.is(after.peak.bytes .. " " .. after.used, before.peak.bytes .. " " .. before.used, "the trainer's memory is as it was")
  tap.is(table.concat((trainer:read "weight")), ("0.0"):rep(#x), "and so are its parameters")
  return exponents.text(found), found
end

-- dw = 2^-6 x; 2^-25 is half of fp16's least number, and rounds to the even one, which is zero
local t = -2.0 ^ -7
local text, found = weights_of("master_fp16", false, t)
tap.is(text, "zero:1/4/0 -30:1/0/1 -27:1/0/1 -25:1/0/1 -24:1/1/0 -22:1/1/0 -8:1/1/0", "without a scale three are lost")
tap.is(found.underflow_share, 0.5, "of six that are not zero")
tap.is(found.loss_scale, nil, "there is no scale")
text, found = weights_of("master_fp16", 1024, t)
tap.is(text, "scale:1024 zero:1/1/0 -30:1/0/0 -27:1/0/0 -25:1/0/0 -24:1/0/0 -22:1/0/0 -20:0/1/0 -17:0/1/0 -15:0/1/0 -14:0/1/0 " ..
  "-12:0/1/0 -8:1/0/0 2:0/1/0", "with one all are kept, 2^10 times as large")
tap.is(found.underflow_share, 0.0, "so none underflows")
tap.is(weights_of("fp32", nil, t), "zero:1/1/0 -30:1/1/0 -27:1/1/0 -25:1/1/0 -24:1/1/0 -22:1/1/0 -8:1/1/0", "fp32 is itself")
tap.is(weights_of("amp_bf16", nil, t), "zero:1/1/0 -30:1/1/0 -27:1/1/0 -25:1/1/0 -24:1/1/0 -22:1/1/0 -8:1/1/0", "bf16 holds all")
tap.has(weights_of("master_fp16", 2.0 ^ 30, t), "inf:0/", "a scale that is too large overflows")
-- autocast: weights' gradients are fp32, those of activations fp16; here the output's is 2^-25
tap.is(weights_of("amp_fp16", false, t), "zero:1/1/0 -30:1/1/0 -27:1/1/0 -25:1/1/0 -24:1/1/0 -22:1/1/0 -8:1/1/0",
  "under autocast no weight's gradient is lost by itself")
text, found = weights_of("amp_fp16", false, -2.0 ^ -26)
tap.is(found.underflow_share, 1.0, "but all with the activation's: " .. text)
text, found = weights_of("amp_fp16", nil, 0)
tap.is(text, "scale:65536 zero:7/7/0", "gradients that are zero in fp32, too")
tap.is(found.underflow_share, nil, "are no underflow, and there is no share of nothing")

for _, line in ipairs{"scale:1024 zero:1/2/0 -3:4/5/1 inf:0/1/0", "zero:0/0/0"} do
  tap.is(exponents.text(exponents.read(line)), line, "a text is read as it was written: " .. line)
  tap.is(columns.wrong("histogram", line), nil, "and is right in a column")
end
tap.is(exponents.read "", nil, "an empty one has nothing")
for _, line in ipairs{"zero:1/2", "3", "big:1/1/1", "1:1/1/1,"} do tap.ok(columns.wrong("histogram", line), "not so " .. line) end

do
  local trainer <close> = assert(mt.trainer{model = nn.Linear(2, 1), input = {2}, loss = nn.MSELoss(), mode = "eval"})
  tap.raises('expected mode = "train"', "an evaluation has no gradients", trainer.gradient_exponents, trainer, {1, 2}, {1})
end

-- ---- cells

local folder = os.tmpname()
os.remove(folder)
assert(os.execute("mkdir " .. folder))
local function run(words)
  local program = MEMTIDE:find "^/" and MEMTIDE or "$OLDPWD/" .. MEMTIDE
  local pipe = assert(io.popen(("cd %s && %s %s 2>&1"):format(folder, program, words)))
  local out = pipe:read "a"
  return out, select(3, pipe:close())
end
local function read(name)
  local file = assert(io.open(folder .. "/" .. name, "rb"))
  local all = file:read "a"
  file:close()
  return all
end
local function rows_of(name)
  local lines, names, out = read(name):gmatch "[^\n]+", {}, {}
  for field in (lines() .. ","):gmatch "([^,]*)," do names[#names + 1] = field end
  for line in lines do
    local row, k = {}, 0
    for field in (line .. ","):gmatch "([^,]*)," do k = k + 1; row[names[k]] = field end
    out[#out + 1] = row
  end
  return out
end

local script = assert(io.open(folder .. "/net.lua", "w"))
script:write [[
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{name = "net", input = {3, 8, 8}, classes = 5, batch = 4, accumulate = 2, steps = 3, warmup = 1,
  model = nn.Sequential{nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(288, 5)},
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam(), schedule = optim.StepLR(2),
  sweep = {{"precision", {"fp32", "amp_fp16", "master_fp16"}},
    {"grad_scaler", {false, 1024, {init_scale = 2.0 ^ 60}}}, {"mode", {"train"}}}}
]]
script:close()
local out, status = run "run net.lua --csv plain.csv"
tap.is(status, 0, "it runs: " .. out:match "[^\n]*")
out, status = run "run net.lua --set gradient_exponents=true --csv net.csv"
tap.is(status, 0, "it runs: " .. out:match "[^\n]*")
tap.ok(not out:find "zero:", "the table leaves the counts out")
tap.ok(not run("show net.csv"):find "zero:", "so does show")
local plain, counted = rows_of "plain.csv", rows_of "net.csv"
tap.is(#counted, 9, "a row for each cell")
for i, row in ipairs(counted) do
  local what, without = row.case, plain[i]
  tap.is(row.status, "ok", what .. ": predicted is measured")
  tap.ok(row.cell ~= without.cell, "a cell of its own")
  for _, name in ipairs{"predicted_peak_bytes", "peak_bytes", "allocated_bytes", "loss_first", "loss_last", "loss_scale",
      "skipped_steps"} do
    tap.is(row[name], without[name], what .. ": the same " .. name)
  end
  local list = exponents.read(row.gradient_histogram)
  local exact, stored = 0, 0
  for _, bin in ipairs(list) do exact, stored = exact + bin.exact, stored + bin.stored end
  tap.is(exact .. " " .. stored, "1685 1685", what .. ": every element is counted once")
  tap.is(list.loss_scale, tonumber(row.loss_scale), "with the scale of the column")
  if row.precision == "fp32" then tap.is(row.underflow_share, "0", "nothing is lost in fp32") end
end
tap.is(plain[6].precision .. plain[6].skipped_steps, "amp_fp164", "a scale of 2^60 overflows in each of four steps")
tap.is(tonumber(plain[6].loss_scale), 2.0 ^ 56, "and is halved by each")
tap.has(run "verify net.csv net.lua --set gradient_exponents=true", "nothing found", "verify reads it")

out, status = run "plot gradients net.csv -o net.svg"
tap.is(status, 0, "it runs: " .. out:match "[^\n]*")
tap.has(read "net.svg", "loss scale 1024", "a panel says its scale")
tap.has(read "net.svg", "least subnormal", "and where fp16 ends")
out, status = run "report net.csv -o net.html"
tap.is(status, 0, "it runs: " .. out:match "[^\n]*")
tap.has(read "net.html", "Exponents of the gradients", "the report has the picture")
out, status = run "plot gradients plain.csv"
tap.ok(status ~= 0, "there is none without counts")
tap.has(out, "say gradient_exponents = true", "and the message says how to get them")
run "report plain.csv -o plain.html"
tap.ok(not read("plain.html"):find "Exponents of the gradients", "nor does the report")
tap.is(rows_of("net.csv")[1].gradient_exponents, "true", "the setting is a column")

-- an evaluation has no gradients
out, status = run "run net.lua --set gradient_exponents=true --set mode=eval --set precision=fp32 --set grad_scaler=false --csv eval.csv"
tap.is(status, 0, "it runs: " .. out:match "[^\n]*")
tap.is(rows_of("eval.csv")[1].gradient_histogram, "", "its columns are empty")

-- the step that counts fails: what was measured stays, and the row says why
script = assert(io.open(folder .. "/short.lua", "w"))
script:write [[
local mt = require "memtide"
local batches = 0
return mt.experiment{name = "short", input = {2}, target = {1}, batch = 1, steps = 3, warmup = 0, gradient_exponents = true,
  model = mt.nn.Linear(2, 1), loss = mt.nn.MSELoss(), data = function()
    return function()
      batches = batches + 1
      return batches <= 3 and {1, 2} or error "there are three batches", {1}
    end
  end}
]]
script:close()
out, status = run "run short.lua"
local row = rows_of("short.csv")[1]
tap.is(status .. row.status, "1error", "a cell whose gradients cannot be counted is an error: " .. out:match "[^\n]*")
tap.has(row.reason, "gradient_exponents: ", "that says where it happened")
tap.has(row.reason, "there are three batches", "and why")
tap.ok(row.peak_bytes == row.predicted_peak_bytes and row.peak_bytes ~= "", "its memory is in the row")

-- trainings have none
script = assert(io.open(folder .. "/two.lua", "w"))
script:write [[
local mt = require "memtide"
return mt.experiment{name = "two", gradient_exponents = true, batch = 2, steps = 1,
  trainings = {a = {model = mt.nn.Linear(2, 1), input = {2}, loss = mt.nn.MSELoss(), precision = "amp_fp16", grad_scaler = 8}},
  round = function(t) t.a:step({1, 2, 3, 4}, {1, 2}) end}
]]
script:close()
tap.has(run "run two.lua", '"gradient_exponents" is not offered with trainings', "trainings have none")
os.execute("rm -r " .. folder)

tap.done()
