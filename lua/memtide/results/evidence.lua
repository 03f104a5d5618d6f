-- The state of the machine while a step was timed, and whether it makes the time doubtful.
local core = require "memtide.core"

local evidence = {}
local Evidence = {}
Evidence.__index = Evidence

local EVERY = 0.05       -- seconds between two looks at /proc, /sys and the GPU, because a look takes time too
-- Involuntary context switches per second; more of them disturb a time. The kernel's own work makes up to 75 or so on a quiet machine of two
-- processors, which costs no time that one could measure. A thread that shares its processor with a busy one is preempted after each of its
-- slices: with Linux's 250 ticks a second every 8 ms, 125 times a second, and takes twice the time. (With 100 ticks it would be
-- 50 times, which is not told from quiet.)
local PREEMPTED = 100
local SLOWED = 0.8       -- part of the highest clock seen so far; a clock below it has dropped
local TICK_MS = 10       -- of /proc/stat: USER_HZ is 100 on every Linux

-- Reasons for throttling that make a time doubtful. A power limit is not one of them: at full load it is normal.
local THROTTLE = {thermal = true, brake = true}

local function first_line(path)
  local file = io.open(path, "r")
  local line = file and file:read("l")
  if file then file:close() end
  return line
end

-- First line of /proc/stat -> milliseconds since boot that the host gave to other virtual machines; nil: not there
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

-- The words that say why a sample should not count; "": it counts. best: the highest clocks so far.
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

-- device: an open device, or nil
function evidence.new(device)
  local self = setmetatable({device = device, open = {}, looked_at = {}, best = {cpu_mhz = 0, gpu_mhz = 0}}, Evidence)
  self.last, self.looked = look(device), core.clock()
  self.switches, self.preempted = core.switches()
  return self
end

local SEEN = {"load", "cpu_mhz", "gpu_mhz", "gpu_memory_mhz", "gpu_celsius", "gpu_throttle"}

-- Looks at the machine; what it finds goes into all samples since the last look.
function Evidence:look()
  local now = look(self.device)
  local stolen = now.stolen and self.last.stolen and now.stolen - self.last.stolen
  for name, value in pairs(self.best) do self.best[name] = math.max(value, now[name] or 0) end
  for _, sample in ipairs(self.open) do
    for _, name in ipairs(SEEN) do sample[name] = now[name] end
    sample.steal_ms = stolen
    self.looked_at[#self.looked_at + 1] = sample
  end
  self.last, self.looked, self.open = now, core.clock(), {}
end

-- To be called when a step's time ends, right before the next one begins, with its sample; last: no step follows soon, so look
-- now.
function Evidence:take(sample, last)
  local switches, preempted = core.switches()
  sample.switches, sample.preempted = switches - self.switches, preempted - self.preempted
  self.open[#self.open + 1] = sample
  if last or core.clock() - self.looked >= EVERY then self:look() end
  self.switches, self.preempted = core.switches()
end

-- Sets the flags of the samples that were looked at and whose seconds are known: those of a step that is under way come later.
function Evidence:judge()
  local rest = {}
  for _, sample in ipairs(self.looked_at) do
    if sample.seconds then sample.flag = evidence.flag(sample, self.best)
    else rest[#rest + 1] = sample end
  end
  self.looked_at = rest
end

return evidence
