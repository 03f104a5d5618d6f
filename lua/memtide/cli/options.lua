-- Options of several commands: {name, letter, argument, text, take, completes}. An option without `argument` is a
-- switch.
--   take       take(options, text): reads the argument. Without it, options[key_of(name)] = text.
--   sets       the settings that it gives or takes away, which --set must not give, too
--   repeated   it may stand several times, and each adds something
--   completes  what may stand in the argument's place: {words = "a b"}, {files = "*.csv"}, or {of = "set"}: what offers.set
--              of offers.lua gives
-- Options of one command only are in its file.
local selection = require "memtide.sweep.selection"
local util = require "memtide.base.util"

local options = {}

function options.key_of(name) return (name:gsub("-", "_")) end

local fail = util.fail_usage

-- ---- readers

function options.whole(name, least)
  return function(given, text)
    local value = math.tointeger(tonumber(text))
    if not value or value < least then
      fail('--%s: expected a whole number of at least %d, found "%s"', name, least, text)
    end
    given[options.key_of(name)] = value
  end
end

local LEAST = 1000 -- bytes: a smaller size lacks its unit

function options.size(name)
  return function(given, text)
    local bytes = util.bytes(text)
    if not bytes or bytes == 0 then fail('--%s: expected a size such as 512MiB, found "%s"', name, text) end
    if bytes < LEAST then fail('--%s: expected a size such as %sGiB, found "%s", which is %d bytes', name, text, text, bytes) end
    given[options.key_of(name)] = bytes
  end
end

local function take_set(given, text)
  local axis, words = text:match("^([^=]+)=(.+)$")
  if not axis then fail('--set: expected AXIS=VALUE,VALUE, found "%s"', text) end
  given.set[#given.set + 1] = {axis, words}
end

-- "2,4" -> given.world = {2, 4}, and the axis of that name
local function take_world(given, text)
  local list = {}
  for word in (text .. ","):gmatch "([^,]*)," do
    options.whole("world", 1)(given, word)
    list[#list + 1] = given.world
  end
  given.world = list
  given.set[#given.set + 1] = {"world", text}
end

-- "60s", "5x" or both -> {seconds = the most, times = the most in multiples of the estimate}
local function take_timeout(given, text)
  given.timeout = {}
  for word in (text .. ","):gmatch("([^,]*),") do
    local times, seconds = tonumber(word:match("^([%d.]+)x$")), util.seconds(word)
    if not times and not seconds or (times or seconds) <= 0 then
      fail('--timeout: expected a time such as 60s, 5m or 5x, found "%s"', word)
    end
    given.timeout[times and "times" or "seconds"] = times or seconds
  end
end

local function take_retry(given, text)
  local again, expected = selection.retry(text)
  if not again then fail('--retry: expected %s, found "%s"', expected, text) end
  given.retry = again
end

local function take_devices(given, text)
  given.devices = {}
  for name in (text .. ","):gmatch("([^,]*),") do given.devices[#given.devices + 1] = name end
end

-- ---- single options and lists of them

local FILE, DEVICE = {files = "*"}, {of = "device"}
options.DEVICE = DEVICE

options.csv = {name = "csv", argument = "FILE", completes = FILE,
  text = "where rows go: a file that is resumed, or - for standard output (default: NAME.csv for run)"}
options.json = {name = "json", text = "JSON on standard output instead of the table, an object a line: docs/json.md"}
options.depth = {name = "depth", argument = "N", take = options.whole("depth", 1),
  text = "levels of the tree of layers that are shown (all)"}
options.cells = {name = "cells", argument = "FILE", completes = FILE,
  text = "the list of memtide cells: run --shard takes the parts from it, merge tells what is missing"}
options.safe = {name = "safe",
  text = "the script sees no os, no io and no files but those below its folder: for scripts of others"}
options.try_oom = {name = "try-oom", text = "runs also what is predicted not to fit"}
options.plain = {name = "plain", text = "on a terminal, too, a line for each cell instead of the screen"}
options.set = {name = "set", argument = "AXIS=V,V", take = take_set, completes = {of = "set"}, repeated = true,
  tried = {alloc_conf = true}, -- no cell's setting, but what memtide snapshot tries one after the other
  text = "a setting or an axis instead of the script's; also 8..64:8, 8..512*2; once for each of them"}
options.memory = {name = "memory", argument = "SIZE", take = options.size("memory"),
  text = "as if the device had only this much: 512MiB, 8GB, 4096"}
options.snapshot = {name = "snapshot", argument = "FILE.pickle", completes = {files = "*.pickle"},
  text = "dump: writes the step as a memory snapshot, which PyTorch's memory_viz opens; calibrate: instead of a script one of "
    .. "torch.cuda.memory._dump_snapshot: what the process had reserved then"}
options.perfetto = {name = "perfetto", argument = "FILE.json", completes = {files = "*.json"},
  text = "the step as a trace for ui.perfetto.dev and chrome://tracing: ops, and the tide as counters: docs/pictures.md"}
options.gpu = {name = "gpu", argument = "N", take = options.whole("gpu", 0),
  text = "of a recording of several GPUs this one (default: the first that has events)"}
options.rank = {name = "rank", argument = "N", take = options.whole("rank", 0),
  text = "dump, explain: of a training on several ranks the step of this one (0); fit --method: r of the adapters (16)"}
options.markdown = {name = "markdown", text = "the table at the end as Markdown"}

options.steps = {name = "steps", argument = "N", sets = {"steps", "epochs"}, take = options.whole("steps", 1), text = "timed steps of each cell"}

-- for commands about one cell of the script
options.CELL = {
  {name = "device", argument = "D", sets = {"device"}, completes = DEVICE,
    text = "the device of every cell: cpu, cuda:0, cuda:h200 to plan only (default: the script's, or cpu)"},
  options.set,
  {name = "world", argument = "N,N", sets = {"world"}, take = take_world,
    text = "ranks that train each cell together, as --set world=N,N; of fit: the largest batch on so many, and how many hold the training"},
  {name = "case", argument = "TEXT", completes = {of = "case"}, text = "only cells whose name contains it"},
  options.safe,
}
-- for commands about all cells
options.PLAN = {options.CELL,
  options.memory,
  options.steps,
  {name = "seed", argument = "N", sets = {"seed"}, take = options.whole("seed", 0), text = "of parameters, data and dropout"},
}
-- for commands that make rows
options.ROWS = {options.PLAN,
  {name = "devices", argument = "D,D", sets = {"device"}, take = take_devices,
    text = "a worker for each of these; every cell runs on the next one that is free; all: every GPU"},
  {name = "timeout", argument = "T", take = take_timeout,
    text = "ends a cell after 60s, 5m, 2h, or 5x: in multiples of its estimate; 5x,1h: whichever is first"},
  {name = "host-memory", argument = "SIZE", take = options.size("host-memory"),
    text = "of the host, for a worker: a cell that needs more has status oom"},
  {name = "max-failures", argument = "N", take = options.whole("max-failures", 1),
    text = "stops when N cells in a row have failed"},
  {name = "retry", argument = "WORDS", take = take_retry,
    completes = {words = table.concat(selection.retry_words, " ")},
    text = "which rows of the file are made anew: none, all, stale, failed, or statuses (failed,stale)"},
  {name = "in-process", text = "cells in this process instead of workers: for debuggers"},
  {name = "on-done", argument = "CMD",
    text = "a shell command when the sweep has ended, with MEMTIDE_STATUS, MEMTIDE_CSV, MEMTIDE_OK ..."},
  {name = "on-fail", argument = "CMD", text = "this one instead, where the exit status is not 0"},
}
options.output = {name = "output", letter = "o", argument = "PATH", completes = {files = "*"},
  text = "cells: the list (NAME.cells.csv); slurm, stubs: the folder (NAME.slurm, .memtide); on standard output without it: the script of "
    .. "import, the picture of plot (.svg, .png, .vl.json), the page of report (.html)"}
-- for commands that deal the cells into parts
options.PARTS = {
  {name = "shards", argument = "N", take = options.whole("shards", 1),
    text = "how many parts the cells are dealt into (1)"},
  options.output,
}
-- for every command
options.ALL = {
  {name = "quiet", letter = "q", text = "nothing on standard error but errors"},
  {name = "verbose", letter = "v", text = "errors of a script with a traceback"},
  {name = "help", letter = "h", text = "this text"},
}

-- A list of options and of lists of them as one list without lists
function options.flat(list, out)
  out = out or {}
  for _, one in ipairs(list) do
    if one.name then out[#out + 1] = one else options.flat(one, out) end
  end
  return out
end

return options
