-- memtide devices: the devices of this machine, and why others are not available.
local core = require "memtide.core"
local options = require "memtide.cli.options"
local report = require "memtide.results.report"
local util = require "memtide.base.util"

local devices = {words = "", text = "what is here, and what is missing and why",
  options = {options.json, {name = "describe", argument = "D", completes = options.DEVICE,
    text = "a GPU that is here as a description file, kernels/cuda/devices/NAME.json"}}}

-- What is known of a device: {device =, available =, planning_only =, info or reason =}
local function look(name, planning_only)
  local device, reason = core.device(name)
  local info, no_info
  if device then info, no_info = device:info() end
  local why = not info and (reason or no_info):gsub("^device '[^']*' is not available: ", "") or nil
  return {device = name, available = info ~= nil, planning_only = planning_only, info = info, reason = why}
end

local function show(one)
  local info, name = one.info, one.device
  if not info then return print(("%-9s not available: %s"):format(name, one.reason)) end
  local memory = info.memory_total and util.show_bytes(info.memory_total)
  if info.memory_free then memory = ("%s, %s of them free"):format(memory, util.show_bytes(info.memory_free)) end
  local parts = {}
  local emulated = table.concat(info.emulated, " and ")
  if emulated ~= "" then emulated = emulated .. " emulated in fp32" end
  for _, part in ipairs{one.planning_only and "planning only" or "", info.name, info.detail or "", info.driver, memory or "",
    emulated} do
    if part ~= "" then parts[#parts + 1] = part end
  end
  print(("%-9s %s"):format(name, table.concat(parts, ", ")))
  if info.warning then print(("%-9s warning: %s"):format("", info.warning)) end
end

local FIELDS = {"device", "available", "planning_only", "reason", "name", "kind", "detail", "driver", "threads", "processors", "memory_nodes",
  "memory_total_bytes", "memory_free_bytes", "emulated", "warning"}

local function show_json(one)
  local row = {memory_total_bytes = one.info and one.info.memory_total, memory_free_bytes = one.info and one.info.memory_free}
  for _, from in ipairs{one.info or {}, one} do
    for _, name in ipairs(FIELDS) do if from[name] ~= nil then row[name] = from[name] end end
  end
  print(report.json(row, FIELDS))
end

-- Shows every device that is here or has a device file. --describe: prints the device file of a GPU that is here.
function devices.alone(_, given)
  if given.describe then
    print((util.must(util.must(core.device(given.describe)):describe())))
    return 0
  end
  local put = given.json and show_json or show
  put(look("cpu", false))
  local first = look("cuda:0", false)
  put(first)
  for i = 1, first.info and first.info.count - 1 or 0 do put(look("cuda:" .. i, false)) end
  for _, name in ipairs(core.offline_devices()) do put(look(name, true)) end
  return 0
end

return devices
