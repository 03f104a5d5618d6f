-- The hand calculation counts in the types in which a precision stores things, and where the step's program has a
-- buffer of the same thing the two agree.
local tap = dofile "tests/tap.lua"
local cell = require "memtide.net.cell"
local hand = require "memtide.net.hand"
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function explained(more)
  local all = {name = "explain", input = {3, 32, 32}, classes = 10, batch = 64, loss = nn.CrossEntropyLoss(),
    model = nn.Sequential{nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 30 * 30, 10)},
    optimizer = optim.Adam{lr = 1e-3}}
  for key, value in pairs(more) do all[key] = value end
  local one = cell.compile(cell.build(mt.experiment(all):cells()[1]))
  local rows = hand.layers(one)
  return rows, hand.sum(one, rows), one
end

local parameters = 1792 + 576010
local image, output = 64 * 3 * 32 * 32, 64 * 64 * 30 * 30
-- by precision: bytes of a weight, of a number of the optimizer's state, of an output, of an input
for precision, bytes in pairs{fp32 = {4, 4, 4, 4}, tf32 = {4, 4, 4, 4},
  amp_bf16 = {4, 4, 2, 4}, amp_fp16 = {4, 4, 2, 4}, master_bf16 = {2, 4, 2, 2}, master_fp16 = {2, 4, 2, 2},
  bf16 = {2, 2, 2, 2}, fp16 = {2, 2, 2, 2}} do
  local weight, state, value, input = table.unpack(bytes)
  local rows, sum, one = explained{precision = precision}
  tap.is(rows[1].parameter_bytes, 1792 * weight, precision .. ": a layer's parameters")
  tap.is(rows[1].activation_bytes, output * value, precision .. ": its output")
  tap.is(rows[3].activation_bytes, output * value, precision .. ": one that is only seen otherwise")
  tap.is(sum.weights, parameters * weight, precision .. ": weights")
  tap.is(sum.gradients, parameters * weight, precision .. ": gradients")
  tap.is(sum.optimizer, 2 * parameters * state, precision .. ": the optimizer's state")
  tap.is(sum.activations, output * value, precision .. ": activations")
  tap.is(sum.input, image * input, precision .. ": the input")
  for _, row in ipairs(hand.compare(one, sum)) do
    tap.ok(row.hand == row.step or row.reason ~= "", ("%s: explain says why %s differs"):format(precision, row.name))
  end
end

-- ---- values that are parameters themselves are no outputs of a layer with parameters
do
  local rows, sum = explained{model = nn.Graph{fc = nn.Linear(32, 4), head = nn.Linear(4, 10), norm = nn.BatchNorm1d(4, {affine = false}),
    shift = nn.Parameter{4},
    scale = nn.Buffer{1, 2, 3, 4}, bias = nn.Parameter{10}, forward = function(self, x)
      return self.head(self.norm(self.fc(x:sum{dim = {1, 2}})) * self.scale + self.shift) + self.bias
    end}}
  local counted = {}
  for _, row in ipairs(rows) do if row.counted then counted[#counted + 1] = row.path end end
  tap.is(table.concat(counted, " "), "fc", "no parameter or buffer that a graph adds is, nor a norm that has statistics alone; the last layer is the head")
  tap.is(sum.activations, 64 * 4 * 4, "as activations")
end

-- ---- what stays fp32 in 16 bits is counted as that
local rows, sum = explained{precision = "fp16", model = nn.Sequential{nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8),
  nn.Flatten(), nn.Linear(8 * 30 * 30, 10)}}
tap.is(rows[2].parameter_bytes, 16 * 4, "normalisation keeps its parameters in fp32")
tap.is(rows[2].activation_bytes, 64 * 8 * 30 * 30 * 2, "and not its output")
tap.is(sum.weights, 2 * (224 + 72010) + 4 * 16, "which the sum knows")
tap.is(sum.optimizer, 2 * sum.weights, "and that of the states")
local eight = select(2, explained{precision = "fp16", optimizer = optim.Adam8bit{lr = 1e-3}})
local wide = select(2, explained{optimizer = optim.Adam8bit{lr = 1e-3}})
tap.ok(eight.optimizer <= wide.optimizer and eight.optimizer > parameters, "states of 8 bits have 8 bits in 16, too")
local tokens = explained{precision = "bf16", input = {16}, classes = 4,
  model = nn.Sequential{nn.Embedding(10, 6), nn.Flatten(), nn.Linear(96, 4)}}
tap.is(tokens[1].activation_bytes, 64 * 16 * 6 * 2, "what an embedding gives")

-- ---- whose outputs are counted
local function counted(counting, more)
  local _, _, one = explained(more)
  local out = {}
  for i, row in ipairs(hand.layers(one, counting)) do out[i] = row.counted and "*" or "." end
  return table.concat(out), one
end
local pooled = {model = nn.Sequential{nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(15),
  nn.Flatten(), nn.Linear(8 * 15 * 15, 10)}}
tap.is((counted(nil, pooled)), "*.....", "layers with parameters but the last")
tap.is((counted("article", pooled)), "*.....", "as the article counts")
tap.is((counted("table", pooled)), "*.*..*", "the table counts the last one, too, and poolings that make an image smaller")
local marks, one_of_table = counted(nil, {model = pooled.model, counting = "table"})
tap.is(marks, "*.*..*", "the script names a counting")
tap.is(hand.counting(one_of_table).name .. hand.counting(one_of_table, "outputs").name, "tableoutputs", "or the caller")
local table_sum = hand.sum(one_of_table, hand.layers(one_of_table))
tap.is(table_sum.activations, 4 * 64 * (8 * 30 * 30 + 8 * 15 * 15 + 10), "its outputs")
local rows_by_table, sum_by_table = explained{counting = "table"}
tap.is(sum_by_table.activations, rows_by_table[1].activation_bytes + rows_by_table[4].activation_bytes, "with the last one")
local gradients = {counting = "table", sliced_updates = false, model = nn.Sequential{nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Dropout(),
  nn.Linear(512, 512), nn.LayerNorm(512), nn.Linear(512, 10)}}
local _, sum_of_gradients, with_gradients = explained(gradients)
tap.is(hand.compare(with_gradients, sum_of_gradients)[5].reason:match "; (.*)$", "the table leaves them out", "and its name")
tap.raises("counting: expected one of outputs, article, table", "there is no other one", explained, {counting = "pools"})

-- ---- what is in the host's memory
local _, _, plain = explained{}
tap.is(#hand.host(plain), 0, "nothing waits in the host's memory")
local _, _, ahead = explained{prefetch = 2}
local rows_of_host = hand.host(ahead)
tap.is(#rows_of_host, 1, "batches that are read ahead do")
tap.is(rows_of_host[1].name .. " " .. (rows_of_host[1].bytes >= 2 * 64 * (3 * 32 * 32 + 1) * 4 and "whole" or "less"),
  "prefetched whole", "with all their bytes")
local _, _, moved = explained{offload = "all", model = nn.Sequential{nn.Conv2d(3, 64, 3), nn.Tanh(),
  nn.Conv2d(64, 64, 3), nn.Tanh(), nn.Conv2d(64, 64, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64 * 26 * 26, 10)}}
tap.is(hand.host(moved)[1].name, "offloaded", "and activations that are offloaded")
tap.is(hand.host(moved)[1].bytes, moved.prediction.host, "with theirs")

local LARGE = {optimizer = optim.PagedAdam{}, input = {400}, classes = 10, batch = 64,
  model = nn.Sequential{nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 10)}}
local _, paged_sum, paged = explained(LARGE)
tap.is(hand.host(paged)[1].name .. " " .. hand.host(paged)[1].bytes, "paged 1280000", "and a paged optimizer's states")
tap.is(#hand.host(paged), 1, "alone")
tap.is(paged_sum.optimizer, 8 * paged.network:parameters(), "which the hand calculation counts")
tap.has(hand.compare(paged, paged_sum)[3].reason, "1280000 bytes of states wait in the host's memory", "with the reason why the device has fewer")

-- ---- several inputs
local _, of_two = explained{input = {ids = {7, tokens = 11}, pixels = {3, 6, 6}}, classes = 5, batch = 4,
  model = nn.Graph{embed = nn.Embedding(11, 8), fc = nn.Linear(116, 5),
    forward = function(self, pixels, ids) return self.fc(nn.cat({pixels:flatten(1), self.embed(ids):mean(1)}, 1)) end}}
tap.is(of_two.input, 4 * 4 * (7 + 3 * 6 * 6), "all of them are counted")
tap.done()
