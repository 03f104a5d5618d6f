-- What a graph's forward says of values beside calling layers: arithmetic, joins, and the same elements in other
-- dimensions; each computed for an input whose elements are 0, 1, 2, ... in PyTorch's order.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local nn = mt.nn

local function graph(forward) return nn.Graph{forward = function(_, x) return forward(x) end} end

-- The mask that nn.ge(...), nn.gt(...) ... make of the numbers of rows and columns
local function compared(name, rows, columns)
  return nn[name](nn.arange(rows):unsqueeze(1), nn.arange(columns):unsqueeze(0))
end

-- The buckets of relative positions of x (1, n) as numbers (n, n)
local function buckets(x, n, count, most, bidirectional)
  local numbers = {}
  for i = 1, count do numbers[i] = {i - 1} end
  local index = nn.relative_position_buckets(x, count, most, {bidirectional = bidirectional})
  return nn.tensor(numbers)[index]:view(n, n) + 0 * x
end

-- What forward gives: "2,3: 1 2 3 4 5 6"
local function outcome(input, forward)
  local x, count = {}, 1
  for _, d in ipairs(input) do count = count * d end
  for i = 1, count do x[i] = i - 1 end
  local run = assert(mt.joint{batch = input[1], programs = {
    {name = "values", model = graph(forward), input = {table.unpack(input, 2)}}}})
  local values, shape = assert(run:outputs("values", x))
  run:close()
  for i, v in ipairs(values) do values[i] = ("%.6g"):format(v) end
  return table.concat(shape, ",") .. ": " .. table.concat(values, " ")
end

-- {input's shape, forward, what comes of it}
for _, row in ipairs{
  {{1, 3}, function(x) return x + 2 end, "1,3: 2 3 4", "x + 2"},
  {{1, 3}, function(x) return 2 + x end, "1,3: 2 3 4", "2 + x"},
  {{1, 3}, function(x) return x - 2 end, "1,3: -2 -1 0", "x - 2"},
  {{1, 3}, function(x) return 2 - x end, "1,3: 2 1 0", "2 - x"},
  {{1, 3}, function(x) return 2 * x * 3 end, "1,3: 0 6 12", "2 * x * 3"},
  {{1, 3}, function(x) return x / 4 end, "1,3: 0 0.25 0.5", "x / 4"},
  {{1, 3}, function(x) return -x end, "1,3: 0 -1 -2", "-x"},
  {{1, 3}, function(x) return x * x - x end, "1,3: 0 0 2", "x * x - x"},
  {{1, 3}, function(x) return x ^ 2 + x:pow(2) end, "1,3: 0 2 8", "x^2, pow"},
  {{1, 3}, function(x) return nn.abs(x - 1) + nn.exp(x * 0) end, "1,3: 2 1 2", "abs, exp"},
  {{1, 3}, function(x) return x:clamp(0.5, 1.5) end, "1,3: 0.5 1 1.5", "clamp"},
  {{1, 3}, function(x) return x:clamp{max = 1} end, "1,3: 0 1 1", "clamp from above"},
  {{1, 2, 2}, function(x) return nn.normalize(x, {dim = -1}) end, "1,2,2: 0 1 0.5547 0.83205", "normalize"},
  {{2, 2}, function(x) return nn.normalize(x * 0) end, "2,2: 0 0 0 0", "normalize zeros"},
  {{1, 5, 2}, function(x) return x:norm(2, 1) end, "1,2: 10.9545 12.8452", "norm"},
  {{1, 6}, function(x) return x:narrow(1, 1, 2, {step = 2}) end, "1,2: 1 3", "narrow with a step"},
  {{1, 2, 4}, function(x) return x:narrow(2, 0, 2, {step = 2}) end, "1,2,2: 0 2 4 6", "... of the last dimension"},
  {{1, 4, 2, 2}, function(x) return x:narrow(1, 3, 1, {step = 2}) end, "1,1,2,2: 12 13 14 15", "... of an image"},
  {{3, 2}, function(x) return x[nn.tensor({{2, 0}, {0, 1}}, {dtype = "int64"})] end, "2,2,2: 4 5 0 1 0 1 2 3", "rows"},
  {{1, 7}, function(x) return buckets(x, 7, 8, 6, true) end, -- transformers' _relative_position_bucket(j - i, True, 8, 6)
    "7,7: 0 5 6 6 7 7 7 1 0 5 6 6 7 7 2 1 0 5 6 6 7 2 2 1 0 5 6 6 3 2 2 1 0 5 6 3 3 2 2 1 0 5 3 3 3 2 2 1 0", "buckets"},
  {{1, 7}, function(x) return buckets(x, 7, 4, 5, false) end, -- ... (j - i, False, 4, 5)
    "7,7: 0 0 0 0 0 0 0 1 0 0 0 0 0 0 2 1 0 0 0 0 0 2 2 1 0 0 0 0 3 2 2 1 0 0 0 3 3 2 2 1 0 0 3 3 3 2 2 1 0", "... of the past"},
  {{1, 2, 2}, function(x) return x + nn.tensor{{0.5, -1}} end, "1,2,2: 0.5 0 2.5 2", "a tensor of numbers"},
  {{1, 2}, function(x) return x * nn.tensor({1, 2, 3, 4}, {shape = {2, 2}}) end, "2,2: 0 2 0 4", "... with a shape"},
  {{1, 2}, function(x) return nn.linear(x, nn.tensor{{1, 2}, {3, 4}, {5, 6}}, nn.tensor{1, 0, 0}) end, "1,3: 3 4 6",
    "linear of values"},
  {{1, 2}, function(x) return nn.cat({x, x}, {dim = 1}) end, "1,4: 0 1 0 1", "cat by name"},
  {{2, 2, 2, 1}, function(x) return x:flatten(2) end, "2,2,2: 0 1 2 3 4 5 6 7", "flatten(2)"},
  {{1, 2, 1, 2}, function(x) return x:flatten(2):transpose(1, 2) end, "1,2,2: 0 2 1 3", "pixels as a sequence"},
  {{1, 2, 2, 2}, function(x) return x:flatten(1, 2):transpose(1, 2) end, "1,2,4: 0 2 4 6 1 3 5 7", "flatten(1, 2)"},
  {{1, 2, 2}, function(x) return x:permute(0, 2, 1) end, "1,2,2: 0 2 1 3", "permute"},
  {{1, 2, 2}, function(x) return x:permute{0, 2, 1} end, "1,2,2: 0 2 1 3", "permute of a list"},
  {{1, 3}, function(x) return 6 / (x + 1) end, "1,3: 6 3 2", "6 / x"},
  {{1, 3}, function(x) return (x + 2) / (x + 1) - x end, "1,3: 2 0.5 -0.666667", "x / y - z"},
  {{1, 3}, function(x) return (x ^ 3 + 1):sqrt():rsqrt() end, "1,3: 1 0.840896 0.57735", "x^3, sqrt, rsqrt"},
  {{1, 2, 2}, function(x) return x - x:amax(-1, true) end, "1,2,2: -1 0 -1 0", "less its largest"},
  {{1, 2, 2}, function(x) return x:sum({1, 2}, true) + x:max(2) end, "1,1,2: 7 9", "sum, max, broadcast to more"},
  {{2, 2}, function(x) return x / x:sum{dim = 0, keepdim = true} end, "2,2: 0 0.25 1 0.75", "by the batch's sum"},
  {{2, 1, 2}, function(x) return x:mean(-1):neg() end, "2,1: -0.5 -2.5", "mean of the last"},
  {{1, 2, 2}, function(x) return x:masked_fill(nn.tril(2), -math.huge) end, "1,2,2: -inf 1 -inf -inf", "masked_fill"},
  {{1, 2, 3}, function(x) return nn.where(~nn.triu(2, 3, 1), x, -x) end, "1,2,3: 0 -1 -2 3 4 -5", "where"},
  {{1, 2, 2}, function(x) return nn.where(nn.tril(2), x + 1, 7) end, "1,2,2: 1 7 3 4", "where of a number"},
  {{1, 2, 2}, function(x) return nn.where(nn.tril(2), 7, x + 1) end, "1,2,2: 7 2 7 7", "where of a number first"},
  {{1, 2, 3}, function(x) return nn.where(compared("ge", 2, 3), x, -1) end, "1,2,3: 0 -1 -1 3 4 -1", "ge of positions"},
  {{1, 2, 3}, function(x) return nn.where(compared("gt", 2, 3), x, -1) end, "1,2,3: -1 -1 -1 3 -1 -1", "gt of positions"},
  {{1, 2, 3}, function(x) return nn.where(compared("le", 2, 3), x, -x) end, "1,2,3: 0 1 2 -3 4 5", "le of positions"},
  {{1, 2, 3}, function(x) return x:masked_fill(compared("lt", 2, 3), 9) end, "1,2,3: 0 9 9 3 4 9", "lt of positions"},
  {{1, 2, 2, 2}, function(x) return x:permute(0, 2, 3, 1) end, "1,2,2,2: 0 4 1 5 2 6 3 7", "permute of an image"},
  {{2, 1, 3}, function(x) return x:transpose(0, 1) end, "1,2,3: 0 1 2 3 4 5", "transpose with the batch"},
  {{1, 2, 2}, function(x) return x:matmul(x) end, "1,2,2: 2 3 6 11", "matmul"},
  {{1, 2, 2}, function(x) return nn.bmm(x, x:transpose(1, 2)) end, "1,2,2: 1 3 3 13", "bmm, transposed"},
  {{1, 2, 2}, function(x) return nn.einsum("bij, bjk -> bki", x, x) end, "1,2,2: 2 6 3 11", "einsum"},
  {{1, 2, 2}, function(x) return nn.einsum("b i j, b k j -> b i k", x, x) end, "1,2,2: 1 3 3 13", "with spaces"},
  {{1, 2, 2}, function(x) return nn.einsum("... query d, ... key d -> ... key query", x, x * 2) end,
    "1,2,2: 2 6 6 26", "with words"},
  {{1, 2, 2, 2}, function(x) return nn.einsum("bchw,bchw->bhw", x, x) end, "1,2,2: 16 26 40 58", "of images"},
  {{1, 4}, function(x) return x:view(1, 2, 2):matmul(x:view(2, 2)) end, "1,2,2: 2 3 6 11", "one matrix for all"},
  {{1, 8}, function(x) return x:view(x:size(0), 2, 2, 2):select(2, 1) end, "1,2,2: 2 3 6 7", "view as an image"},
  {{2, 6}, function(x) return x:reshape(-1, 3):narrow(1, 0, 1) end, "4,1: 0 3 6 9", "reshape over the batch"},
  {{1, 2, 3}, function(x) return x:view{x:size(0), x:size(1), 3, -1}:squeeze(3) end, "1,2,3: 0 1 2 3 4 5", "sizes"},
  {{1, 2, 2, 2}, function(x) return x:view(x:size(0), 4, 2):view(1, 2, 4) end, "1,2,4: 0 1 2 3 4 5 6 7", "two views"},
  {{1, 2, 2, 2}, function(x) return x:view(1, 4, 1, 2) end, "1,4,1,2: 0 1 2 3 4 5 6 7", "an image as another"},
  {{1, 4, 1, 2}, function(x) return x:pixel_shuffle(2) end, "1,1,2,4: 0 2 1 3 4 6 5 7", "pixel_shuffle"},
  {{1, 1, 2, 2}, function(x) return x:pixel_unshuffle(2) end, "1,4,1,1: 0 1 2 3", "pixel_unshuffle"},
  {{1, 1, 1, 2}, function(x) return (x + 1):zero_pad2d{1, 0, 0, 1} end, "1,1,2,3: 0 1 2 0 0 0", "zero_pad2d"},
  {{1, 2, 2}, function(x) return (x + 1):zero_pad1d(1) end, "1,2,4: 0 1 2 0 0 3 4 0", "zero_pad1d"},
  {{1, 4, 1, 1}, function(x) return x:channel_shuffle(2) end, "1,4,1,1: 0 2 1 3", "channel_shuffle"},
  {{1, 1, 4}, function(x) return x:adaptive_max_pool1d(2) end, "1,1,2: 1 3", "adaptive_max_pool1d"},
  {{1, 2, 1, 2}, function(x) return (x + 1):squeeze(2) end, "1,2,2: 1 2 3 4", "a line of an image"},
  {{1, 2, 3}, function(x) return x:mean(1) end, "1,3: 1.5 2.5 3.5", "the mean of steps"},
  {{1, 2, 3}, function(x) return x:mean(1, true) end, "1,1,3: 1.5 2.5 3.5", "keepdim"},
  {{1, 2, 3}, function(x) return x:mean{dim = 2} end, "1,2: 1 4", "the mean of places"},
  {{1, 2, 3}, function(x) return nn.mean(x, 2, true) end, "1,2,1: 1 4", "the same with keepdim"},
  {{1, 2, 1, 2}, function(x) return x:mean({2, 3}) end, "1,2: 0.5 2.5", "the mean of pixels"},
  {{1, 2, 1, 2}, function(x) return x:mean{dim = {-2, -1}, keepdim = true} end, "1,2,1,1: 0.5 2.5", "by name"},
  {{1, 5}, function(x) return x:roll(2, 1) end, "1,5: 3 4 0 1 2", "roll"},
  {{1, 5}, function(x) return nn.roll(x, -6, -1) end, "1,5: 1 2 3 4 0", "roll back, more than round"},
  {{1, 5}, function(x) return x:roll(5, 1) + 0 end, "1,5: 0 1 2 3 4", "roll once round"},
  {{2, 2, 3}, function(x) return x:roll({1, -1}, {1, 2}) end, "2,2,3: 4 5 3 1 2 0 10 11 9 7 8 6", "roll of two"},
  {{1, 2, 2, 2}, function(x) return x:roll{shifts = 1, dims = 3} end, "1,2,2,2: 1 0 3 2 5 4 7 6", "roll by name"},
  {{1, 2, 2, 2}, function(x) return x:roll(1, 1):flatten():roll(1, 1) end, "1,8: 3 4 5 6 7 0 1 2", "of an image, flat"},
} do tap.is(outcome(row[1], row[2]), row[3], row[4]) end

-- PyTorch's modules of functions and schedules are at hand under their names
tap.ok(nn.functional.relu == nn.relu and nn.interpolate == nn.upsample, "nn.functional")
tap.ok(mt.optim.lr_scheduler.StepLR == mt.optim.StepLR, "optim.lr_scheduler")
tap.raises("nn.EmbeddingBag does not exist: nn.Embedding, and x:mean(1) of what it gives", "what takes its place",
  function() return nn.EmbeddingBag end)
tap.raises('nn.rellu does not exist (did you mean "ReLU"?)', "none under another name",
  function() return nn.functional.rellu end)

-- The listing of docs/from-pytorch.md, as it stands there
local page = assert(io.open "docs/from-pytorch.md"):read "a"
local function Block(c) return nn.Sequential(nn.Conv2d(c, c, 3, {padding = 1}), nn.ReLU()) end
local Net = assert(load("local nn, F, Block = ... " .. page:match "```lua\n(.-)```" .. " return Net"))(nn, nn, Block)
local run = assert(mt.joint{batch = 2, programs = {{name = "net", model = Net(7), input = {3, 8, 8}}}})
tap.is(#run:outputs("net", string.rep("\0", 2 * 3 * 8 * 8 * 4)), 14, "the listing of docs/from-pytorch.md runs")
run:close()

for _, row in ipairs{
  {"+ stands between two values, or a value and a number, found a value and a string", function(x) return x + "1" end},
  {"/ stands between two values, or a value and a number, found a string and a value", function(x) return "a" / x end},
  {"masked_fill: expected nn.tril(...), nn.triu(...) or what nn.ge(...) gives, found a boolean",
    function(x) return x:masked_fill(true, 0) end},
  {"ge: expected nn.arange(rows):unsqueeze(1) and nn.arange(columns):unsqueeze(0)",
    function(x) return nn.where(nn.ge(nn.arange(2), nn.arange(2)), x, 0) end},
  {"sum: expected a dimension, or a list of them", function(x) return x:sum() end},
  {"roll: expected a dimension for each shift, found 1 for 2", function(x) return x:roll({1, 2}, 1) end},
  {"roll: expected a dimension for each shift, found 0 for 1", function(x) return x:roll(1) end},
  {"^ stands between a value and a number, found a value", function(x) return x ^ x end},
  {"view: place 1: expected a whole number or x:size(1), found a size of another place", function(x)
    return x:view(-1, x:size(0))
  end},
  {"view: place 0: expected a whole number or x:size(0), found a string", function(x) return x:view("2") end},
  {"einsum: the equation: expected a string, found a table", function(x) return nn.einsum(x, "ij,jk->ik") end},
  {"Einsum: option \"equation\": expected a text of 1 to 47", function(x) return nn.einsum("", x, x) end},
  {"a value has no method chunk: x:narrow(dim, start, length) cuts out a part", function(x) return x:chunk(2) end},
  {"Tensor: lists of 2 and of 1 in one place", function(x) return x + nn.tensor{{1, 2}, {1}} end},
  {'Tensor: option "values": expected numbers, found a string', function(x) return x + nn.tensor{1, "a"} end},
  {"norm: expected p = 2, found 1", function(x) return nn.normalize(x, {p = 1}) end},
  {'a value has no method flaten (did you mean "flatten"?)', function(x) return x:flaten() end},
} do tap.raises(row[1], row[1], graph, row[2]) end

-- What a network refuses, when shapes are known
local function network(forward, input)
  return function() outcome(input, forward) end
end
for _, row in ipairs{
  {"index 3 is out of bounds for 3 rows", {3, 2}, function(x) return x[nn.tensor({0, 3}, {dtype = "int64"})] end},
  {"int64: expected whole numbers from 0 on, found -1 as number 2", {3, 2},
    function(x) return x[nn.tensor({0, -1}, {dtype = "int64"})] end},
  {"expected x[index], index a nn.Buffer or nn.tensor of int64", {3, 2}, function(x) return x[nn.tensor{0, 1}] end},
  {"reads whole numbers, which only x[index] and an Embedding do", {3, 2}, function(x) return x + nn.tensor({0, 1}, {dtype = "int64"}) end},
  {"shape: expected 1 to 4 sizes whose product is the number of values, 3", {1, 2},
    function(x) return x + nn.tensor({0, 1, 2}, {shape = {2}}) end},
  {"max_distance must be between 5 and 2147483647, found 4", {1, 3}, function(x) return buckets(x, 3, 16, 4, true) end},
  {"num_buckets must be between 4 and 2147483647, found 3", {1, 3}, function(x) return buckets(x, 3, 3, 4, true) end},
  {"expected as ids an input of the network that an Embedding has read before", {1, 3, 2},
    function(x) return nn.select_token(x, x:select(2, 0), {token = 1}) end},
  {"step 2 does not divide dimension 1, whose size is 3", {1, 3}, function(x) return x:narrow(1, 0, 2, {step = 2}) end},
  {"start 1 and length 5 do not lie in dimension 1, whose size is 4", {1, 4},
    function(x) return x:narrow(1, 1, 3, {step = 2}) end},
  {"max must not be below min 1, found 0", {1, 3}, function(x) return x:clamp(1, 0) end},
  {"expected x (..., I) and a weight (O, I), found (1, 3) and (2, 2)", {1, 3},
    function(x) return nn.linear(x, nn.tensor{{1, 2}, {3, 4}}) end},
} do tap.raises(row[1], row[1], network(row[3], row[2])) end

-- Parts that one call of PyTorch's makes, parts of constants, masks that are values
for _, row in ipairs{
  {{1, 4}, function(x) local a, b = x:split({1, 3}, 1) return nn.cat({b, a}, 1) end, "1,4: 1 2 3 0", "x:split"},
  {{1, 2, 3}, function(x) return x:select(1, 0, {unbind = 2}) - x:select(1, 1, {unbind = 2}) end, "1,3: -3 -3 -3", "parts of unbind"},
  {{2, 2}, function(x) return x + nn.tensor{{1, 2}, {3, 4}, {5, 6}}:narrow(0, 1, 2) end, "2,2: 3 5 7 9", "rows of a constant"},
  {{1, 2, 2}, function(x) return x:masked_fill(nn.mask(2, 2, 1, true), 9) end, "1,2,2: 0 9 2 3", "a triangle that is a value"},
  {{1, 2, 2}, function(x) return x:masked_fill(nn.mask(2, 2, -1, false, {made = "numbers"}), 9) end, "1,2,2: 0 1 9 3", "... made of numbers"},
} do tap.is(outcome(row[1], row[2]), row[3], row[4]) end
for _, row in ipairs{
  {"split: expected the sizes of all parts of dimension 1, of which this is one", {1, 4}, function(x) return x:narrow(1, 0, 1, {split = {1, 2}}) end},
  {"split: expected the sizes of all parts of dimension 1, of which this is one", {1, 4}, function(x) return x:narrow(1, 1, 2, {split = {2, 2}}) end},
  {"split: expected 8 parts at most, found 9", {1, 9}, function(x) return x:narrow(1, 0, 1, {split = {1, 1, 1, 1, 1, 1, 1, 1, 1}}) end},
  {"unbind: expected the size of dimension 1, 2, and 8 at most, found 3", {1, 2, 3}, function(x) return x:select(1, 0, {unbind = 3}) end},
  {"dim must be between 1 and 1 (0 is the batch)", {3, 2}, function(x) return x:narrow(0, 0, 2) end},
  {"of: expected rows and columns of the buffer", {1, 2, 2}, function(x) return x:masked_fill(nn.mask(2, 2, 1, true, {made = "buffer"}), 9) end},
  {"reads a mask, which only masked_fill and where do", {1, 2, 2}, function(x) return x + nn.mask(2, 2, 0, false) end},
  {"index 3 is out of bounds for 3 rows", {1, 4}, function(x) return x + nn.Embedding(3, 4)(nn.arange(4)):sum(0):view(1, 4) end},
  {"reads indices: expected the network's input, found a layer's output", {1, 4}, function(x) return nn.Embedding(3, 4)(x + 1) end},
} do tap.raises(row[1], row[1] .. " (as a call)", network(row[3], row[2])) end

-- An Embedding of 0 to T - 1 is a PositionEmbedding; of a constant, rows of its table
local function losses_of(positions, add)
  local trainer = assert(mt.trainer{model = nn.Graph{fc = nn.Linear(3, 3), wpe = positions, forward = add}, input = {2, 3},
    loss = nn.MSELoss(), optimizer = mt.optim.SGD{lr = 0.5}, batch = 2, seed = 3})
  local x, y, losses = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {}, {}
  for i = 1, 12 do x[i], y[i] = x[i] / 12, i / 6 end
  for i = 1, 3 do losses[i] = ("%.7g"):format(assert(trainer:step(x, y))) end
  trainer:close()
  return table.concat(losses, " ")
end
local expected = losses_of(nn.PositionEmbedding(4, 3), function(self, x) return self.wpe(self.fc(x)) end)
tap.is(losses_of(nn.Embedding(4, 3), function(self, x) return self.fc(x) + self.wpe(nn.arange(2)) end), expected,
  "an Embedding of arange is a PositionEmbedding, step after step")
tap.is(losses_of(nn.Embedding(4, 3), function(self, x) return self.fc(x) + self.wpe(nn.tensor({0, 1}, {dtype = "int64"})) end), expected,
  "... and so is one of a constant")

-- Children by name, in lists and tables of children
local function names_of(model)
  local names = {}
  for i, param in ipairs(require "memtide.net.nn".network(model, nn.MSELoss(), 1, {3}):params()) do names[i] = param.name end
  return table.concat(names, " ")
end
local function dict(order)
  return nn.Graph{order = order, head = nn.Linear(3, 2, {bias = false}), body = nn.ModuleDict{
      b = nn.Linear(3, 3, {bias = false}), h = nn.ModuleList{nn.Linear(3, 3, {bias = false}), nn.Linear(3, 3, {bias = false})},
      inner = nn.ModuleDict{scale = nn.Parameter{3}}},
    forward = function(self, x)
      for _, one in ipairs(self.body.h) do x = one(x) end
      return self.head(self.body.b(x) * self.body.inner.scale)
    end}
end
tap.is(names_of(dict()), "body.h.0.weight body.h.1.weight body.b.weight body.inner.scale head.weight", "children of tables have paths")
tap.is(names_of(dict{"head", "body.b", "body"}), "head.weight body.b.weight body.h.0.weight body.h.1.weight body.inner.scale", "... which an order may name")
tap.raises('Graph: order does not name "body"', "an order that leaves out a table's child", function() dict{"head", "body.b"} end)
tap.raises("self.body.c does not exist", "a child that a table has not", function()
  return nn.Graph{body = nn.ModuleDict{b = nn.Linear(3, 3)}, forward = function(self, x) return self.body.c(x) end}
end)
tap.raises("ModuleDict: 1 is no layer with a name", "a list in the place of a table", function() return nn.ModuleDict{nn.ReLU()} end)

-- A graph's own buffer, and parameters by name: saved under their names; loading compares a buffer
local function Table(numbers)
  return nn.Graph{
    rows = nn.Buffer(numbers, {dtype = "int64"}), table = nn.ParameterDict{weight = nn.Parameter{4, 3}},
    forward = function(self, x) return x:flatten() + self.table.weight[self.rows]:sum(0):view(1, 3) end,
  }
end
local function trainer_of(numbers)
  return assert(mt.trainer{model = Table(numbers), input = {3}, classes = 3, loss = nn.CrossEntropyLoss(),
    optimizer = mt.optim.SGD{lr = 1}, batch = 2})
end
local path = os.tmpname()
local one = trainer_of{0, 3, 3}
assert(one:step({0, 0, 0, 0, 0, 0}, {0, 1}))
local rows = one:read "table.weight"
tap.is(("%.4f %.4f %.4f"):format(rows[3] * 3, rows[11] * 3, rows[5]), "-1.0000 1.0000 0.0000", "rows' gradients, added up")
assert(one:save(path))
tap.is(#one:parameters(), 1, "a buffer is no parameter")
tap.ok(trainer_of{0, 3, 3}:load(path), "a buffer of the same numbers is loaded")
local loaded, message = trainer_of{0, 3, 2}:load(path)
tap.ok(not loaded and message:find('tensor "rows": its numbers are not those of the script\'s nn.Buffer', 1, true),
  "one of other numbers is an error")
os.remove(path)
tap.raises('self.table.weigth does not exist (did you mean "weight"?)', "a parameter by a wrong name", function()
  return nn.Graph{table = nn.ParameterDict{weight = nn.Parameter{4}}, forward = function(self) return self.table.weigth end}
end)
tap.raises("ParameterDict: a is no nn.Parameter with a name", "a layer among parameters",
  function() return nn.ParameterDict{a = nn.ReLU()} end)

tap.done()
