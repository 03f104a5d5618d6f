-- How long steps will take, from the operations and bytes of the program and two rates that are learnt from measured
-- steps, for each device and precision:
--
--   seconds = flops * a + traffic * b, with a, b >= 0
--
-- a and b minimise the sum of squared relative errors. Of the measured steps only the six sums that this needs are
-- kept, in a file of the user's cache, so that one sweep helps to estimate the next. Steps that offload have rates of
-- their own, because neither rate includes transfers to the host. If nothing was measured yet, the time is known to be
-- at least the floor of a device whose peaks are known; for other devices nothing is known.
local cards = require "memtide.net.cards"
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local user_files = require "memtide.base.user_files"
local util = require "memtide.base.util"

local estimate = {}
local Rates = {}
Rates.__index = Rates

local GUESSED = math.log(8) -- spread of a guess from another precision, and of a floor
local RELATIVE = {a = 1e-11, b = 2e-11} -- typical weights of operations and bytes, to compare cells without a time
local LEAST_SPREAD, FEW_SPREAD = math.log(1.1), math.log(2)
local MEMORY = 200 -- steps after which older ones count less in the sums
local NAMES = {"n", "ff", "ft", "tt", "f", "t"}

-- Seconds of one step if the device worked at the peaks of its data sheet all the time; nil: they are not known.
local function floor_of(self, info)
  local peaks = info and cards.peaks(info.name)
  if not peaks then return nil end
  return cell.floor(self, peaks[self.values.precision:match "%w+$"], peaks.bytes)
end

-- What an estimate needs of a compiled cell, as values that wire.lua can send: {key, flops, traffic, steps, floor,
-- room}
function estimate.cost(self)
  assert(self.program and self.prediction)
  local info = cell.device(self.values.device):info()
  local flops, traffic = cell.cost(self)
  local key = ("%s, %d threads, %s%s"):format(info and info.name or self.values.device, info and info.threads or 0,
    self.values.precision, self.prediction.host > 0 and " with offloading" or "")
  return {key = key, flops = flops, traffic = traffic, steps = self.warmup + self.steps,
    floor = floor_of(self, info), room = self.memory or info and info.memory_total}
end

-- ---- the file: a line per device and precision

local function read(path)
  local sums, file = {}, io.open(path, "r")
  for line in file and file:lines() or function() end do
    local key, numbers, one = line:match("^([^\t]+)\t(.*)$"), line:match("\t(.*)$"), {}
    for word in (numbers or ""):gmatch("%S+") do
      local name, x = NAMES[#one + 1], tonumber(word)
      if name and x and x >= 0 and x < math.huge then one[name], one[#one + 1] = x, x end
    end
    if key and #one == #NAMES then sums[key] = one end
  end
  if file then file:close() end
  return sums
end

-- path: of the file; nil: the one in the user's cache, false: no file
function estimate.new(path)
  if path == nil then path = user_files.path "rates.txt" end
  return setmetatable({path = path, sums = path and read(path) or {}, fresh = {}}, Rates)
end

local function add(sums, key, one)
  local of = sums[key]
  if not of then of = {}; sums[key] = of end
  local keep = (of.n or 0) > MEMORY and MEMORY / of.n or 1
  for _, name in ipairs(NAMES) do of[name] = (of[name] or 0) * keep + one[name] end
end

-- Learns that a step of this cost took `seconds`.
function Rates:learn(cost, seconds)
  if seconds <= 0 or cost.flops + cost.traffic <= 0 then return end
  local f, t = cost.flops / seconds, cost.traffic / seconds
  local one = {n = 1, ff = f * f, ft = f * t, tt = t * t, f = f, t = t}
  add(self.sums, cost.key, one)
  add(self.fresh, cost.key, one)
end

-- Adds what was learnt to the file, which another sweep may have changed meanwhile. If it cannot be written, nothing is
-- said: estimates are not worth an error.
function Rates:save()
  if not self.path or not next(self.fresh) then return end
  local sums = read(self.path)
  for key, one in pairs(self.fresh) do add(sums, key, one) end
  self.fresh = {}
  local lines = {}
  for _, key in ipairs(util.sorted_keys(sums)) do
    local words = {}
    for i, name in ipairs(NAMES) do words[i] = core.number(sums[key][name]) end
    lines[#lines + 1] = key:gsub("%s", " ") .. "\t" .. table.concat(words, " ") .. "\n"
  end
  user_files.write(self.path, table.concat(lines))
end

-- ---- estimates

-- The rates a and b from the sums. If both cannot be positive, the one that explains more is used alone.
local function solve(s)
  local det = s.ff * s.tt - s.ft * s.ft
  if det > 1e-9 * s.ff * s.tt then
    local a, b = (s.f * s.tt - s.t * s.ft) / det, (s.t * s.ff - s.f * s.ft) / det
    if a >= 0 and b >= 0 then return a, b end
  end
  local only_f, only_t = s.ff > 0 and s.f / s.ff or 0, s.tt > 0 and s.t / s.tt or 0
  if only_f * s.f >= only_t * s.t then return only_f, 0 end
  return 0, only_t
end

-- {a, b, spread}: judged by the errors so far, a step takes at most e^spread times more or less than estimated.
local function rates(s)
  local a, b = solve(s)
  local left = s.n + a * a * s.ff + 2 * a * b * s.ft + b * b * s.tt - 2 * (a * s.f + b * s.t)
  local deviation = math.sqrt(math.max(left, 0) / math.max(s.n - 2, 1))
  local least = s.n > 2 and LEAST_SPREAD or FEW_SPREAD
  return {a = a, b = b, spread = math.max(math.log(1 + 2 * deviation), least), learnt = true}
end

-- Rates of the device's other precisions, as a guess for one that was never measured; nil: no precision was.
local function guess(self, key)
  local device, sums = key:match("^(.*),") or key, {}
  for other, one in pairs(self.sums) do if other:match("^(.*),") == device then add(sums, device, one) end end
  local found = sums[device] and rates(sums[device])
  return found and {a = found.a, b = found.b, spread = GUESSED}
end

-- {seconds, low, high, learnt, source} of one step; it will lie between low and high. source: "estimated" (from
-- measured steps), "guessed" (from another precision) or "floor" (from the device's peaks). nil: nothing is known.
function Rates:step(cost)
  local sums = self.sums[cost.key]
  local r = sums and sums.n >= 1 and rates(sums) or guess(self, cost.key)
  if not r then
    local least = cost.floor
    return least and {seconds = least, low = least, high = least * math.exp(GUESSED), learnt = false, source = "floor"}
  end
  local seconds = cost.flops * r.a + cost.traffic * r.b
  return {seconds = seconds, low = seconds / math.exp(r.spread), high = seconds * math.exp(r.spread),
    learnt = r.learnt or false, source = r.learnt and "estimated" or "guessed"}
end

-- The same for all steps of the cell.
function Rates:cell(cost)
  local step = self:step(cost)
  if not step then return nil end
  return {seconds = step.seconds * cost.steps, low = step.low * cost.steps, high = step.high * cost.steps,
    learnt = step.learnt, source = step.source}
end

-- A number to compare steps by if no times are known.
function estimate.relative(cost) return cost.flops * RELATIVE.a + cost.traffic * RELATIVE.b end

-- 75 -> "1 min 15 s"
function estimate.show(seconds)
  if seconds < 1e-3 then return ("%.3g us"):format(seconds * 1e6) end
  if seconds < 1 then return ("%.3g ms"):format(seconds * 1e3) end
  if seconds < 60 then return ("%.1f s"):format(seconds) end
  local minutes = math.floor(seconds / 60)
  if minutes < 60 then return ("%d min %d s"):format(minutes, math.floor(seconds % 60)) end
  return ("%d h %d min"):format(minutes // 60, minutes % 60)
end

return estimate
