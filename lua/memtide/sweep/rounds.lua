-- In which order and how often the cells of a sweep are visited: once each in the script's order; or, if reliable times
-- are asked for (measure.lua), in rounds. A round visits every cell that needs a visit once, in an order drawn from the
-- seed, so that drifts (heat, clocks, other processes) affect all cells alike.
local core = require "memtide.core"
local measure = require "memtide.results.measure"
local samples = require "memtide.results.samples"
local stats = require "memtide.results.stats"

local rounds = {}
local Rounds = {}
Rounds.__index = Rounds

local MOST = 100 -- rounds

-- The least and the most visits of a cell, if each takes so many seconds.
function rounds.visits(base, seconds)
  if not measure.holds(base) then return 1, 1 end
  local limit = base.time_limit or measure.TIME_LIMIT
  local most = seconds > limit / MOST and math.max(math.ceil(limit / seconds), 1) or MOST
  local least = math.min(base.rounds or 1, most)
  return least, base.confidence and most or least
end

-- count: number of cells; path: of the rows, whose samples of earlier runs count, or nil; order: an iterator over the
-- cells for sweeps that visit them once, nil: the script's order.
function rounds.new(experiment, purpose, count, path, order)
  local base = experiment.base
  local self = setmetatable({base = base, round = 1, at = 0, count = count, order = order}, Rounds)
  if purpose ~= "run" or not measure.holds(base) then return self end
  self.holds, self.again, self.of = true, {}, {}
  self.before = path and samples.read(path)
  local all = {}
  for k = 1, count do all[k] = k end
  self:shuffle(all)
  return self
end

function Rounds:shuffle(list)
  self.list = stats.shuffled(list, (self.base.seed or 1) + self.round)
  self.at, self.count = 0, #list
end

-- The next cell's number; nil: there is none, or none until a worker has ended its cell.
function Rounds:next()
  if self.at == self.count and self.again and #self.again > 0 then
    table.sort(self.again) -- so that the order does not depend on which worker was first
    self.round = self.round + 1
    self:shuffle(self.again)
    self.again = {}
  end
  if self.order and not self.holds then return self.order() end
  if self.at == self.count then return nil end
  self.at = self.at + 1
  return self.list and self.list[self.at] or self.at
end

local function state_of(self, row)
  local key = row.cell .. " " .. row["repeat"]
  if not self.of[key] then
    local state = {visits = {}, spent = 0, last = 0}
    for _, visit in ipairs(self.before and self.before:visits(row) or {}) do
      state.visits[#state.visits + 1] = visit
      state.last = math.max(state.last, visit.round)
      for _, sample in ipairs(visit) do state.spent = state.spent + sample.seconds end
    end
    self.of[key] = state
  end
  return self.of[key], key
end

-- The number of this visit of the cell with this row, from 1.
function Rounds:number(row)
  if not self.holds then return 1 end
  local state = state_of(self, row)
  state.last = state.last + 1
  return state.last
end

local function enough(base, state)
  if state.spent >= (base.time_limit or measure.TIME_LIMIT) or #state.visits >= MOST then return true end
  if #state.visits < (base.rounds or 1) then return false end
  local width = stats.half_width(stats.interval((samples.counted(state.visits))))
  return not base.confidence or width ~= nil and width <= base.confidence
end

-- A visit of cell k, begun at `begun`, has ended with the samples `list`. Returns all seconds of the cell that count, and those
-- of their graphs; nil: the cell needs another visit.
function Rounds:visited(k, row, list, begun)
  assert(self.holds)
  local state, key = state_of(self, row)
  state.visits[#state.visits + 1] = list
  state.spent = state.spent + core.clock() - begun
  if not enough(self.base, state) then
    self.again[#self.again + 1] = k
    return nil
  end
  self.of[key] = nil
  return samples.joined((samples.counted(state.visits))), samples.joined((samples.counted(state.visits, "graph_seconds")))
end

return rounds
