-- Pictures: what they show is what is predicted; ticks are round; no name of a script reaches the text unescaped.
local tap = dofile "tests/tap.lua"
local mt = require "memtide"
local alive = require "memtide.picture.alive"
local arena = require "memtide.picture.arena"
local blocks = require "memtide.picture.blocks"
local cell = require "memtide.net.cell"
local chart = require "memtide.picture.chart"
local columns = require "memtide.results.columns"
local csv = require "memtide.results.csv"
local pickle = dofile "tests/pickle.lua"
local page = require "memtide.picture.page"
local pareto = require "memtide.picture.pareto"
local ranks = require "memtide.picture.ranks"
local rows = require "memtide.picture.rows"
local step = require "memtide.picture.step"
local svg = require "memtide.picture.svg"
local sweep = require "memtide.picture.sweep"
local terminal = require "memtide.base.terminal"
local theme = require "memtide.picture.theme"
local tide = require "memtide.picture.tide"
local traces = dofile "tests/traces.lua"

-- ---- ticks

local function texts(ticks)
  local out = {}
  for i, tick in ipairs(ticks) do out[i] = tick.text end
  return table.concat(out, " ")
end

tap.is(texts(chart.byte_ticks(80 * 2 ^ 20, 5)), "0 20 MiB 40 MiB 60 MiB 80 MiB", "ticks of 80 MiB")
tap.is(chart.byte_ticks(80 * 2 ^ 20, 5)[2].value, 20 * 2.0 ^ 20, "... lie at 20 MiB")
tap.is(texts(chart.byte_ticks(3 * 2 ^ 30, 6)), "0 0.5 GiB 1 GiB 1.5 GiB 2 GiB 2.5 GiB 3 GiB", "ticks of 3 GiB")
tap.is(texts(chart.byte_ticks(1000 * 2 ^ 20, 5)), "0 200 MiB 400 MiB 600 MiB 800 MiB 1000 MiB", "1000 MiB are no GiB yet")
tap.is(texts(chart.byte_ticks(3, 10)), "0 1 B 2 B 3 B", "there are no halves of a byte")
tap.is(texts(chart.byte_ticks(0, 5)), "0 1 B", "ticks of nothing")
tap.is(texts(chart.ticks(0, 19, 10)), "0 2 4 6 8 10 12 14 16 18", "ticks of 19 ops")
tap.is(texts(chart.ticks(2.1, 2.9, 4)), "2.2 2.4 2.6 2.8", "ticks that do not begin at 0")
tap.is(texts(chart.byte_powers(2 ^ 20, 2 ^ 31, 6)), "1 MiB 4 MiB 16 MiB 64 MiB 256 MiB 1 GiB", "powers of four")
tap.is(texts(chart.powers(1, 30, 6)), "1 2 5 10 20", "powers of ten")
tap.is(texts(chart.powers(1, 1e6, 8)), "1 10 100 1000 10000 100000 1000000", "and only these where there are many")

-- ---- scales

local scale = chart.logarithmic(1, 100, 0, 10)
tap.ok(math.abs(scale(10) - 5) < 1e-9, "10 is in the middle from 1 to 100")
tap.is(chart.linear(0, 4, 10, 0)(1), 7.5, "a scale that falls")

-- ---- escaping

tap.is(svg.escape [[<a href='x'>"&amp;"</a>]], "&lt;a href=&#39;x&#39;&gt;&quot;&amp;amp;&quot;&lt;/a&gt;", "escapes all five")
tap.is(svg.escape "a\0b\27[31m\n\u{FFFE}c", "a?b?[31m??c", "what XML forbids becomes a question mark")
tap.is(svg.escape "a\xffb", "a?b", "... and broken UTF-8")
tap.is(svg.escape "Größe", "Größe", "other letters stay")
tap.is(svg.text(svg.node("a", {b = '"><script>', c = 1 / 3}, "<x>", svg.node("d"))),
  '<a b="&quot;&gt;&lt;script&gt;" c="0.33">&lt;x&gt;<d/></a>', "attributes and texts are escaped, numbers short")

-- A small checker of XML: raises where tags do not match, attributes lack quotes, or a "<" or a bare "&" stands in text.
-- Returns how many elements there are of each name.
local function check_xml(text)
  local open, count, at = {}, {}, 1
  local function check_text(part)
    for rest in part:gmatch "&([^;]*;?)" do
      assert(rest:find "^#?%w+;$", "a bare & before " .. rest:sub(1, 20))
    end
    assert(not part:find "[%z\1-\8\11\12\14-\31]", "a control character")
  end
  while true do
    local from, to, close, name, attributes, empty = text:find("<(/?)([%w:]+)([^<>]-)(/?)>", at)
    local between = text:sub(at, (from or 0) - 1)
    assert(not between:find "<", "a bare < in " .. between:sub(1, 60))
    check_text(between)
    if not from then break end
    if close == "/" then assert(table.remove(open) == name, "</" .. name .. "> closes nothing")
    else
      check_text(attributes)
      assert(attributes:gsub('%s[%w:-]+="[^"]*"', "") == "", "attributes of " .. name .. ": " .. attributes)
      count[name] = (count[name] or 0) + 1
      if empty == "" then open[#open + 1] = name end
    end
    at = to + 1
  end
  assert(#open == 0, "not closed: " .. table.concat(open, " "))
  assert(utf8.len(text), "broken UTF-8")
  return count
end

tap.ok(not pcall(check_xml, "<a><b></a></b>"), "the checker sees tags that do not match")
tap.ok(not pcall(check_xml, "<a>1 & 2</a>"), "... and a bare &")
tap.ok(not pcall(check_xml, '<a b="<c>"/>'), "... and a < in an attribute")

local function well_formed(node, what)
  local good, found = pcall(check_xml, svg.text(node))
  tap.ok(good, what .. " is well-formed" .. (good and "" or ": " .. tostring(found)))
  return good and found or {}
end

-- ---- the facts of a step

local function compiled(values)
  values.name = values.name or "pictures"
  values.input, values.classes, values.batch, values.loss = {3, 12, 12}, 4, 4, mt.nn.CrossEntropyLoss()
  local nn = mt.nn
  values.model = values.model or nn.Sequential{nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(),
    nn.Flatten(), nn.Linear(72, 4)}
  return cell.compile(cell.build(mt.experiment(values):cell(1)))
end

-- What is drawn at the peak is the predicted peak: each category to the byte, and the sum.
local function check_facts(values, what, gaps)
  local one = compiled(values)
  local facts, peak = step.facts(one), one.prediction.peak
  local op, sum, of = facts.ops[facts.peak.at], 0, {}
  for _, buf in ipairs(facts.peak.alive) do
    sum = sum + buf.size
    of[buf.category] = (of[buf.category] or 0) + buf.bytes
  end
  for _, name in ipairs(columns.categories) do
    if name ~= "other" then
      tap.is(op.bytes[name], peak.categories[name], ("%s: %s at the peak is what is predicted"):format(what, name))
      tap.is(of[name] or 0, peak.categories[name], ("%s: and the sum of the buffers of %s that are alive"):format(what, name))
    end
  end
  tap.is(sum, op.total, what .. ": the buffers that are alive make the height of the stack")
  tap.is(sum + facts.peak.slack, peak.bytes, what .. ": with the slack they are the predicted peak")
  tap.ok(facts.peak.slack >= 0, what .. ": slack is never negative")
  if not gaps then tap.is(facts.peak.slack, 0, what .. ": there is none") end
  if not facts.pytorch then tap.is(facts.peak.op, peak.op, what .. ": the op at the peak") end
  for _, other in ipairs(facts.ops) do
    if other.total > peak.bytes then tap.ok(false, what .. ": more than the peak at " .. other.name) end
  end
  tap.is(alive.tree(facts).bytes, peak.bytes, what .. ": the tree of what is alive has the same bytes")
  local last = 0
  for _, phase in ipairs(facts.phases) do
    tap.is(phase.first, last + 1, ("%s: %s begins after the phase before it"):format(what, phase.name))
    last = phase.last
  end
  tap.is(last, #facts.ops, what .. ": the phases are all ops")
  well_formed(tide.picture(facts, theme.style), what .. ": the tide")
  well_formed(alive.picture(facts, theme.style), what .. ": what is alive")
  well_formed(arena.picture(facts, theme.style), what .. ": the arena")
  return facts
end

local function phases(facts)
  local out = {}
  for i, phase in ipairs(facts.phases) do out[i] = phase.name end
  return table.concat(out, " ")
end

local plain = check_facts({optimizer = mt.optim.Adam()}, "Adam")
tap.is(phases(plain), "forward backward update", "phases of a step")
tap.ok(plain.peak.where:find "t_picture.lua:%d+$", "the peak's op has its line of the script: " .. plain.peak.where)
check_facts({optimizer = mt.optim.SGD(), precision = "amp_bf16"}, "mixed precision", true)
check_facts({optimizer = mt.optim.Adam(), checkpoint = "sqrt", accumulate = 2}, "checkpoint", true)
check_facts({optimizer = mt.optim.Adam(), allocator = "caching"}, "caching allocator", true)
check_facts({mode = "eval"}, "evaluation", true)
local eager = check_facts({optimizer = mt.optim.Adam(), framework = "pytorch"}, "PyTorch", true)
tap.is(phases(eager), "forward backward update", "phases of PyTorch's step")
local twice = check_facts({optimizer = mt.optim.Adam(), framework = "pytorch", accumulate = 2}, "PyTorch, two micro-batches", true)
tap.is(phases(twice), "forward backward forward backward update", "forward and backward of each micro-batch")

-- ---- the arena: no two buffers share an address at one time

local function clashes(list)
  local count = 0
  for i, a in ipairs(list) do
    for k = i + 1, #list do
      local b = list[k]
      local size = function(one) return one.size or one.bytes end
      if a.first <= b.last and b.first <= a.last and a.place < b.place + size(b) and b.place < a.place + size(a) then
        count = count + 1
      end
    end
  end
  return count
end
tap.is(clashes(plain.bufs), 0, "no two rectangles of the arena overlap")

-- PyTorch's: each tensor lies in a segment that is there as long as the tensor; the segments are max_memory_reserved
local function check_segments(facts, what)
  tap.is(clashes(facts.bufs), 0, what .. ": no two tensors overlap")
  tap.is(clashes(facts.ranges), 0, what .. ": nor do segments")
  local homeless, most = 0, 0
  for _, buf in ipairs(facts.bufs) do
    local home
    for _, one in ipairs(facts.ranges) do
      home = home or one.first <= buf.first and buf.last <= one.last and one.place < buf.place + buf.size
        and buf.place < one.place + one.bytes
    end
    if not home then homeless = homeless + 1 end
  end
  tap.is(homeless, 0, what .. ": each tensor lies in a segment")
  for i = 1, #facts.ops do
    local sum = 0
    for _, one in ipairs(facts.ranges) do if one.first <= i and i <= one.last then sum = sum + one.bytes end end
    most = math.max(most, sum)
  end
  tap.is(most, facts.held, what .. ": the segments together are what is reserved")
  return facts
end
check_segments(eager, "PyTorch")
local expandable = check_segments(check_facts({optimizer = mt.optim.Adam(), framework = "pytorch",
  pytorch = {alloc_conf = "expandable_segments:True"}}, "expandable segments", true), "expandable segments")
tap.ok(expandable.ranges[1].page, "which are pages")
tap.ok(svg.text(arena.picture(eager)):find " in %d+ segments", "the arena says how many segments there are")

-- ---- a recording: one of the public ones

local pickled = os.tmpname()
local recording = traces.read "gpt_training_128"
local out = assert(io.open(pickled, "wb"))
out:write(pickle.dump(traces.snapshot(recording, pickle)))
out:close()
local recorded = step.recorded(pickled)
os.remove(pickled)
local most = 0
for _, op in ipairs(recorded.ops) do most = math.max(most, op.total) end
tap.is(recorded.ops[recorded.peak.at].total, traces.peaks.gpt_training_128.allocated, "a recording: what is drawn at the peak is PyTorch's")
tap.is(most, recorded.peak.bytes, "... and nothing is above it")
tap.is(recorded.arena, traces.peaks.gpt_training_128.reserved, "its segments are what PyTorch had reserved")
tap.is(#recorded.ranges, #recording.segments, "... each of them")
tap.is(alive.tree(recorded).bytes, recorded.peak.bytes, "the tree of what is alive has the same bytes")
well_formed(tide.picture(recorded, theme.style), "a recording: the tide")
well_formed(alive.picture(recorded, theme.style), "a recording: what is alive")
local count = well_formed(arena.picture(recorded, theme.style), "a recording: the arena").rect
tap.ok(count > 377 and count < 3000, "... without what nobody could see: " .. count .. " rectangles")

-- ---- names that mean harm

local evil = check_facts({name = [[<script x="1">&]], cases = {{case = "]]>'\"<b>"}}}, "evil names")
for _, picture in ipairs{tide.picture(evil, theme.style), arena.picture(evil, theme.style), alive.picture(evil)} do
  tap.ok(not svg.text(picture):find("<script", 1, true), "no name becomes an element")
end

-- ---- ranks: a bar for those that are alike, with the categories of the prediction

local nn = mt.nn
local function several()
  return mt.experiment{name = "several<", input = {20}, classes = 10, batch = 4, loss = nn.CrossEntropyLoss(), optimizer = mt.optim.Adam(),
    model = nn.Sequential{nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)},
    cases = {{case = "alone"}, {case = "parts", world = 4, zero = 3}, {case = "stages", world = 4, mesh = {pipeline = 2, data = 2}},
      {case = "wrong", world = 4, mesh = {pipeline = 3}}, {case = "eager", world = 8, framework = "pytorch", batch = 4}}}
end
local of_cells = ranks.facts(several(), {set = {}, say = print})
local labels, of_ranks = {}, 0
for i, bar in ipairs(of_cells.bars) do
  local all = 0
  for _, bytes in pairs(bar.categories) do all = all + bytes end
  labels[i] = ("%s %s"):format(bar.cell, bar.op and bar.label or bar.label:match "mesh")
  if not bar.cell:find "eager" then tap.is(all, bar.bytes, labels[i] .. ": the parts are the whole") end
end
tap.is(table.concat(labels, "; "), "parts rank 0; parts ranks 1 to 3; stages ranks 0 and 1; stages ranks 2 and 3; wrong mesh; eager ranks 0 to 7",
  "ranks that are alike have one bar, each stage its own; a cell that cannot be built says why")
local parts = cell.build(several():cell(2))
for rank = 0, 3 do
  parts.rank = rank
  cell.compile(parts)
  of_ranks = of_ranks + parts.prediction.peak.bytes
  tap.is(of_cells.bars[rank == 0 and 1 or 2].bytes, parts.prediction.peak.bytes, "rank " .. rank .. " has what was predicted for it")
end
parts.rank = nil
tap.is(cell.compile(parts).prediction.sum, of_ranks, "the sum of the ranks")
local bars_drawn = well_formed(ranks.picture(of_cells, theme.style), "what each rank has")
local fields = 1 -- the ground
for _, bar in ipairs(of_cells.bars) do for _, bytes in pairs(bar.categories) do if bytes > 0 then fields = fields + 1 end end end
local used = {}
for _, bar in ipairs(of_cells.bars) do for name, bytes in pairs(bar.categories) do if bytes > 0 then used[name] = true end end end
for _ in pairs(used) do fields = fields + 1 end
tap.is(bars_drawn.rect, fields, "a field for each category of each bar, and in the legend")
tap.is(ranks.facts(several(), {set = {}, case = "parts", rank = 3, say = print}).bars[1].label, "rank 3", "--rank shows one")
local nothing, why_not = ranks.picture(ranks.facts(several(), {set = {}, case = "alone", say = print}))
tap.ok(nothing == nil and why_not:find "no cell that was chosen has several ranks", "a script of one rank has no picture")

-- ---- results: what a file says, and its pictures

local HEAD = {"experiment", "case", "cell", "repeat", "model", "device", "batch", "accumulate", "effective_batch", "precision",
  "checkpoint", "inplace", "mode", "optimizer", "allocator", "workspace_limit", "graph", "status", "reason",
  "predicted_peak_bytes", "lower_bound_bytes", "peak_bytes", "step_ms", "version", "started_at", "device_name"}
local COMMON = {experiment = "e<b>", ["repeat"] = 1, model = "M", device = "cpu", accumulate = 1, precision = "fp32",
  checkpoint = "none", mode = "train", optimizer = "Adam", status = "ok", version = "1"}

-- A file of results with these rows, each {column = value}; case and cell are made of the row's number.
local function results_file(list)
  local path = os.tmpname() .. ".csv"
  local file = assert(io.open(path, "w"))
  file:write(csv.line(HEAD, #HEAD))
  for i, row in ipairs(list) do
    local all = setmetatable(row, {__index = COMMON})
    row.case = row.case or ("case %d"):format(i)
    row.cell, row.effective_batch = row.cell or ("%012x-000000-000000"):format(i), row.batch
    local values = {}
    for k, name in ipairs(HEAD) do values[k] = all[name] end
    file:write(csv.line(values, #HEAD))
  end
  file:close()
  local facts = rows.facts(path, print)
  os.remove(path)
  return facts
end

local MIB = 2 ^ 20 | 0
local facts = results_file{
  {batch = 8, peak_bytes = 10 * MIB, predicted_peak_bytes = 10 * MIB, step_ms = 5},
  {batch = 16, peak_bytes = 20 * MIB, step_ms = 9},
  {batch = 32, predicted_peak_bytes = 40 * MIB, status = "oom",
    reason = "out of memory: requested 64 bytes, held 33554432, limit 33554432"},
  {batch = 8, precision = "bf16", peak_bytes = 6 * MIB, step_ms = 4, ["repeat"] = 1, cell = "00000000000a-000000-000000"},
  {batch = 8, precision = "bf16", peak_bytes = 6 * MIB, step_ms = 8, ["repeat"] = 2, cell = "00000000000a-000000-000000"},
  {batch = 32, precision = "bf16", predicted_peak_bytes = 24 * MIB, status = "skipped",
    reason = "needs 25165824 bytes, 8388608 more than the 16777216 of --memory"},
}
tap.is(#facts.points, 5, "repeats of a cell are one point")
tap.is(table.concat(facts.varying, " "), "batch precision", "the settings that vary")
tap.is(facts.points[4].time.median, 6, "its time is the median of the repeats")
tap.is(facts.points[3].limit, 33554432, "the limit of a cell that ran out of memory")
tap.is(facts.points[5].limit, 16777216, "... and of one that was not tried")
tap.ok(facts.points[3].predicted and not facts.points[1].predicted, "what is measured, and what is predicted")
tap.is(facts.points[3].time, nil, "what did not fit has no time")
tap.is(rows.axis(facts), "batch", "the axis is that over which points lie on lines")
local series = rows.series(facts, "batch")
tap.is(#series, 2, "a line for each technique")
tap.is(series[1].label .. "/" .. series[2].label, "fp32/bf16", "which is named by what else varies")
tap.is(#series[1].points, 3, "with all its points")
tap.is(rows.series(facts, "precision"), nil, "words are no axis")
local drawn = well_formed(sweep.picture(facts, theme.style), "the sweep")
tap.is(drawn.circle, 3 + 3, "a circle for each point that fits, in the panels of memory and of time")
tap.ok(svg.text(sweep.picture(facts)):find("the limit of 16.0 MiB", 1, true), "the lowest limit is named")
tap.raises("column precision: expected numbers", "an axis of words", sweep.picture, facts, nil, "precision")
local apart = results_file{{batch = 8, peak_bytes = MIB}, {batch = 8, precision = "bf16", peak_bytes = MIB}}
tap.is(rows.axis(apart), nil, "no axis where each point stands alone")
tap.is(well_formed(sweep.picture(apart, theme.style), "bars").rect, 3, "then there is a bar for each, on the ground")

local cards = results_file{{batch = 1, peak_bytes = 2 << 30}, {batch = 2, peak_bytes = 30 << 30}}
tap.ok(svg.text(sweep.picture(cards)):find("L4, 22 GiB", 1, true), "the lines where cards end")

-- ---- memory against time

local function point(memory, median) return {memory = memory, time = {median = median}} end
local best, slow, small, equal, worse = point(5, 1), point(4, 3), point(1, 9), point(4, 3), point(6, 2)
local front = pareto.front{worse, small, slow, equal, best}
tap.is(#front, 3, "three points are on the front")
tap.ok(front[1] == best and front[2] == slow and front[3] == small, "by time; of two equal ones the first")
local groups = pareto.groups(facts)
tap.is(#groups, 2, "only cells of the same work are compared")
tap.is(#groups[1].front, 2, "the faster one and the smaller one are both on the front")
well_formed(pareto.picture(facts, theme.style), "memory against time")
local none, why = pareto.picture(apart)
tap.ok(none == nil and why:find "no cell has both", "without times there is no front")

-- ---- the report

local verdict = {claim = "a <claim> & more", verdict = "REFUTED", band = {low = 0, high = 1, open = true}, reason = "<i>"}
local text = page.text(facts, {{experiment = "<e>", verdicts = {verdict}}},
  {{title = "</title><script>", text = "<p>", picture = tide.picture(evil)}}, "0")
local body = text:gsub("<!doctype html>\n", ""):gsub("<style>.-</style>", "<style></style>")
  :gsub("<script>.-</script>", "<script></script>"):gsub("(<meta[^>]*)>", "%1/>"):gsub("(<input[^>]*)>", "%1/>")
local good, found = pcall(check_xml, body)
tap.ok(good, "the report is well-formed" .. (good and "" or ": " .. tostring(found)))
tap.is(good and found.script, 1, "with one script, our own")
tap.is(good and found.svg, 1, "and its picture")
tap.ok(not text:find "https?://" or not text:gsub("http://www.w3.org/2000/svg", ""):find "https?://", "it names no address to load from")
tap.has(text, "&lt;e&gt;", "names are escaped")

-- ---- in the terminal

local lines = blocks.lines(plain, {width = 80, unicode = true})
local wide, ascii = 0, true
for _, line in ipairs(lines) do wide = math.max(wide, utf8.len(line)) end
tap.ok(wide <= 80, ("80 columns are enough (%d)"):format(wide))
for _, line in ipairs(blocks.lines(plain, {width = 60})) do ascii = ascii and not line:find "[\x80-\xff\27]" and #line <= 60 end
tap.ok(ascii, "without Unicode the lines are ASCII without colour, 60 columns wide")
tap.is(table.concat(blocks.bars({0, 1, 50, 100}, 100, 1, {" ", ".", "o", "O"}), "\n"), " .oO", "bars of one row")
tap.is(table.concat(blocks.bars({0, 25, 50, 100}, 100, 2, {" ", "o", "O"}), "/"), "   O/ oOO", "bars of two rows")
tap.ok(table.concat(blocks.lines(plain, {width = 80, colour = true})):find "\27%[38;5;", "with colour there is colour")
tap.ok(type(terminal.unicode()) == "boolean", "the locale says whether there is Unicode")

tap.done()
