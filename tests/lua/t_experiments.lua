-- Every experiment of experiments/: each cell compiles, its plan reaches the lower bound,
-- and what articles say by hand is met.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local csv = require "memtide.results.csv"
local digits = require "memtide.digits"
local experiment = require "memtide.sweep.experiment"
local hand = require "memtide.net.hand"

package.path = "experiments/?.lua;" .. package.path -- a script finds others beside it

local folder = os.tmpname()
os.remove(folder)
digits.write(folder, 100, 50, 1)

local function read(name) return assert(loadfile("experiments/" .. name .. ".lua"))(folder) end

local function cells(name)
  local found = read(name)
  tap.ok(experiment.is(found), name .. " is an experiment")
  return found:cells()
end

local function prepared(one) return cell.compile(cell.build(one)) end

-- With an experiment as argument: by how many bytes the plan of each of its cells is above its lower bound. So plans for other
-- numbers of threads are looked at, too.
if ... then
  for _, one in ipairs(read(...):cells()) do
    local found = prepared(one).prediction
    io.write(found.peak.bytes - found.lower_bound, "\n")
  end
  return
end
for _, threads in ipairs{2, 16} do
  local pipe <close> = assert(io.popen(("OMP_NUM_THREADS=%d '%s' tests/lua/t_experiments.lua offload"):format(threads, os.getenv "MEMTIDE" or "build/memtide")))
  for _, one in ipairs(cells "offload") do
    tap.is(pipe:read "n", 0, ("offload, %s, %d threads: the plan reaches its lower bound"):format(one.name, threads))
  end
end

local LOOSE = {lora = 1e-5} -- of its lower bound, what a plan of thousands of buffers may be above it

for _, name in ipairs{"article", "batch_by_precision", "checkpoint_frontier", "distill", "freeze", "gan", "mnist_cnn", "networks",
  "llama", "lora", "offload", "optimizers", "peers", "vae", "vgg16_memory", "vit"} do
  for _, one in ipairs(cells(name)) do
    local found = prepared(one).prediction
    tap.near(found.peak.bytes, found.lower_bound, found.lower_bound * (LOOSE[name] or 0), ("%s, %s: the plan reaches its lower bound"):format(name,
      one.name))
    local sum = 0
    for _, bytes in pairs(found.peak.categories) do sum = sum + bytes end
    tap.is(sum, found.peak.bytes, ("%s, %s: the categories sum to the peak"):format(name, one.name))
  end
end

-- ---- the article's techniques in both frameworks
local of_memtide, of_pytorch = {}, nil
for _, one in ipairs(cells "pytorch") do
  local found, sum = prepared(one).prediction, 0
  for _, bytes in pairs(found.peak.categories) do sum = sum + bytes end
  tap.is(sum, found.peak.bytes, ("pytorch, %s, %s: the categories sum to the peak"):format(one.name, one.values.framework))
  if one.values.framework == "memtide" then of_memtide[one.values.case] = found.peak.bytes
  elseif one.values.pytorch ~= "" then
    tap.ok(found.max_memory_allocated < 0.7 * of_pytorch, "the reentrant form trains the last layer alone")
  else
    of_pytorch = found.max_memory_allocated
    tap.ok(of_pytorch > of_memtide[one.values.case], one.values.case .. ": PyTorch needs more")
  end
end

-- ---- the article's hand calculation, batch 64, fp32
local baseline = prepared(cells("article")[1])
local rows = hand.layers(baseline)
local sum = hand.sum(baseline, rows)
local parameters = {}
for _, row in ipairs(rows) do if row.parameters > 0 then parameters[#parameters + 1] = row end end
for i, expected in ipairs{{1792, 14745600}, {73856, 25690112}, {1003530, 2560}} do
  tap.is(parameters[i].parameters, expected[1], parameters[i].kind .. ": parameters")
  tap.is(parameters[i].activation_bytes, expected[2], parameters[i].kind .. ": bytes of its output")
end
tap.is(baseline.network:parameters(), 1079178, "parameters of the article's network")
for name, bytes in pairs{weights = 4316712, gradients = 4316712, optimizer = 8633424, activations = 14745600 + 25690112,
  input = 786432, total = 58488992} do
  tap.is(sum[name], bytes, "the article's " .. name)
end
local comparison = hand.compare(baseline, sum)
tap.is(comparison[#comparison].step, baseline.prediction.peak.bytes, "explain ends in the predicted peak")
for _, row in ipairs(comparison) do
  tap.ok(row.hand == row.step or row.reason ~= "", ("explain says why %s differs"):format(row.name))
end
-- How many copies a program has, and how many of them go on beside computing
local function copies_of(program)
  local copies, waits = 0, 0
  for _, op in ipairs(program:ops()) do
    copies = copies + (op.kind == "copy" and 1 or 0)
    waits = waits + (op.kind == "wait" and 1 or 0)
  end
  return copies, waits
end
for _, one in ipairs(cells "offload") do
  local copies, waits = copies_of(prepared(one).program)
  -- those at the peak stay in line: 8 of 148 where nothing is computed again
  tap.ok((copies > 0) == (one.name:find "on the host" ~= nil) and waits >= 0.9 * copies,
    ("offload, %s: %d of %d copies go on beside computing"):format(one.name, waits, copies))
end
-- under budgets, too, where what the first choice of copies wants finds no gap in the plan
local budgeted = cells("offload")[2]
local needs = prepared(budgeted).prediction.peak.bytes
for percent = 101, 121, 4 do
  budgeted.values.offload = needs * percent // 100
  local copies, waits = copies_of(prepared(budgeted).program)
  tap.ok(waits > 0.6 * copies, ("offload, %d %% of what all need: %d of %d copies go on beside computing"):format(percent, waits, copies))
end
local waiting = prepared(cells("offload")[2])
local of_activations = hand.compare(waiting, hand.sum(waiting, hand.layers(waiting)))[4]
local on_host = ("others wait in %d bytes of the host's memory"):format(waiting.prediction.host)
tap.ok(of_activations.reason:find(on_host, 1, true), "explain says what waits on the host", of_activations.reason)
tap.is(prepared(cells("vgg16_memory")[1]).network:parameters(), 138357544, "parameters of VGG16")

for _, one in ipairs(cells "optimizers") do
  local found = prepared(one)
  local by_hand = hand.sum(found, hand.layers(found)).optimizer
  local counts = found.prediction.peak.categories.optimizer - by_hand
  tap.ok(counts == 0 or counts == 16, one.name .. ": explain knows its states")
end

-- ---- what the article's techniques do to the predicted peak
-- in-place: the products save it by themselves; a checkpoint of each convolution keeps what it keeps without one; fp16 is emulated
-- on CPUs, by copies; smaller kernels leave larger images
local SAVES_NOTHING = {["in-place"] = true, ["checkpoint of both convolutions, as listed"] = true,
  ["fp16 and GradScaler, as listed"] = true, ["float16 throughout"] = true, ["kernels of 1 x 1"] = true}
local peak = {}
for _, one in ipairs(cells "article") do peak[one.name] = prepared(one).prediction.peak.bytes end
for name, bytes in pairs(peak) do
  if name ~= baseline.name and not SAVES_NOTHING[name] then
    tap.ok(bytes < peak[baseline.name], ("%s needs less than the baseline"):format(name))
  end
end
tap.is(peak["in-place"], peak[baseline.name], "in-place saves nothing")
tap.is(peak["checkpoint of both convolutions, as listed"], peak[baseline.name], "a checkpoint of each convolution saves nothing, and costs nothing")
tap.ok(peak["kernels of 1 x 1"] > peak[baseline.name], "smaller kernels need more")

-- ---- the same techniques as PyTorch ran them (experiments/peers/article_cpu.py)
local trained, known = {}, {}
csv.read("experiments/results/article-pytorch-cpu.csv", function(row) trained[row.case] = row.trained end)
for name in pairs(peak) do known[#known + 1] = trained[name] and name end
tap.is(#known, #cells "article", "PyTorch has a row for each of the article's cases")
tap.is(trained["checkpoint of both convolutions, as listed"], "conv1 conv2 fc", "a checkpoint that is not reentrant trains all layers")
tap.is(trained["checkpoint of both convolutions, as listed, reentrant"], "fc", "a reentrant one of the images trains no convolution")

-- ---- prediction is quick: a cell under 5 ms, settings and shapes that were not seen before included
local slowest, start = 0, os.clock()
for batch = 1, 100 do
  local before = os.clock()
  local again = experiment.new{name = "quick", model = baseline.values.model, input = {3, 32, 32}, classes = 10,
    batch = batch, loss = baseline.values.loss, optimizer = baseline.values.optimizer}
  local one = prepared(again:cells()[1])
  slowest = math.max(slowest, os.clock() - before)
  if not one.prediction.fits then tap.ok(false, "a prediction without a limit fits") end
end
local each = (os.clock() - start) / 100
tap.ok(each < 0.005, ("predicting a cell takes %.2f ms of CPU time (the slowest of 100: %.2f ms)")
  :format(each * 1e3, slowest * 1e3))

os.execute(("rm -r '%s'"):format(folder))
tap.done()
