-- Who may include or require whom: the folders of the design, and one direction inside core/.
local tap = dofile "tests/tap.lua"

-- core/ in the order of the spine: a file may include what stands on its own line or above, nothing below.
local ORDER = {
  "base", "err mem dtype rng number json", "file names shape spread optim pointwise cells options",
  "op plan plan_private row data data_private loader safetensors",
  "kernel program csv window rows loss norm rnn attention factors codes", "device prepared view network",
  "ledger lower",
  "alloc layer", "settings", "passes", "compile checkpoint uses", "runtime runtime_private",
}
-- Files whose level is another's: data readers, allocators, parts of a unit.
local PART_OF = {data_bytes = "data_private", data_file = "data_private", data_images = "data_private",
  data_npy = "data_private", alloc_planned = "alloc", alloc_caching = "alloc", alloc_direct = "alloc",
  device_dry = "device",
  network_dump = "layer", network = "layer", lower = "layer", program_check = "program", program_dump = "program",
  op_cost = "program", predict = "runtime", runtime_io = "runtime_private", runtime_step = "runtime_private",
  placement = "passes", plan_search = "plan", plan = "plan_private", plan_place = "plan_private",
  plan_scratch = "plan_private", safetensors_write = "safetensors"}
local TABLES = {ops = "op", layers = "network", columns = "row"} -- .def files

-- What each folder may include from core/, "*" for everything.
local KERNEL_HEADERS =
  "base err mem dtype rng shape optim pointwise cells op kernel device prepared ops window rows loss norm rnn "
  .. "attention factors codes spread"

local level = {}
for i, line in ipairs(ORDER) do for name in line:gmatch "%S+" do level[name] = i end end

local function words(text)
  local set = {}
  for word in text:gmatch "%S+" do set[word] = true end
  return set
end

local function files(pattern)
  local list = {}
  local pipe = assert(io.popen("ls " .. pattern .. " 2>/dev/null"))
  for path in pipe:lines() do list[#list + 1] = path end
  pipe:close()
  return list
end

-- Names in `#include "name.h"` (own) and `#include <name>` (system).
local function includes(path)
  local own, system = {}, {}
  for line in io.lines(path) do
    local quoted, angled = line:match '^#%s*include "([^"]+)"', line:match "^#%s*include <([^>]+)>"
    if quoted then own[#own + 1] = quoted end
    if angled then system[#system + 1] = angled end
  end
  return own, system
end

local function base(path) return (path:gsub("^.*/", ""):gsub("%.%a+$", "")) end

local function forbid(path, list, allowed, what)
  local wrong = {}
  for _, name in ipairs(list) do if not allowed(name) then wrong[#wrong + 1] = name end end
  tap.is(table.concat(wrong, " "), "", path .. ": " .. what)
end

local function is_libc(name)
  return not name:find "lua" and not name:find "cuda" and not name:find "cudnn" and not name:find "dnnl"
    and not name:find "omp"
end

-- ---- core/: libc and zlib, itself in one direction
for _, path in ipairs(files "core/*.c core/*.h core/passes/*.c core/passes/*.h core/layers/*.c") do
  local own, system = includes(path)
  local name = base(path)
  local mine = path:find "^core/passes/" and level.checkpoint or path:find "^core/layers/" and level.layer
    or level[path:find "%.c$" and PART_OF[name] or name]
  if tap.ok(mine, path .. " has its place in the order") then
    forbid(path, own, function(other)
      local at = level[TABLES[base(other)] or base(other)]
      return at and at <= mine
    end, "includes nothing further down the spine")
  end
  forbid(path, system, is_libc, "knows no Lua, CUDA or oneDNN")
end

-- a pass knows programs, never layers or another pass
for _, path in ipairs(files "core/passes/*.c core/passes/*.h") do
  local allowed = words "passes.h checkpoint.h uses.h mem.h names.h view.h"
  forbid(path, includes(path), function(name) return allowed[name] end, "knows no layers and no other pass")
end

-- a layer never sees tensors' memory, devices or passes; a container may need host memory for as many numbers as it has
-- children
for _, path in ipairs(files "core/layers/*.c") do
  local allowed = words "layer.h mem.h"
  forbid(path, includes(path), function(name) return allowed[name] end, "knows the layer contract only")
end

-- ---- kernels/: the device and kernel headers, its own folder; no Lua
for _, folder in ipairs{"kernels/cpu", "kernels/cuda"} do
  local allowed = words(KERNEL_HEADERS)
  for _, path in ipairs(files(folder .. "/*.h " .. folder .. "/*.cuh")) do allowed[base(path)] = true end
  for _, path in ipairs(files(folder .. "/*.[ch] " .. folder .. "/*.cu*")) do
    local own, system = includes(path)
    forbid(path, own, function(name) return allowed[base(name)] end, "knows kernels and devices only")
    forbid(path, system, function(name)
      return not name:find "lua" and (folder == "kernels/cuda" or not name:find "cud")
    end, "knows no Lua and no other device")
  end
end

-- ---- lua/: never a kernels header
local core_headers = {}
for _, path in ipairs(files "core/*.h") do core_headers[base(path)] = true end
for _, path in ipairs(files "lua/*.[ch]") do
  forbid(path, includes(path), function(name) return core_headers[base(name)] or name:find "^bind" end,
    "knows core and the bindings only")
end

-- ---- experiments: the memtide module only
for _, path in ipairs(files "experiments/*.lua") do
  local wrong = {}
  for line in io.lines(path) do
    for name in line:gmatch 'require%s*%(?%s*["\']([^"\']+)["\']' do
      if not name:find "^memtide" then wrong[#wrong + 1] = name end
    end
  end
  tap.is(table.concat(wrong, " "), "", path .. " requires memtide only")
  local lines = 0
  for _ in io.lines(path) do lines = lines + 1 end
  tap.ok(lines >= 10 and lines <= 60, ("%s has %d lines"):format(path, lines))
end

-- ---- no printing and no exit in core/ and kernels/
for _, path in ipairs(files "core/*.c core/*/*.c kernels/*/*.c") do
  local wrong = {}
  for line in io.lines(path) do
    local code = line:gsub('"[^"]*"', '""'):gsub("/%*.-%*/", ""):gsub("^%s*%*.*", "")
    for name in code:gmatch "%f[%w_]([%a_]+)%s*%(" do
      if name == "printf" or name == "puts" or name == "exit" or name == "abort" or name == "longjmp" then
        wrong[#wrong + 1] = name
      end
    end
  end
  tap.is(table.concat(wrong, " "), "", path .. ": does not print or exit")
end

tap.done()
