-- memtide devices: the devices of this machine, and why others are not available.
local core = require "memtide.core"
local options = require "memtide.cli.options"
local util = require "memtide.base.util"

local devices = {words = "", text = "what is here, and what is missing and why",
  options = {{name = "describe", argument = "D", completes = options.DEVICE,
    text = "a GPU that is here as a description file, kernels/cuda/devices/NAME.json"}}}

-- Prints one line about a device, or why it is not available. Returns its information, nil: not available.
local function show_device(name, note)
  local device, reason = core.device(name)
  local info, no_info
  if device then info, no_info = device:info() end
  if not info then
    local why = (reason or no_info):gsub("^device '[^']*' is not available: ", "")
    return print(("%-9s not available: %s"):format(name, why))
  end
  local memory = info.memory_total and util.show_bytes(info.memory_total)
  if info.memory_free then memory = ("%s, %s of them free"):format(memory, util.show_bytes(info.memory_free)) end
  local parts = {}
  local emulated = table.concat(info.emulated, " and ")
  if emulated ~= "" then emulated = emulated .. " emulated in fp32" end
  for _, part in ipairs{note or "", info.name, info.detail or "", info.driver, memory or "", emulated} do
    if part ~= "" then parts[#parts + 1] = part end
  end
  print(("%-9s %s"):format(name, table.concat(parts, ", ")))
  if info.warning then print(("%-9s warning: %s"):format("", info.warning)) end
  return info
end

-- Shows every device that is here or has a device file. --describe: prints the device file of a GPU that is here.
function devices.alone(_, given)
  if given.describe then
    print((util.must(util.must(core.device(given.describe)):describe())))
    return 0
  end
  show_device("cpu")
  local first = show_device("cuda:0")
  for i = 1, first and first.count - 1 or 0 do show_device("cuda:" .. i) end
  for _, name in ipairs(core.offline_devices()) do show_device(name, "planning only") end
  return 0
end

return devices
