-- Readers that are written in Lua, or that a script has: functions (bytes, path of a file with them) for lua.c.
local mt = require "memtide"
local shards = require "memtide.sweep.shards"
local util = require "memtide.base.util"
local weights = require "memtide.net.weights"
local wire = require "memtide.sweep.wire"
local nn, optim = mt.nn, mt.optim

local targets = {}

-- The trainer and the loader whose states are read: every kind of buffer, in 8, 16 and 32 bits.
function targets.new_run()
  local trainer = assert(mt.trainer{model = nn.Sequential{nn.Embedding(6, 4), nn.Flatten(1), nn.Linear(8, 4),
    nn.BatchNorm1d(4), nn.Linear(4, 2)}, input = {2}, classes = 2, loss = nn.CrossEntropyLoss(), batch = 4,
    precision = "amp_fp16", optimizer = optim.AdamW8bit{lr = 0.01}})
  local data = mt.data.random{count = 16, shape = {2}, tokens = 6, classes = 2, seed = 3}
  return trainer, mt.data.loader{data, batch = 4, shuffle = true, seed = 9}
end

local trainer, loader
local runs = 0

-- A state is loaded; or it is refused, with a message and without a control character in it.
function targets.state(_, path)
  local function step()
    local x, y = loader:epoch()()
    assert(trainer:step(x, y))
  end
  if not trainer then
    trainer, loader = targets.new_run()
    step() -- what the first one makes stays
  end
  runs = runs + 1
  local good, done, message, code = pcall(weights.load_state, trainer, path, {loader = loader, strict = runs % 2 == 0})
  local text = not good and done or message
  if good and done then
    if runs % 50 == 0 then step() end
    return
  end
  assert(type(text) == "string" and #text > 0 and not text:find "%c", "a message that is none")
  assert(not good or code == "format" or code == "unsupported", "a code that is none")
end

local function same(a, b)
  if type(a) ~= type(b) or math.type(a) ~= math.type(b) then return false end
  if type(a) ~= "table" then return a == b or a ~= a and b ~= b end
  for key, value in pairs(a) do if not same(value, b[key]) then return false end end
  for key in pairs(b) do if a[key] == nil then return false end end
  return true
end

local function check_sent(value)
  assert(same(value, wire.reader()(wire.frame(value))), "a message that changes when it is sent")
end

-- Bytes as a recipe: the value that they say, and where the rest of them begins.
local MAKE = {
  function(_, at) return true, at end,
  function(_, at) return false, at end,
  function(bytes, at) return ("<i8"):unpack(bytes .. ("\0"):rep(8), at), at + 8 end,
  function(bytes, at) return ("<d"):unpack(bytes .. ("\0"):rep(8), at), at + 8 end,
  function(bytes, at)
    local n = (bytes:byte(at) or 0) % 32
    return bytes:sub(at + 1, at + n), at + 1 + n
  end,
}

local function make(bytes, at, depth)
  local kind = (bytes:byte(at) or 0) % (#MAKE + 1) + 1
  if MAKE[kind] then return MAKE[kind](bytes, math.min(at + 1, #bytes + 1)) end
  local out = {}
  at = at + 1
  for i = 1, depth > 0 and (bytes:byte(at) or 0) % 8 or 0 do
    local key, value
    key, at = make(bytes, math.min(at + 1, #bytes + 1), 0)
    value, at = make(bytes, math.min(at, #bytes + 1), depth - 1)
    out[(type(key) == "string" or math.type(key) == "integer") and key or i] = value
  end
  return out, math.min(at, #bytes + 1)
end

-- Bytes are a message or damaged, and nothing else; one that is taken, or made of them, is the same when it is sent. In
-- pieces it reads as at once.
function targets.wire(bytes)
  check_sent((make(bytes, 1, 5)))
  local good, value = pcall(wire.reader(), bytes)
  if not good then
    assert(type(value) == "string" and value:find "^a damaged message at byte %d+$", tostring(value))
    return
  end
  if value == nil then return end
  check_sent(value)
  local read, pieces = wire.reader(), nil
  for i = 1, #bytes, 7 do
    local well, found = pcall(read, bytes:sub(i, i + 6))
    if not well then return end -- at what stands after the first message
    if found ~= nil then
      pieces = found
      break
    end
  end
  assert(same(value, pieces), "a message that is another one in pieces")
end

-- A list of cells is read, or refused as a damaged file.
function targets.list(_, path)
  local good, found = pcall(shards.read, path)
  if not good then
    assert(util.is_failure(found) and found.code == "format" and not found.message:find "%c", tostring(found))
    return
  end
  assert(#found > 0 and found.of > 0, "a list without cells")
end

return targets
