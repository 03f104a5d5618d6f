-- Batches that a script's own iterator hands out: what an experiment's `data` is if its function returns no dataset. An
-- iterator is a function, or a table whose method `next` is called: each call gives x, y of a micro-batch, nil at the end
-- of a pass over the data. Then the experiment's function makes another one. It is asked for batches by a run alone.
local core = require "memtide.core"
local util = require "memtide.base.util"

local iterator = {}

local Iterator = {__name = "memtide.iterator"}
Iterator.__index = Iterator

-- The function that gives the batches; nil: the value is no iterator.
local function next_of(value)
  if type(value) == "function" then return value end
  local there, method = pcall(function() return type(value) == "table" and value.next end)
  return there and type(method) == "function" and function() return method(value) end or nil
end

-- made: what the function `again` has returned for the first time; nil: it is no iterator.
function iterator.new(made, again)
  return next_of(made) and setmetatable({made = made, again = again}, Iterator)
end

function iterator.is(value) return getmetatable(value) == Iterator end

-- Nothing is known of the data before a run: shapes are what the experiment says.
function Iterator.info() return {} end

-- ---- a run's batches

local Batches = {}
Batches.__index = Batches

local function start(self)
  self.next = next_of(self.source.made or self.source.again()) or
    util.fail "data: expected another iterator from the function, which gave one before"
  self.source.made = nil -- each run has one of its own
end

local function take(self)
  local x, y = self.next()
  if x == nil then
    start(self)
    x, y = self.next()
  end
  if x == nil then util.fail "data: expected at least one batch of a new iterator, found none" end
  self.taken = self.taken + 1
  return {x, y, self.taken}
end

-- The values of a batch, 4 bytes each, or bytes: they do not change when the iterator uses its table again.
local function pack(self, one)
  local x, of = {}, ("data: batch %d: "):format(one[3])
  for _, input in ipairs(self.inputs) do
    local named = input.name ~= ""
    if named and type(one[1]) ~= "table" then
      util.fail("%sexpected a table with a value for each of the network's inputs, such as {%s = ...}", of, input.name)
    end
    x[input.name] = core.pack(named and one[1][input.name] or not named and one[1] or nil, false,
      of .. (named and input.name or "input"), input.bytes)
  end
  local y = core.pack(one[2], self.labels, of .. "target")
  return {x[""] or x, y, one[3]}
end

-- This rank's of the next batches, one for each rank: nobody but the iterator can skip those of others.
local function take_own(self)
  local own
  for rank = 0, self.world - 1 do
    local one = take(self)
    if rank == self.rank then own = self.world > 1 and pack(self, one) or one end
  end
  return own
end

-- x, y, number of the batch
function Batches:__call()
  if self.prefetch == 0 then return table.unpack(take_own(self), 1, 3) end
  while #self.ahead <= self.prefetch do self.ahead[#self.ahead + 1] = pack(self, take_own(self)) end
  return table.unpack(table.remove(self.ahead, 1), 1, 3)
end

-- As a loader's.
function Batches:info() return {prefetch = self.prefetch, bytes = self.prefetch * self.bytes} end
function Batches:close() self.ahead = {} end
Batches.__close = Batches.close

-- options: {prefetch = batches ahead, inputs = as network:inputs() gives them, labels = are targets labels?, targets = of
-- a micro-batch, world = ranks that take batches in turns, rank = this one}
function Iterator:open(options)
  local bytes = 4 * options.targets
  for _, input in ipairs(options.inputs) do
    local n = 1
    for _, size in ipairs(input.shape) do n = n * size end
    bytes = bytes + (input.bytes and 1 or 4) * n
  end
  local batches = setmetatable({source = self, prefetch = options.prefetch, inputs = options.inputs, bytes = bytes,
    labels = options.labels, world = options.world, rank = options.rank, ahead = {}, taken = 0}, Batches)
  start(batches)
  return batches
end

return iterator
