# memtide --safe: what a script cannot reach, and what it still can.
. tests/tap.sh
echo secret >outside.txt
mkdir -p box/sub elsewhere
cat >make.lua <<'E'
local function npy(path)
  local header = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2), }"
  header = header .. (" "):rep(63 - (10 + #header) % 64) .. "\n"
  local file = assert(io.open(path, "wb"))
  file:write("\x93NUMPY\1\0", ("<s2"):pack(header), ("\0"):rep(32))
  file:close()
end
for _, path in ipairs(arg) do npy(path) end
E
memtide make.lua outside.npy box/inside.npy box/sub/inside.npy
ln -s ../outside.npy box/link.npy
ln -s ../elsewhere box/folder
ln -s /etc box/etc
ln -s inside.npy box/good.npy
ln -s ../elsewhere/new.safetensors box/dangling.safetensors
ln -s helper.lua box/code.safetensors
cat >box/helper.lua <<'E'
return {io = rawget(_G, "io"), answer = 42, name = ...}
E
echo 'return "foreign"' >outside.lua
ln -s ../outside.lua box/linked.lua

cat >box/objects.lua <<'E'
-- one of everything that memtide hands to a script
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local model = nn.Sequential{nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)}
local data = mt.data.random{count = 8, shape = {2}, classes = 2}
local loss = nn.CrossEntropyLoss()
local trainer = assert(mt.trainer{model = model, input = {2}, classes = 2, batch = 2, loss = loss,
  optimizer = optim.Adam{lr = 1e-3}})
local seen = {}
local graph = nn.Graph{fc = nn.Linear(2, 2), forward = function(self, x)
  seen.self, seen.x = self, x
  return self.fc(x)
end}
local _, failure = pcall(mt.data.npy, "none.npy")
return {mt = mt, model = model, data = data, loss = loss, trainer = trainer, graph = graph, seen = seen,
  failure = failure, loader = mt.data.loader{data, batch = 2}, adam = optim.Adam{lr = 1}, step = optim.StepLR(3),
  experiment = mt.experiment{name = "objects", input = {2}, classes = 2, loss = loss, model = model, steps = 1}}
E

# Each prints what it did; "safe" or an error is right.
cat >box/attempts.lua <<'E'
local mt = require "memtide"
local objects = require "objects"
local escaped, tried = {}, 0
local function try(name, f)
  tried = tried + 1
  local good, found = pcall(f)
  if good and found then escaped[#escaped + 1] = name end
end
local function real(name) return function() return rawget(_G, name) end end
for _, name in ipairs{"io", "debug", "package", "dofile", "loadfile"} do try(name, real(name)) end
for _, name in ipairs{"execute", "remove", "rename", "exit", "getenv", "tmpname", "setlocale"} do
  try("os." .. name, function() return os[name] end)
end
try("string.dump", function() return string.dump end)
try("dump of a string", function() return (""):dump() end)
try("dump found", function() return ("").dump end)
try("metatable of strings", function() return getmetatable("").__index end)
try("the real string library", function()
  string.format = function() return "mine" end
  return ("%d"):format(1) == "mine"
end)
try("bytecode", function() return load("\27Lua", "x", "b") end)
try("bytecode in pieces", function()
  local n = 0
  return load(function() n = n + 1 return ({"\27", "Lua"})[n] end)
end)
try("load's globals", function() return load("return io")() end)
try("load's globals, nil", function() return load("return _ENV", "x", "t", nil)() end)
try("load with globals", function() return load("return io", "x", "t", {io = nil})() end)
try("_ENV of a chunk", function() return load("return _ENV.io or _G.io")() end)
for _, name in ipairs{"memtide.core", "memtide.sweep.script", "memtide.base.util", "memtide.digits", "memtide.cli.cli", "io", "os",
  "debug", "package", "_G", "string", "../outside", "..outside", "/etc/passwd", "linked", "sub/../../outside", "none",
  "helper\0"} do
  try("require " .. name, function() return require(name) end)
end
try("a module's globals", function() return require "helper".io end)
-- every object, every field, every metatable: nothing of the system, and no class
local FORBIDDEN = {"execute", "popen", "loadlib", "cpath", "searchers", "getregistry", "sethook", "getupvalue",
  "spawn", "new_file", "save_tensors", "safetensors", "dataset_npy", "confine", "preload", "dump"}
local walked, found = {}, {}
local function walk(value, path)
  if type(value) ~= "table" or walked[value] or #path > 200 then return end
  walked[value] = true
  for _, name in ipairs(FORBIDDEN) do
    if rawget(value, name) ~= nil then found[#found + 1] = path .. "." .. name end
  end
  if rawget(value, "__index") ~= nil then found[#found + 1] = path .. " is a metatable" end
  local meta = getmetatable(value)
  if meta then found[#found + 1] = path .. " has a metatable" end
  for _, name in ipairs{"__index", "__gc", "__metatable", "__close", "__name", "__tostring"} do
    local good, item = pcall(function() return value[name] end)
    if good and type(item) == "table" then found[#found + 1] = path .. " gives " .. name end
  end
  for key, item in next, value do
    walk(key, path .. ".key")
    walk(item, path .. "." .. tostring(key))
  end
end
walk(_G, "_G")
walk(objects, "objects")
try("something of the system: " .. table.concat(found, ", "), function() return found[1] end)
local count = 0
for _ in pairs(walked) do count = count + 1 end
if count < 40 then escaped[#escaped + 1] = ("a walk that saw %d tables only"):format(count) end
objects.mt, objects.seen = nil, nil -- plain tables
for name, object in pairs(objects) do
  try("another metatable for " .. name, function() return setmetatable(object, {}) end)
  try("metatable of " .. name, function() return getmetatable(object) end)
  try("class of " .. name, function() return type(object) ~= "userdata" and rawget(object, "__index") end)
end
try("metatable of globals", function() return getmetatable(_G) end)
try("metatable of globals, set", function() return setmetatable(_G, nil) end)
try("own metatables, hidden", function()
  return getmetatable(setmetatable({}, {__metatable = "mine"})) ~= "mine"
end)
try("a class that is changed", function()
  objects.trainer.__index = {save = print}
  return objects.trainer.save == print
end)
-- files
local trainer = objects.trainer
for _, path in ipairs{"outside.npy", "../outside.npy", "/etc/passwd", "box/../outside.npy", "box/link.npy",
  "box/folder/x.npy", "box/etc/passwd", "box/../box/../outside.npy", "/proc/self/exe", "/dev/zero", "", ".", "box/..",
  "/proc/self/cwd/outside.npy", "box/sub/../../outside.npy", "box\0/inside.npy", "box/inside.npy\0/../../outside.npy",
  "boxes/x.npy"} do
  for _, reader in ipairs{
    function() return mt.data.npy(path) end, function() return mt.data.npy("box/inside.npy", path) end,
    function() return mt.data.idx(path, path) end, function() return mt.data.cifar10{path} end,
    function() return mt.data.tar{path} end,
    function() return mt.data.text{file = path, window = 1} end, function() return mt.data.exists(path) end,
    function() return mt.data.mnist(path) end, function() return mt.data.cifar10(path, "test") end,
    function() return trainer:load(path, {strict = false}) end, function() return trainer:load_state(path) end,
  } do try("reading " .. path, reader) end
end
for _, path in ipairs{"x.safetensors", "../x.safetensors", "/tmp/x.safetensors", "box/../x.safetensors",
  "box/folder/x.safetensors", "box/dangling.safetensors", "box/code.safetensors", "box/attempts.lua", "box/x.csv",
  "box/x.safetensors/..", "box/evil.lua\0.safetensors", "/dev/full", "/dev/stdout", "box/none/x.safetensors"} do
  try("writing " .. path, function() return trainer:save(path) end)
  try("saving a state in " .. path, function() return trainer:save_state(path) end)
end
try("nothing is there outside", function()
  local _, one = pcall(mt.data.exists, "outside.npy")
  local _, two = pcall(mt.data.exists, "nothing.npy")
  return one:gsub("^[^ ]*", ""):gsub("outside", "nothing") ~= two:gsub("^[^ ]*", "")
end)
try("the time", function() return not (os.time() and os.clock() and os.date() and os.difftime(1, 0)) end)

-- what a script needs
assert(mt.data.npy("box/inside.npy"):info().count == 4 and mt.data.npy("box/good.npy"))
assert(mt.data.exists("box/sub/inside.npy") and not mt.data.exists("box/sub/none.npy"))
assert(require "helper".answer == 42 and require "helper".name == "helper" and require "helper" == require "helper")
assert(trainer:save("box/sub/new.safetensors") and trainer:load("box/sub/new.safetensors"))
assert(trainer:save_state("box/state.safetensors") and trainer:load_state("box/state.safetensors"))
local own = setmetatable({}, {__index = function(_, name) return name .. "!" end})
assert(own.x == "x!" and getmetatable(own).__index and setmetatable(own, nil) == own)
assert(load("return ...", "x")(3) == 3 and load("x = 1; return x", "x", "t", {})() == 1)
assert(coroutine.wrap(function() coroutine.yield(1) end)() == 1 and ("x"):rep(2) == "xx" and utf8.char(65) == "A")
assert(trainer:step({1, 2, 3, 4}, {0, 1}) and tostring(objects.model):find "Linear")
print(("%d tried, escaped:%s"):format(tried, #escaped > 0 and "\n" .. table.concat(escaped, "\n") or " none"))
return objects.experiment
E
memtide --safe box/attempts.lua
is "$status $err" "0 memtide: box/attempts.lua is an experiment: memtide run box/attempts.lua" "a safe script runs"
has "$out" "tried, escaped: none" "and escapes nowhere"
is "$(find elsewhere ./*.safetensors /tmp/x.safetensors -type f 2>/dev/null)" "" "it has written nothing outside"
is "$(head -c 6 box/helper.lua)" "return" "nor over code"

# ---- commands and workers
cat >box/sweep.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
local helper = require "helper"
local function doors()
  return rawget(_G, "io") or rawget(_G, "debug") or os.execute or pcall(require, "memtide.core")
end
assert(not doors(), "an open door")
return mt.experiment{name = "safe", input = {2}, classes = 2, loss = nn.CrossEntropyLoss(), steps = 1, warmup = 0,
  data = mt.data.exists("box/labels.npy") and mt.data.npy("box/inside.npy") or nil, model_name = "m",
  model = function(s)
    assert(not doors(), "an open door")
    if s.batch == 4 then error(pcall(mt.data.npy, "outside.npy") and "read it" or "could not read it", 0) end
    return nn.Linear(2, helper.answer - 40)
  end, sweep = {{"batch", {1, 2, 4}}}, where = function() return not doors() end}
E
memtide run --safe box/sweep.lua
is "$status $(cut -d, -f 18 safe.csv | tr '\n' ' ')" "1 status ok ok error " "run: workers are safe too"
is "$(grep -c 'could not read it' safe.csv)" 1 "and confined"
rm safe.*
one="--case batch=2"
for command in "run --in-process $one" "predict $one" "status $one" "fit --set batch=2 --memory 1GiB" "explain $one" \
    "profile $one" "dump $one" "cells $one"; do
    memtide --safe $command box/sweep.lua
    is "$status $(echo "$err" | grep -c door)" "0 0" "memtide --safe $command"
    memtide $command box/sweep.lua
    has "$err" "an open door" "without it the doors are open"
done
memtide --safe tune box/sweep.lua
is "$(echo "$err" | grep -c door)" 0 "tune"
memtide help run box/sweep.lua --safe
is $status 0 "help of a script"
memtide --safe verify safe.csv box/sweep.lua
is "$(echo "$err" | grep -c door)" 0 "verify"
memtide slurm box/sweep.lua --safe
has "$(cat safe.slurm/array.sh)" "'--safe'" "Slurm's jobs run it safely"
memtide --safe compare a.csv b.csv
is "$status $err" "2 memtide: compare: --safe is no option of this command; of: $(echo "$err" | sed 's/.*of: //')" \
    "no option where there is no script"

# ---- what the script changes behind its back
for name in '"../evil"' '"/tmp/evil"' 'setmetatable({}, {__concat = function() return "../evil.csv" end})' \
    '{gsub = function() return "$(touch ../evil)" end}'; do
    cat >box/rename.lua <<E
local mt = require "memtide"
local nn = mt.nn
local e
e = mt.experiment{name = "renamed", input = {2}, classes = 2, loss = nn.CrossEntropyLoss(), steps = 1, warmup = 0,
  model_name = "m", model = nn.Linear(2, 2), where = function() e.name = $name return true end}
e.name = $name
return e
E
    for command in run cells "slurm --shards 1" "status" watch; do memtide --safe $command box/rename.lua; done
    is "$(ls -d ../evil* /tmp/evil* evil* 2>/dev/null)" "" "a name that is changed: $name"
done

# ---- from standard input, and -e
echo 'print(pcall(require "memtide".data.npy, "../x.npy"))' | "$MEMTIDE" --safe - >out.txt
has "$(cat out.txt)" "is no file below $(pwd -P)/, to which --safe keeps the script" \
    "standard input: the current folder"
memtide --safe -e 'print(pcall(function() return io end))'
has "$out" 'undefined variable "io": --safe leaves it out' "what is left out is said to be"
memtide --safe -l memtide -e 'print(memtide.version)'
is "$status" 0 "-l"
memtide --safe -l memtide.core -e 'print(1)'
has "$err" 'require: --safe has "memtide" and not "memtide.core"' "of memtide alone"
finish
