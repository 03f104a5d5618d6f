-- What is known of the moment in which a step was timed, and whether it speaks against the time.
local core = require "memtide.core"

local evidence = {}
local Evidence = {}
Evidence.__index = Evidence

local EVERY = 0.05       -- seconds from one look at /proc, /sys and the GPU to the next: a look takes time, too
local PREEMPTED = 20     -- of times that another process was put in this one's place, in a second: more disturb
local SLOWED = 0.8       -- of the highest clock that was seen: below, the clock has dropped
local TICK_MS = 10       -- of /proc/stat: USER_HZ is 100 on every Linux

-- The words of a device's throttle that speak against a time. A power limit does not: at full load it is the rule.
local THROTTLE = {thermal = true, brake = true}

local function first_line(path)
  local file = io.open(path, "r")
  local line = file and file:read("l")
  if file then file:close() end
  return line
end

-- Text of /proc/stat's first line -> milliseconds that the host gave to other guests since it was started
function evidence.steal_ms(line)
  local steal = line and line:match("^cpu +" .. ("%d+ "):rep(7) .. "(%d+)")
  return steal and math.tointeger(tonumber(steal)) * TICK_MS
end

local function look(device)
  local found = device and device:evidence() or {}
  local khz = tonumber(first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq") or "")
  found.cpu_mhz = khz and math.floor(khz / 1000)
  found.load = tonumber((first_line("/proc/loadavg") or ""):match("^[%d.]+") or "")
  found.stolen = evidence.steal_ms(first_line("/proc/stat"))
  return found
end

-- The words that say why a sample should not count, "" when it should. best: the highest clocks so far.
function evidence.flag(sample, best)
  local words = {}
  local function check(bad, word) if bad then words[#words + 1] = word end end
  check(sample.preempted > PREEMPTED * math.max(sample.seconds, 1e-9), "preempted")
  check((sample.steal_ms or 0) > 0, "steal")
  check(sample.cpu_mhz and sample.cpu_mhz < SLOWED * best.cpu_mhz, "cpu_clock")
  check(sample.gpu_mhz and sample.gpu_mhz < SLOWED * best.gpu_mhz, "gpu_clock")
  for word in (sample.gpu_throttle or ""):gmatch("%a+") do check(THROTTLE[word], word) end
  return table.concat(words, " ")
end

-- device: an open device
function evidence.new(device)
  local self = setmetatable({device = device, open = {}, best = {cpu_mhz = 0, gpu_mhz = 0}}, Evidence)
  self.last, self.looked = look(device), core.clock()
  self.switches, self.preempted = core.switches()
  return self
end

local SEEN = {"load", "cpu_mhz", "gpu_mhz", "gpu_memory_mhz", "gpu_celsius", "gpu_throttle"}

-- A look, which tells of all samples since the last one.
function Evidence:look()
  local now = look(self.device)
  local stolen = now.stolen and self.last.stolen and now.stolen - self.last.stolen
  for name, value in pairs(self.best) do self.best[name] = math.max(value, now[name] or 0) end
  for _, sample in ipairs(self.open) do
    for _, name in ipairs(SEEN) do sample[name] = now[name] end
    sample.steal_ms = stolen
    sample.flag = evidence.flag(sample, self.best)
  end
  self.last, self.looked, self.open = now, core.clock(), {}
end

-- After every step; `last`: nothing follows for a while.
function Evidence:take(sample, last)
  local switches, preempted = core.switches()
  sample.switches, sample.preempted = switches - self.switches, preempted - self.preempted
  self.open[#self.open + 1] = sample
  if last or core.clock() - self.looked >= EVERY then self:look() end
  self.switches, self.preempted = core.switches()
end

return evidence
