-- The parts of a sweep that need no process: messages, plans, failures, time limits.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local experiment = require "memtide.sweep.experiment"
local failures = require "memtide.sweep.failures"
local nn = require "memtide".nn
local pace = require "memtide.sweep.pace"
local protocol = require "memtide.sweep.protocol"
local literal = require "memtide.base.literal"
local selection = require "memtide.sweep.selection"
local util = require "memtide.base.util"
local wire = require "memtide.sweep.wire"

-- ---- messages
local function passed(value) return wire.reader()(wire.frame(value)) end
local message = {word = "done", columns = {peak = 1 << 40, ms = 0.1, whole = 3.0, text = "a\n\0\"};i1;", yes = true,
  no = false, low = math.mininteger, tiny = 5e-324}, list = {"a", 2, {}}}
tap.is(literal.of(passed(message)), literal.of(message), "a message arrives as it was sent")
tap.is(math.type(passed{3.0}[1]), "float", "a float that is whole stays one")
tap.is(tostring(passed{1 / 0}[1]) .. tostring(passed{-1 / 0}[1]), "inf-inf", "infinity")
tap.ok(passed{0 / 0}[1] ~= passed{0 / 0}[1], "a loss that is no number")

local read, frames, found = wire.reader(), wire.frame{k = 1} .. wire.frame{k = 2}, {}
for i = 1, #frames do
  local value = read(frames:sub(i, i))
  if value then found[#found + 1] = value.k end
end
tap.is(table.concat(found, " "), "1 2", "in pieces of a byte")
read = wire.reader()
tap.is(read(frames).k .. read().k .. tostring(read()), "12nil", "two at once")

-- A message of n bytes costs n, in however many pieces it comes: joined to what there was, these would copy 32 GB.
local long, given = wire.frame{text = ("x"):rep(8 << 20)}, nil
local begun = os.clock()
read = wire.reader()
for at = 1, #long, 1024 do given = read(long:sub(at, at + 1023)) or given end
tap.is(#given.text, 8 << 20, "a long message in pieces")
tap.ok(os.clock() - begun < 2, ("takes less than 2 s of the processor: %.2f s"):format(os.clock() - begun))

tap.is(util.cut(("x"):rep(4096)), ("x"):rep(4096), "a text of 4096 bytes stands in a row as it is")
tap.is(util.cut(("x"):rep(4095) .. "\u{e4}y"), ("x"):rep(4095) .. "... (3 B cut)",
  "a longer one is cut, between letters")

-- ---- errors as values
do
  local good, problem = util.try(function(...) return "a", nil, ... end, nil, 3)
  tap.ok(good and problem == "a" and select("#", util.try(function(...) return "a", nil, ... end, nil, 3)) == 4,
    "try gives all values")
  good, problem = util.try(error, function(text) return "handled " .. text end, "x")
  tap.is(tostring(good) .. " " .. problem, "false handled x", "or what the handler makes of an error")
  good, problem = util.try(error, nil, "not enough memory", 0)
  tap.is(tostring(good) .. " " .. tostring(util.is_failure(problem) and problem.code), "false host_memory",
    "what Lua raises for want of memory is a failure with a code")
  problem = select(2, util.try(error, nil, "x.lua:1: not enough memory", 0))
  tap.is(problem, "x.lua:1: not enough memory", "... and its words in a script's error are not")
  good, problem = util.try(error, nil, nil)
  tap.ok(not good and problem == nil, "an error may be nil")
end
tap.ok(util.is_interrupt(util.interrupted) and not util.is_interrupt "interrupted", "Ctrl-C is a value, too")
tap.has(util.text_of(setmetatable({}, {__tostring = function() error "no" end})), "cannot be shown",
  "an error that cannot be shown")

local function damaged(text, what) tap.raises("a damaged message at byte", what, wire.reader(), text) end
for _, text in ipairs{"x", "3\nx1;", "4\ni1;;", "3\nix;", "4\ns9:a", "1\n{", "4\n{tt}", "5\n{i1;}", "3\nn1_;",
  "12\n{i1;ti1;ti1;", "22\ns9223372036854775807:a", "99999999999999999999\n", "12345678901"} do
  damaged(text, ("%q"):format(text):gsub("\n", "n"))
end
tap.raises("a function cannot be sent", "a function", wire.frame, {print})
local deep = {}
deep.deep = deep
tap.raises("cannot be sent", "a table in itself", wire.frame, deep)
math.randomseed(7)
local frame, survived, wrong = wire.frame(message), 0, 0
for _ = 1, 2000 do
  local at = math.random(#frame)
  local other = frame:sub(1, at - 1) .. string.char(math.random(0, 255)) .. frame:sub(at + 1)
  local good, problem = pcall(wire.reader(), other)
  if good then survived = survived + 1
  elseif not tostring(problem):find("a damaged message", 1, true) then wrong = wrong + 1 end
end
tap.is(wrong, 0, "2000 damaged bytes: refused as damaged, or another value (" .. survived .. ")")

-- ---- plans
local function declare(more)
  local options = {name = "t", input = {4}, batch = 2, loss = nn.MSELoss(), model = nn.Linear(4, 3)}
  for key, value in pairs(more or {}) do options[key] = value end
  return experiment.new(options)
end
local two = {sweep = {{"batch", {1, 2, 4}}, {"precision", {"fp32", "bf16"}}}, repeats = 2,
  cases = {{case = "a"}, {case = "b"}}}
local whole = declare(two)
tap.is(whole:count(), 24, "cases, axes and repeats multiply")
local same = true
for position, one in ipairs(whole:cells()) do
  local again = whole:cell(position)
  same = same and again.name == one.name and again.repeat_number == one.repeat_number
end
tap.ok(same and #whole:cells() == 24, "a cell by its position is the one in the list")
tap.is(whole:cell(24).name .. whole:cell(24).repeat_number, "b batch=4 precision=bf162", "the last one")

local function planned(options) return selection.new(declare(two), "run", options) end
tap.is(planned{set = {}, case = "a batch=2"}:count(), 4, "--case chooses")
tap.is(planned{set = {{"batch", "8"}}}:count(), 8, "--set takes an axis away")
tap.is(planned{set = {}, steps = 7, case = "b"}:cell(1).values.steps, 7, "--steps reaches the cells")
tap.is(planned{set = {}, devices = {"cpu", "cuda:1"}}:cell(1).values.device, "cpu",
  "--devices: every cell is known as one of the first")
tap.raises('no case has "zzz"', "no cell", planned, {set = {}, case = "zzz"})

tap.is(selection.state(nil), "missing", "no row")
tap.is(selection.state("ok", core.version) .. selection.state("oom", core.version), "donedone", "results")
tap.is(selection.state("crashed", core.version) .. selection.state("error", "0"), "failedfailed", "failures")
tap.is(selection.state("ok", "0.0.1"), "stale", "a result of another version")
local function wants(words, status, version)
  return planned{set = {}, retry = words and selection.retry(words)}:wants(status, version or core.version)
end
for _, case in ipairs{
  {nil, nil, true}, {nil, "ok", false}, {nil, "oom", false}, {nil, "error", true}, {nil, "ok", true, "0.0.1"},
  {"none", nil, true}, {"none", "error", false}, {"none", "ok", false, "0.0.1"}, {"all", "ok", true},
  {"oom", "oom", true}, {"oom", "error", false}, {"timeout", "timeout", true}, {"crashed,diverged", "diverged", true},
  {"nan", "diverged", true}, {nil, "diverged", false}, {nil, "predicted", false},
} do
  local words, status, expected, version = case[1], case[2], case[3], case[4]
  tap.is(wants(words, status, version), expected, ("--retry %s: a row with %s%s"):format(words or "unasked",
    status or "nothing", version and " of another version" or ""))
end
tap.has(select(2, selection.retry "ok"), "some of none, failed", "other words")

-- ---- failures
local function class(...)
  local of = failures.of_row(...)
  return of and ("%s %d %s"):format(of.status, of.attempts, tostring(of.fresh or false)) or "none"
end
tap.is(class("ok"), "none", "no failure")
tap.is(class("diverged") .. class("skipped") .. class("predicted"), "nonenonenone", "results")
tap.is(class("oom"), "oom 1 false", "out of memory, also where no code says so")
tap.is(class("oom", "oom"), "oom 1 false", "out of device memory costs no worker")
tap.is(class("error", "device"), "error 2 true", "a device that failed: once more, in a fresh worker")
tap.is(class("error", "host_memory"), "error 1 true", "out of host memory: a fresh worker")
tap.is(class("error", "host_memory", 1), "oom 1 true", "a result where there is a limit")
tap.is(class("error"), "error 1 false", "a mistake of the script")
local function ended(cause, ...)
  local of, reason = failures.of_end(cause, ...)
  return of.status .. " " .. of.attempts .. ": " .. reason
end
tap.is(ended{kind = "signal", what = "ABRT", note = "predicting"}, "crashed 2: crashed by SIGABRT while predicting",
  "abort")
tap.is(ended{kind = "exit", what = 3, note = ""}, "crashed 2: the worker ended with exit status 3", "exit")
tap.is(ended{kind = "timeout", what = "TERM", seconds = 1.5, note = "x"}, "timeout 1: no end after 1.5 s while x",
  "hang")
tap.has(ended{kind = "signal", what = "KILL", note = "x"}, "crashed 1: killed by SIGKILL while x: not by memtide",
  "kill")
tap.has(ended{kind = "stuck", note = "x"}, "the worker is stuck while x: not even SIGKILL ends it", "stuck")
tap.is(failures.attempt(1, "x") .. ", " .. failures.attempt(2, "x") .. ", " .. failures.attempt(4, "x"),
  "x, 2nd attempt: x, 4th attempt: x", "attempts are told")

-- ---- what a worker says
local heard = {}
local tell = protocol.teller(function(one, answered)
  heard[#heard + 1] = one
  return answered and {go = "yes"}
end)
tap.is(tell.built({cell = "c"}, "why"), "yes", "what is answered is told back")
local said = heard[1]
tap.is(("%s %s %s"):format(said.word, said.columns.cell, said.failed), "built c why", "fields by their names")
local many = {}
for i = 1, 2500 do many[i] = i end
tap.is(tell.samples(many), nil, "a long list")
tap.is(("%d %d %d %d"):format(#heard, #heard[2].list, #heard[4].list, heard[4].list[1]), "4 1000 500 2001",
  "is several messages")
tell.done({}, nil, true)
tap.ok(heard[5].code == nil and heard[5].unbuilt == true, "what is nil takes no other's place")
tap.ok(not tell.ready and protocol.message("ready").word == "ready", "and what is said of no cell")
tap.raises("nobody hears built", "a word that nobody hears", protocol.check, {})

-- ---- times
tap.is(util.seconds "90" .. " " .. util.seconds "1.5h" .. " " .. util.seconds "2m", "90 5400.0 120", "times")
tap.ok(not util.seconds "5x" and not util.seconds "soon" and not util.seconds "1.2.3", "and what is none")
local model = {}
local function cells(batch) return {model = model, batch = batch, accumulate = 2, steps = 8, warmup = 2} end
local limits = pace.new{times = 5}
tap.is(limits:limit(cells(4)), nil, "nothing is known before a cell has ended")
limits:learn(1, cells(4), 4) -- 80 samples
tap.near(limits:estimate(cells(8)), 8, 1e-9, "twice the samples, twice the time")
tap.near(limits:limit(cells(8)), 40, 1e-9, "five times the estimate")
tap.is(limits:limit(cells(1)), 10, "but never less than ten seconds")
limits:learn(1, cells "max", 1e6)
tap.ok(not limits:limit(cells "max") and limits:limit(cells(8)) == 40, "how much work a largest batch is, is not known")
tap.is(limits:estimate{model = {}, batch = 1, accumulate = 1}, nil, "another model is another matter")
local both = pace.new{times = 5, seconds = 30}
tap.is(both:limit(cells(8)), 30, "the absolute limit holds before")
both:learn(1, cells(4), 1)
tap.near(both:limit(cells(8)), 10, 1e-9, "whichever is first holds after")
tap.is(pace.new():limit(cells(4)), nil, "no limit unasked")

tap.done()
