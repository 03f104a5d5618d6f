-- What fits: why a cell does not, and the largest batch that does. Both by prediction, so the answers are exact.
local cell = require "memtide.net.cell"
local estimate = require "memtide.sweep.estimate"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"

local max_batch = {}

-- Why the compiled cell does not fit, and how many bytes are missing; nil: it fits. If its prediction hit the limit, it
-- is replaced by one without a limit, which says how much the cell needs.
function max_batch.shortfall(self)
  local room = cell.room(self)
  if not self.prediction.fits then self.prediction = cell.predict(self) end
  local needs = cell.needs(self.prediction)
  if not room or needs <= room then return nil end
  return ("needs %d bytes, %d more than the %d of %s"):format(needs, needs - room, room,
    self.memory and "--memory" or self.values.device)
end

-- ---- the largest batch

-- The cell with that batch -> does it fit into `room` bytes? {batch, bytes, cost: estimate.cost, floor: bytes that larger batches
-- need, too}. Of larger batches all parts of the peak are larger but the workspace: a product may be computed in another way.
local function try(self, batch, room)
  local values = {}
  for key, value in pairs(self.values) do values[key] = value end
  values.batch = batch
  local probe = {experiment = self.experiment, values = values, name = self.name, places = {}, memory = room,
    estimate = self.estimate}
  local good, problem = pcall(function() return cell.compile(cell.build(probe)) end)
  if not good then
    cell.release(probe)
    -- above its checkpoint budget, as larger batches are
    if util.is_failure(problem) and problem.code == "oom" then return false, {batch = batch, floor = math.huge} end
    error(problem, 0)
  end
  local fits = probe.prediction.fits
  local whole = fits and probe.prediction or cell.predict(probe)
  local bytes, workspace = cell.needs(whole), self.values.allocator ~= "caching" and whole.peak.categories.workspace
  local at = {batch = batch, bytes = bytes, floor = workspace and bytes - workspace, cost = estimate.cost(probe)}
  cell.release(probe)
  return fits, at
end

local TRIES = 12    -- guesses along a straight line; after them bisection, which always ends
local FURTHEST = 16 -- a guess is at most this many times the batch that fits: small batches may all need the same

local function next_guess(low, high, slope, room, tries)
  if low.batch == 0 then return 1 end
  if tries > TRIES then return high.unknown and low.batch * 2 or (low.batch + high.batch) // 2 end
  local more = slope and math.floor((room - low.bytes) / slope) or 1
  return math.min(low.batch + more, low.batch * FURTHEST)
end

-- Two neighbouring batches {batch, bytes, cost}: the first fits (batch 0: none fits), the second does not (unknown:
-- there is no larger one). Bytes over the batch are close to a straight line, so few predictions are needed. A network may
-- refuse a batch of 1 alone: of one vector batch normalisation knows no variance.
local function border(self, room, most)
  local low, high, slope, tries = {batch = 0}, {batch = most + 1, unknown = true}, nil, 0
  while high.batch - low.batch > 1 do
    local guess = next_guess(low, high, slope, room, tries)
    local batch = math.max(low.batch + 1, math.min(guess, high.batch - 1))
    local good, fits, at = pcall(try, self, batch, room)
    if not good and (batch > 1 or most == 1 or util.is_interrupt(fits)) then error(fits, 0) end
    if not good then at = {batch = batch, refused = true} end
    if at.bytes and low.bytes then slope = math.max((at.bytes - low.bytes) / (at.batch - low.batch), 1) end
    if fits then low = at else high = at end
    tries = tries + 1
  end
  return low.refused and {batch = 0, least = 2} or low, high
end

-- A larger batch than one that does not fit may fit again, where a product of it needs less workspace, or with the caching allocator,
-- whose bytes depend on the holes between blocks. Tries larger batches while one may fit, and as many as are worth the time.
local function look_beyond(self, room, most, low, high)
  local at, fits = high, false
  while fits or at.batch < math.min(most, low.batch + low.batch // 4 + 1, low.batch + 64) and not (at.floor and at.floor > room) do
    if at.batch == most then return at, {batch = most + 1, unknown = true} end
    fits, at = try(self, at.batch + 1, room)
    if fits then low, high = at, nil else high = high or at end
  end
  return low, high
end

-- The largest batch that fits into `room` bytes, {batch (0: not even one sample fits), bytes, cost}, and the next
-- larger one, if there is one. least: the smallest that the network takes, if that is not 1. Exact with the planned allocator, but for what
-- look_beyond has no time for; of PyTorch's step two neighbours.
function max_batch.largest(self, room)
  local most = self.values.data and self.data.count or settings.MOST
  local low, high = border(self, room, most)
  if not high.unknown and self.values.framework ~= "pytorch" then low, high = look_beyond(self, room, most, low, high) end
  return low, not high.unknown and high or nil
end

-- Replaces `batch = "max"` of a built cell by the largest batch that fits: by the smallest if none fits, so that the row says
-- how much is missing.
function max_batch.settle(self)
  if self.values.batch ~= "max" then return end
  local _, room = cell.room(self)
  if not room then
    error(util.failure(('batch = "max": the size of %s is not known: give --memory'):format(self.values.device),
      "usage"), 0)
  end
  local found = max_batch.largest(self, room)
  self.values.batch = math.max(found.batch, found.least or 1)
  cell.release(self)
  cell.build(self)
end

return max_batch
