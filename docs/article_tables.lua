-- The tables of docs/article.md, in Markdown: memtide docs/article_tables.lua TABLE. What is measured they read from
-- experiments/results/, what is predicted they predict.
local mt = require "memtide"
local cell = require "memtide.net.cell"
local claims = require "memtide.sweep.claims"
local columns = require "memtide.results.columns"
local csv = require "memtide.results.csv"
local row = require "memtide.sweep.row"
local rows = require "memtide.picture.rows"
local samples = require "memtide.results.samples"
local common = dofile "docs/tables.lua"
local nn, grouped, percent, put, script = mt.nn, common.grouped, common.percent, common.put, common.script

local RESULTS = "experiments/results/"
local MEMTIDE, PYTORCH, LISTINGS = RESULTS .. "article-cpu.csv", RESULTS .. "article-pytorch-cpu.csv", RESULTS .. "article-listings-pytorch.csv"
local FRONTIER = RESULTS .. "checkpoint_frontier-cpu.csv"
local BASE, WRAPPED = "baseline, batch 64", "checkpoint of both convolutions, as listed"

-- ---- what the tables are made of

local function ratio(a, b) return a and b and ("%.3f"):format(a / b) or "" end

-- A file of results: its points by case, in the order of `cases` if the script is given; and the sentence that says where and
-- when it was measured.
local function measured(path)
  local facts = rows.facts(path, print)
  local by_case, versions, first, last = {}, {}, nil, nil
  for _, point in ipairs(facts.points) do
    by_case[point.row.case] = point
    versions[point.row.version] = true
    local day = point.row.started_at:sub(1, 10)
    first, last = (not first or day < first) and day or first, (not last or day > last) and day or last
  end
  local names = {}
  for name in pairs(versions) do names[#names + 1] = name end
  table.sort(names)
  local one = facts.rows[1]
  local told = facts.samples and samples.told(facts.samples:disturbed(facts.rows))
  local text = ("Measured in `%s` by version %s on %s%s, %s."):format(path, table.concat(names, ", "), one.device_name,
    (one.driver or "") ~= "" and ", " .. one.driver or "", first == last and first or first .. " to " .. last)
  return by_case, text .. (told and (" %s."):format(told:gsub("^%l", string.upper)) or ""), facts
end

local function time_text(time)
  if not time then return "" end
  if not time.low then return ("%.1f"):format(time.median) end
  return ("%.1f [%.1f, %.1f]"):format(time.median, time.low, time.high)
end

-- PyTorch's rows of pytorch.lua; options: "", or "use_reentrant=true" of checkpoints
local function of_pytorch(options)
  return common.predicted(script "pytorch", nil, function(v) return v.framework == "pytorch" and v.pytorch == options end)
end

local function print_verdicts(verdicts) put(claims.lines(verdicts), {true, true, true, true, true}) end

-- ---- the tables

local tables = {}

-- What each technique saves and costs in memtide, measured
function tables.techniques()
  local points, where = measured(MEMTIDE)
  local base = points[BASE]
  local lines = {{"case", "peak bytes", "MiB", "memory", "step, ms", "time"}}
  for _, case in ipairs(common.predicted(script "article")) do
    local point = points[case.case]
    if point then
      local same = point == base
      lines[#lines + 1] = {case.case, grouped(point.memory), ("%.1f"):format(point.memory / 1048576),
        same and "" or percent(point.memory, base.memory), time_text(point.time),
        same and "" or point.time and percent(point.time.median, base.time.median) or point.status}
    end
  end
  put(lines)
  print("\n" .. where)
end

-- The verdicts on the claims of article.lua, by the measured rows
function tables.verdicts()
  local _, where, facts = measured(MEMTIDE)
  local judge = claims.judge(script "article")
  for _, texts in ipairs(facts.rows) do
    local values = {}
    for name, text in pairs(texts) do values[name] = columns.value(name, text) end
    judge:row(values)
  end
  print_verdicts(judge:verdicts(facts.samples))
  print("\n" .. where)
end

-- What the articles claim of each technique: against the baseline's memory
local CLAIMED = {["batch 32"] = "less", ["half the channels"] = "less", ["mixed precision"] = "about 0.5",
  ["fp16 and GradScaler, as listed"] = "about 0.5", ["float16 throughout"] = "about 0.5",
  ["accumulation 16 x 4"] = "less", ["evaluation, no gradients"] = "less", ["checkpointing"] = "less",
  [WRAPPED] = "less", ["in-place"] = "less", ["half the image's side"] = "less", ["pooling after each convolution"] = "less",
  ["one convolution"] = "less", ["kernels of 1 x 1"] = "less"}

-- Each technique in memtide and in PyTorch: peaks as parts of that of the same baseline
function tables.side_by_side()
  local ours, where = measured(MEMTIDE)
  local theirs, theirs_where = measured(PYTORCH)
  local planned, reentrant = of_pytorch "", WRAPPED .. ", reentrant"
  local again = of_pytorch("use_reentrant=true")[WRAPPED]
  local lines = {{"technique", "claimed", "memtide", "PyTorch on an A100, predicted", "PyTorch on the CPU, measured", "what its step trains"}}
  local function add(case, peak)
    local mine, measured_one = ours[case], theirs[case]
    lines[#lines + 1] = {case, CLAIMED[case] or "", mine and ratio(mine.memory, ours[BASE].memory) or "",
      ratio(peak, planned[BASE].predicted_peak_bytes),
      measured_one and ratio(measured_one.memory, theirs[BASE].memory) or "", measured_one and measured_one.row.trained or ""}
  end
  for _, case in ipairs(planned) do
    add(case.case, case.predicted_peak_bytes)
    if case.case == WRAPPED then add(reentrant, again.predicted_peak_bytes) end
  end
  put(lines, {true, true, [6] = true})
  print(("\nThe baselines: memtide %s bytes, PyTorch predicted %s, measured %s.\n\n%s\n\n%s"):format(
    grouped(ours[BASE].memory), grouped(planned[BASE].predicted_peak_bytes), grouped(theirs[BASE].memory), where, theirs_where))
end

-- VGG16 at 224 x 224 in fp32, without checkpoints: its memory at the peak
function tables.vgg16()
  local lines = {{"step of", "batch", "peak bytes", "weights", "gradients", "optimizer", "activations", "their gradients", "both over activations"}}
  for _, framework in ipairs{"memtide", "pytorch"} do
    for _, found in ipairs(common.predicted(script "vgg16_memory", {framework = framework, precision = "fp32", checkpoint = "none"})) do
      lines[#lines + 1] = {framework == "pytorch" and "PyTorch" or framework, tostring(found.batch), grouped(found.predicted_peak_bytes),
        grouped(found.weights_bytes), grouped(found.gradients_bytes), grouped(found.optimizer_bytes),
        grouped(found.activations_bytes), grouped(found.activation_gradients_bytes),
        ratio(found.activations_bytes + found.activation_gradients_bytes, found.activations_bytes)}
    end
  end
  put(lines)
end

-- The verdicts on the claims of a script, by prediction alone
local function predicted_verdicts(name)
  local experiment = script(name)
  local judge = claims.judge(experiment)
  for _, one in ipairs(experiment:cells()) do
    local found = row.predicted(cell.compile(cell.build(one)))
    found.case, found.cell = one.name, one.name
    judge:row(found)
  end
  print_verdicts(judge:verdicts())
end

function tables.vgg16_verdicts() predicted_verdicts "vgg16_memory" end
function tables.pytorch_verdicts() predicted_verdicts "pytorch" end

-- Memory against time. A smaller budget computes more again, so that its step takes no less time: "quicker than" names the
-- larger budgets whose whole interval lies above this one's.
function tables.frontier()
  local points, where = measured(FRONTIER)
  local lines, full, before, broken = {{"case", "peak bytes", "memory", "step, ms", "time", "quicker than"}}, nil, nil, 0
  local unknown = 0 -- rows without an interval
  for _, case in ipairs(common.predicted(script "checkpoint_frontier")) do
    local point = points[case.case]
    if point then
      local network, budget = case.case:match "^(.*), (%d+ %%)$"
      if budget == "100 %" then full, before = point, {} end
      local faster = {}
      for _, other in ipairs(before) do
        if point.time.high and other.time.low and point.time.high < other.time.low then faster[#faster + 1] = other.budget end
      end
      if faster[1] then broken = broken + 1 end
      if not point.time.high then unknown = unknown + 1 end
      before[#before + 1] = {time = point.time, budget = budget}
      lines[#lines + 1] = {("%s, %s"):format(network, budget), grouped(point.memory),
        point == full and "" or percent(point.memory, full.memory), time_text(point.time),
        point == full and "" or percent(point.time.median, full.time.median), table.concat(faster, ", ")}
    end
  end
  put(lines)
  local monotone = "Within their 95 % intervals, no smaller budget is quicker than a larger one."
  if unknown > 0 then monotone = ("%d rows have too few times for a 95 %% interval, and say nothing of this."):format(unknown)
  elseif broken > 0 then
    monotone = ("Not monotone within their 95 %% intervals: %d budgets, with what they are quicker than."):format(broken)
  end
  print(("\n%s\n\n%s"):format(monotone, where))
end

-- ---- beside PyTorch, by experiments/peers/pytorch_cpu.py

local function beside(file)
  local lines = {{"network", "precision", "memtide, ms", "PyTorch, ms", "ratio", "of the roof", "memtide, peak bytes", "PyTorch, peak bytes", "ratio", "load"}}
  local version, threads
  csv.read(RESULTS .. file, function(v)
    lines[#lines + 1] = {v.network, v.precision, ("%.1f"):format(v.memtide_step_ms), ("%.1f"):format(v.pytorch_step_ms),
      ("%.2f"):format(v.time_ratio), ("%.0f %%"):format(100 * v.roof_share),
      grouped(v.memtide_peak_bytes), grouped(v.pytorch_peak_bytes), ("%.2f"):format(v.peak_ratio), v.load}
    version, threads = v.pytorch, v.threads
  end)
  put(lines, {true, true})
  if not threads then error(RESULTS .. file .. ": there are no rows", 0) end
  print(("\n%s threads on both sides, %s, in `%s`."):format(threads, version, RESULTS .. file))
end

function tables.bench() beside "bench-cpu.csv" end
function tables.bench_avx2() beside "bench-avx2.csv" end

-- ---- listings that contradict themselves

-- What PyTorch said: results by name
local function said_by_pytorch()
  local out = {}
  csv.read(LISTINGS, function(values) out[values.name] = values.result end)
  return out
end

-- The message of an experiment that is refused
local function refusal(changes)
  local options = {name = "listing", input = {3, 32, 32}, classes = 10, batch = 64, loss = nn.CrossEntropyLoss(),
    optimizer = mt.optim.Adam{lr = 1e-3}}
  for key, value in pairs(changes) do options[key] = value end
  local good, problem = pcall(function() cell.compile(cell.build(mt.experiment(options):cells()[1])) end)
  return good and "no error" or tostring(problem):gsub("^%S+%.lua:%d+: ", ""):gsub(" %(%S+%.lua:%d+%)", "")
end

-- The sizes of the batches of 256 samples in batches of 100
local function batches(drop_last)
  local data, sizes = mt.data.random{count = 256, shape = {1}, classes = 2, seed = 1}, {}
  for _, _, count in mt.data.loader{data, batch = 100, drop_last = drop_last}:epoch() do sizes[#sizes + 1] = count end
  return table.concat(sizes, " ")
end

local function mib(bytes) return ("%.2f MiB"):format(bytes / 1048576) end

-- What the articles print, and what their listing gives
function tables.listings()
  local found, ours = said_by_pytorch(), common.predicted(script "article")
  local pytorch = of_pytorch ""
  local theirs, small_batch = pytorch[BASE], pytorch["batch 32"]
  local conv = function(inner, outer) return {nn.Conv2d(3, inner, 3), nn.ReLU(), nn.Conv2d(inner, outer, 3), nn.ReLU(), nn.Flatten()} end
  local wide = conv(64, 128)
  wide[#wide + 1] = nn.Linear(25088, 10)
  local small = nn.Sequential{nn.Conv2d(1, 16, 3, {padding = 1}), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Reshape{-1, 16 * 7 * 7},
    nn.Linear(16 * 7 * 7, 10)}
  local function peak(case) return grouped(ours[case].predicted_peak_bytes) end
  put({{"what is printed", "what the listing gives in memtide", "in PyTorch"},
    {"`in_features=25088`", refusal{model = nn.Sequential(wide)}, found.in_features},
    {"`view(-1, 16*7*7)`", refusal{model = small, input = {1, 28, 28}, batch = 32}, found.view},
    {"4.12 KB of parameters", ("%s bytes, %s"):format(grouped(ours[BASE].weights_bytes), mib(ours[BASE].weights_bytes)),
      ("%s bytes"):format(grouped(theirs.weights_bytes))},
    {"54.12 MB allocated after an epoch", mib(ours[BASE].weights_bytes + ours[BASE].optimizer_bytes),
      mib(tonumber(found.allocated))},
    {"54.12 MB reserved", ("at least the peak, %s"):format(mib(ours[BASE].predicted_peak_bytes)),
      ("at least the peak, %s"):format(mib(theirs.max_memory_allocated))},
    {"a larger batch lowers memory", ("32 samples: %s bytes; 64: %s"):format(peak "batch 32", peak(BASE)),
      ("%s; %s"):format(grouped(small_batch.max_memory_allocated), grouped(theirs.max_memory_allocated))},
    {"`drop_last=True` keeps the last batch", ("256 samples in batches of %s; with it of %s"):format(batches(false), batches(true)),
      ("of %s; with it of %s"):format(found.batches, found["batches with drop_last"])},
    {"`apex` beside autocast", 'one setting, `precision = "amp_fp16"`', found.apex}}, {true, true, true})
  print(("\nPyTorch's column: `experiments/peers/article_listings.py`, %s, in `%s`."):format(found.version, LISTINGS))
end

-- The loss of the article's network over one batch: the first steps
function tables.losses()
  local lines = {{"", "first epoch", "second epoch"}, {"printed", "2.3979", "2.3642"}}
  local line = {"memtide"}
  local trainer <close> = mt.trainer{model = mt.models.SimpleConvNet(), input = {3, 32, 32}, classes = 10, batch = 64,
    loss = nn.CrossEntropyLoss(), optimizer = mt.optim.Adam{lr = 1e-3}}
  local loader = mt.data.loader{mt.data.random{count = 64, shape = {3, 32, 32}, classes = 10, seed = 1}, batch = 64}
  for _ = 1, 2 do
    for x, y in loader:epoch() do line[#line + 1] = ("%.4f"):format(trainer:step(x, y)) end
  end
  lines[3], lines[4] = line, {"PyTorch"}
  for loss in said_by_pytorch().losses:gmatch "%S+" do table.insert(lines[4], loss) end
  put(lines)
end

common.run(tables, ...)
