-- What a sweep shows, without a terminal: text that fits, the board's lines, the table of what varies, the file beside
-- the rows, completions.
local tap = dofile "tests/tap.lua"
local completion = require "memtide.cli.completion"
local live = require "memtide.sweep.live"
local report = require "memtide.results.report"
local screen = require "memtide.sweep.screen"
local terminal = require "memtide.base.terminal"

local function like(text, pattern, what)
  if not tap.ok(text:find(pattern) ~= nil, what) then print("# found " .. text) end
end

-- ---- text that fits
tap.is(terminal.cut("short", 5), "short", "what fits stays")
tap.is(terminal.cut("longer", 5), "lon..", "what is cut ends in dots")
tap.is(terminal.cut("longer", 1), ".", "also where there is hardly room")
tap.is(terminal.cut("\u{6f22}\u{5b57}\u{6f22}", 6), "\u{6f22}\u{5b57}\u{6f22}", "wide characters take two columns")
tap.is(terminal.cut("\u{6f22}\u{5b57}\u{6f22}", 5), "\u{6f22}..", "and are not halved")
tap.is(terminal.cut("\u{e4}\u{f6}\u{fc}", 3), "\u{e4}\u{f6}\u{fc}", "bytes are not columns")
tap.is(terminal.harmless("a\27[2Jb\nc\127\u{9b}d"), "a?[2Jb?c??d", "nothing controls the terminal")
tap.is(terminal.harmless("a\xffb"), "a?b", "what is no UTF-8 neither")

-- ---- the board
local function board(running, last)
  local b = {name = "night", total = 40, ended = 10, resumed = 3, counts = {ok = 7, oom = 2, crashed = 1}, running = {},
    last = {}, left = {seconds = 4200, at = 1000, first = 1000, last = 1000}}
  for i = 1, running do
    b.running[i] = {worker = "cuda:" .. i, case = "case " .. i, note = "running step 3 of 12", since = 900,
      expected = 200}
  end
  for i = 1, last do
    b.last[i] = {case = "row " .. i, status = i == 2 and "crashed" or "ok", bytes = 1 << 20, ms = 1.5, reason = "why"}
  end
  return b
end
local lines = screen.lines(board(2, 3), 1000)
tap.is(#lines, 7, "a line for the bar, the sum, each worker, each row")
tap.is(lines[1][1], "night  [#######.......................] 10 of 40 cells, 25 %", "the bar")
like(lines[2][1], "^7 ok, 2 oom, 1 crashed %(3 were there already%); 1 h 10 min left, ends %d%d:%d%d$", "the sum")
tap.is(lines[3][1], "> cuda:1: case 1: running step 3 of 12, 1 min 40 s of about 3 min 20 s", "a worker")
tap.is(lines[6][1], "  row 2  crashed, 1.0 MiB, 1.5 ms/step, why", "a row that failed has its reason")
tap.ok(lines[6][2] and not lines[5][2], "and stands out")
local counts, few = {}, {}
for most = 2, 14 do counts[#counts + 1], few[#few + 1] = #screen.lines(board(9, 9), 1000, most), math.min(most, 12) end
tap.is(table.concat(counts, " "), table.concat(few, " "),
  "as many lines as there is room for, and never more than twelve")
tap.is(screen.lines(board(9, 4), 1000)[9][1], "> and 3 more", "of many workers the first are shown")
tap.is(screen.lines(board(0, 0), 1000)[3], nil, "nothing runs, nothing has ended")

-- ---- the table
local columns = {"experiment", "case", "cell", "repeat", "model", "device", "batch", "accumulate", "effective_batch",
  "precision", "width", "status", "reason"}
local function rows(list)
  local out = {}
  for i, values in ipairs(list) do
    local row = {case = "base", model = "M", device = "cpu", batch = 8, accumulate = 1, precision = "fp32",
      status = "ok", peak_bytes = 1024 * i}
    for key, value in pairs(values) do row[key] = value end
    row.effective_batch = row.batch * row.accumulate
    out[i] = report.summary(row, columns)
  end
  return out
end
-- Prints as a sweep's end does; the lines.
local function shown(list, options)
  local out, put = {}, print
  print = function(text) out[#out + 1] = text end -- luacheck: ignore
  report.print(rows(list), #list, options or {})
  print = put -- luacheck: ignore
  return out
end
local out = shown{{case = "batch=8 precision=fp32"}, {case = "batch=16 precision=fp32", batch = 16}}
tap.is(out[1], "batch  status   memory  vs first", "of the settings, those that vary")
tap.is(out[3], "   16  ok      2.0 KiB    +100 %", "instead of the names that say the same")
out = shown{{}, {case = "kept width=9", width = 9}}
tap.is(out[1], "case  width  status   memory  vs first", "names that say more stay")
tap.is(out[3], "kept      9  ok      2.0 KiB    +100 %", "without what a column says")
tap.is(shown{{}}[1], "case  status   memory  vs first", "one row has its name")
out = shown{{}, {accumulate = 2, case = "two"}}
like(out[1], "^case  accumulate  effective_batch  status", "the effective batch, where not only the batch varies")
out = shown({{}, {case = "a|b", status = "error", reason = "x\ny"}}, {markdown = true})
tap.is(out[2], "| :-- | :-- | --: | --: | :-- |", "Markdown has a rule")
tap.is(out[4], "| a\\|b | error | 2.0 KiB | +100 % | x?y |", "and bars that are text")
tap.is(report.json({list = {}, deep = {{a = 1, b = {true}}}}, {"list", "deep"}),
  '{"list":[],"deep":[{"a":1,"b":[true]}]}', "JSON of lists and objects")

-- ---- the file beside the rows
local path = os.tmpname()
local mine = live.identity()
local file = live.new(path)
tap.is(live.read(path), nil, "there is no file yet")
file:write{process = mine.process, born = mine.born, host = mine.host, written = os.time(), total = 3}
tap.is(live.read(path).total, 3, "what was written is read")
tap.ok(live.runs(live.read(path), os.time()), "this process runs")
tap.ok(not live.runs({process = mine.process, born = "1", host = mine.host, written = os.time()}, os.time()),
  "another that had its number does not")
tap.ok(not live.runs({process = 1 << 30, born = "1", host = mine.host, written = os.time()}, os.time()),
  "nor one that is no more")
tap.ok(live.runs({process = 1, born = "1", host = "elsewhere", written = 1000}, 1060),
  "one on another machine, by its last word")
tap.ok(not live.runs({process = 1, host = "elsewhere", written = 1000}, 1200), "which must not be old")
local half = assert(io.open(path .. ".live", "w"))
half:write("12\n{s4:tot")
half:close()
tap.is(live.read(path), nil, "half a file is none")
file:remove()
tap.is(io.open(path .. ".live"), nil, "and goes in the end")
os.remove(path)
live.new("/nowhere/x.csv"):write{}
tap.ok(true, "a folder that is not there stops nothing")

-- ---- completions
local options = {{name = "csv", argument = "FILE", text = "rows", completes = {files = "*"}},
  {name = "quiet", letter = "q", text = "none"}}
local uses = {{name = "run", words = "SCRIPT [-- ARGS]", text = "it's all", options = options},
  {name = "compare", words = "A.csv B.csv", text = "two [files]: a", options = {options[2]}}}
like(completion.bash(uses, options), "compare%) words=' %-%-quiet' files='%*%.csv' ;;", "bash")
like(completion.zsh(uses), "'%*%-%-csv=%[rows%]:FILE:_files %-g \"%*\"'", "zsh")
like(completion.fish(uses, options), "%-l quiet %-s q %-d 'none'", "fish")
like(completion.fish(uses, options), "'it\\'s all'", "quotes in the help")
tap.done()
