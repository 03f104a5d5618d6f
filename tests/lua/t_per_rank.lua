-- Prediction per rank: the largest peak, the sum and the bytes sent are those of all ranks one by one; the model of links, by hand;
-- memtide fit --world; a large mesh in little time.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local folder = dofile "tests/lua/folder.lua"
local links = require "memtide.net.links"
local mt = require "memtide"
local row = require "memtide.sweep.row"
local scripts = require "memtide.sweep.script"
local nn = mt.nn

local run, write = folder.run, folder.write

local function small(more)
  local options = {name = "small", input = {37}, classes = 10, batch = 4, optimizer = mt.optim.Adam{lr = 1e-3}, loss = nn.CrossEntropyLoss(),
    model = nn.Sequential{nn.Linear(37, 150), nn.ReLU(), nn.Linear(150, 70), nn.ReLU(), nn.Linear(70, 10)}}
  for key, value in pairs(more or {}) do options[key] = value end
  return cell.build(mt.experiment(options):cells()[1])
end

-- ---- all ranks

-- By rank: what its own program needs and sends
local function each_rank(more)
  local peaks, sent = {}, {}
  for rank = 0, more.world - 1 do
    local one = small(more)
    one.rank = rank
    cell.compile(one)
    peaks[rank + 1], sent[rank + 1] = one.prediction.peak.bytes, cell.transfer(one)
    cell.release(one)
  end
  return peaks, sent
end

for _, more in ipairs{{world = 2, zero = 1}, {world = 5, zero = 3}, {world = 5, zero = 2, accumulate = 2}, {world = 6, zero = 0},
  {world = 6, zero = 3, mesh = {tensor = 2}}, {world = 7, zero = 3, precision = "master_bf16", allocator = "direct"}} do
  local one = cell.compile(small(more))
  local found, peaks, sent = row.predicted(one), each_rank(more)
  local most, sum, busiest = 1, 0, 0
  for k, bytes in ipairs(peaks) do
    if bytes > peaks[most] then most = k end
    sum, busiest = sum + bytes, math.max(busiest, sent[k])
  end
  local what = ("%d ranks, zero %d%s"):format(more.world, more.zero, more.mesh and ", tensor 2" or "")
  tap.is(found.predicted_peak_bytes, peaks[most], what .. ": the largest peak")
  tap.is(found.predicted_peak_rank, most - 1, what .. ": of the first rank that has it")
  tap.is(found.predicted_sum_bytes, sum, what .. ": the sum of all peaks")
  tap.is(found.predicted_sent_bytes, busiest, what .. ": what the busiest rank sends")
  tap.is(found.predicted_communication_ms, nil, what .. ": no time without links")
  local categories = 0
  for name, bytes in pairs(one.prediction.peak.categories) do categories = categories + bytes tap.is(found[name .. "_bytes"], bytes, what .. ": " .. name) end
  tap.is(categories, found.predicted_peak_bytes, what .. ": the categories are those of that rank")
  cell.release(one)
end
local alone = row.predicted(cell.compile(small()))
tap.is(alone.predicted_sum_bytes, nil, "one rank has no columns of several")
local limited = small{world = 5, zero = 3}
cell.compile(limited)
limited.memory = limited.prediction.peak.bytes - 1
tap.ok(not cell.compile(limited).prediction.fits, "what the largest rank lacks does not fit")

-- ---- links

local NVLINK, NDR = 450e9, 50e9
local function seconds(link, group) return links.seconds(assert(links.of(link)), group) end
local function near(a, b, what) tap.ok(math.abs(a - b) <= 1e-12 * math.abs(b), ("%s: %.9g, expected %.9g"):format(what, a, b)) end

local group = {ranks = 8, stride = 1, sent = 7e9, calls = 10, rounds = 20}
near(seconds("nvlink4", group), (10 * 8.4 + 20 * 7 * 3.4) / 1e6 + 7e9 / NVLINK, "one node")
near(seconds("nvlink4+infiniband-ndr", group), seconds("nvlink4", group), "the links between nodes do not matter to one node")
group.ranks = 16
near(seconds("nvlink4+infiniband-ndr", group), (10 * 8.4 + 20 * (14 * 3.4 + 9.6)) / 1e6 + 7e9 / (8 * NDR), "two nodes, eight adapters each")
near(seconds("nvlink4+ethernet10", group), (10 * 8.4 + 20 * (14 * 3.4 + 9.6)) / 1e6 + 7e9 / 1.25e9, "one adapter each")
near(seconds("pcie4+infiniband-ndr", group), (10 * 8.4 + 20 * (14 * 5.7 + 9.6)) / 1e6 + 7e9 / 31.5e9, "the slower of both")
group.ranks, group.stride = 4, 8
near(seconds("nvlink4+infiniband-ndr", group), (10 * 8.4 + 20 * 3 * 9.6) / 1e6 + 7e9 / NDR, "one rank of each node, eight such groups")

local own = write("own.json", '{"within": {"bandwidth": 1e9, "step_us": 2}, "between": "ethernet25", "ranks_per_node": 2, "call_us": 0}')
near(seconds(own, {ranks = 4, stride = 1, sent = 3e9, calls = 5, rounds = 1}), (2 * 2 + 9.6) / 1e6 + 3, "a file of one's own")
tap.is(links.of("device", "a processor"), nil, "nothing is known of such a device's links")
tap.is(links.of("device", "NVIDIA H200").within.name, "nvlink4", "an H200 has NVLink 4")
for _, case in ipairs{
  {"nvlnk4", 'did you mean "nvlink4"?'}, {"nvlink4+", nil}, {folder.path .. "/none.json", "cannot open"},
  {write("a.json", '{"within": {"bandwidth": "fast", "step_us": 1}}'), "within.bandwidth: expected a number of at least 1, found fast"},
  {write("b.json", '{"within": {"bandwidth": 1e9}}'), "within.step_us: expected a number of at least 0, found nil"},
  {write("c.json", '{"within": "nvlink4", "betwen": "nvlink4"}'), 'unknown field "betwen" (did you mean "between"?)'},
  {write("d.json", '{"between": "nvlink4"}'), "within: expected the name of a link or an object, found nil"},
} do
  if case[2] then tap.raises(case[2], case[1] .. " is refused", links.of, case[1]) end
end
tap.raises("link: expected some of", "a cell with such a link", function() small{world = 2, link = "wire"} end)
local timed = row.predicted(cell.compile(small{world = 4, zero = 1, link = "nvlink4"}))
tap.ok(timed.predicted_communication_ms > 0.08, "a row with links has the time")
for _, link in ipairs(links.list) do tap.ok(link.source ~= "" and link.bandwidth > 1e9, link.name .. " has a source") end

-- ---- fit

local script = write("small.lua", [[local mt = require "memtide"
return mt.experiment{name = "small", input = {37}, classes = 10, batch = 4, loss = mt.nn.CrossEntropyLoss(),
  model = mt.nn.Sequential{mt.nn.Linear(37, 150), mt.nn.ReLU(), mt.nn.Linear(150, 70), mt.nn.ReLU(), mt.nn.Linear(70, 10)}}]])
local text, status = run(("fit %s --world 1,2,5 --zero 0,3 --memory 200kB --json"):format(script))
tap.is(status, 0, "fit --world")
local count, least = 0, nil
for line in text:gmatch "[^\n]+" do
  local found = assert(core.json(line, "line"))
  count = count + 1
  local function bytes(batch) return cell.compile(small{world = found.world, zero = found.zero, batch = batch}).prediction.peak.bytes end
  local what = ("%d ranks, zero %d"):format(found.world, found.zero)
  if found.batch > 0 then
    least = math.min(least or found.world, found.world)
    tap.is(found.bytes, bytes(found.batch), what .. ": the bytes of the largest batch")
    tap.is(found.effective_batch, found.batch * found.world, what .. ": of all ranks")
  end
  tap.is(found.next_bytes, bytes(found.batch + 1), what .. ": and of the next")
  tap.ok(found.next_bytes > 200000 and (found.bytes or 0) <= 200000, what .. ": which does not fit")
end
tap.is(count, 6, "a line for each number and stage")
local shown = run(("fit %s --world 1,2,5 --zero 3 --memory 200kB"):format(script))
tap.has(shown, least and ("%d rank"):format(least) or "none of these", "the smallest number of ranks")
tap.has(run(("fit %s --world 2 --memory 20kB"):format(script)), "none of these", "or that none holds it")
for _, case in ipairs{
  {"--world 0", "--world: expected a whole number of at least 1"}, {"--world 2 --zero 4", "--zero: expected a whole number from 0 to 3"},
  {"--zero 1", "--zero: expected --world beside it"}, {"--world 2 --device pytorch:t4", "expected --memory in place"},
} do
  local said, ended = run(("fit %s %s"):format(script, case[1]))
  tap.has(said, case[2], case[1])
  tap.ok(ended ~= 0, case[1] .. ": exit status")
end
local config = write("tiny.json", [[{"model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 160,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}]])
local methods = run(("fit %s --method full,lora --world 1,2 --zero 0,3 --seq 32 --device pytorch:t4 --memory 2MiB --json"):format(config))
local _, lines = methods:gsub('"world":', "")
tap.is(lines, 2 * 2 * 2 * 2, "fit --method --world: a line for each method, number, stage and checkpoint")
tap.has(methods, '"zero":3', "which says its stage")

-- ---- one rank

local dumped = run(("dump %s --set world=5 --set zero=3 --set batch=4 --rank 4"):format(script))
tap.has(dumped, "rank=4/5", "dump --rank")
tap.has(dumped, "choose another with --rank", "which rank is shown is told")
tap.has(run(("explain %s --set world=5 --set zero=3 --set batch=4 --rank 5"):format(script)), "expected less than world = 5, found 5",
  "there is no such rank")
tap.has(run(("explain %s --set world=5 --set zero=3 --set batch=4 --rank 4"):format(script)), "rank 4's part of the states",
  "explain names the rank")

-- ---- a large mesh

local before = os.clock()
local large = scripts.load_experiment("experiments/llama-2-70b.json", {})
for name, value in pairs{world = 1000, zero = 3, batch = 1, precision = "master_bf16", checkpoint = "none"} do large:set(name, {value}) end
local one = cell.compile(cell.build(large:cells()[1]))
tap.ok(#one.alike > 1 and #one.alike < 10, ("1000 ranks of 70 billion parameters: %d kinds"):format(#one.alike))
local ranks = 0
for _, class in ipairs(one.alike) do ranks = ranks + class.count end
tap.is(ranks, 1000, "all ranks are in them")
tap.ok(os.clock() - before < 10, ("predicted in %.1f s of the processor's time"):format(os.clock() - before))

folder.remove()
tap.done()
