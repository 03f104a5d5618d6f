-- Who may include, require and call whom: rooms in the order of the data's way, and no circle between files.
local tap = dofile "tests/tap.lua"

-- A file uses its own room and those before it.
local C_ROOMS = {"base", "math", "program", "memory", "network", "layers", "passes", "eager", "run", "io"}
local LUA_ROOMS = {"base", "results", "net", "import", "sweep", "picture", "cli"}
-- What the kernels of both devices know of core/.
local KERNEL_ROOMS, KERNEL_ALSO = {base = true, math = true, program = true}, {["memory/device.h"] = true}

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

local function forbid(path, list, allowed, what)
  local wrong = {}
  for _, name in ipairs(list) do if not allowed(name) then wrong[#wrong + 1] = name end end
  tap.is(table.concat(wrong, " "), "", path .. ": " .. what)
end

local function is_libc(name)
  return not name:find "lua" and not name:find "cuda" and not name:find "cudnn" and not name:find "dnnl"
    and not name:find "omp"
end


local function order(rooms)
  local level = {}
  for i, room in ipairs(rooms) do level[room] = i end
  return level
end

-- The room of "passes/compile.h", and of "compile.h" where a file of `own` includes it.
local function room_of(name, own) return name:match "^([^/]+)/" or own end

-- Files that need each other, as "a -> b -> a": needs[file] is a list of files. "" where there is no circle.
local function circle(needs)
  local state, path = {}, {}
  local function visit(file)
    if state[file] == "done" then return nil end
    path[#path + 1] = file
    if state[file] then
      local first = #path - 1
      while path[first] ~= file do first = first - 1 end
      return table.concat(path, " -> ", first)
    end
    state[file] = "open"
    for _, other in ipairs(needs[file] or {}) do
      local found = visit(other)
      if found then return found end
    end
    state[file], path[#path] = "done", nil
  end
  for file in pairs(needs) do
    local found = visit(file)
    if found then return found end
  end
  return ""
end

-- ---- core/: rooms in one direction; libc and zlib
local level = order(C_ROOMS)
local included = {} -- by headers
for _, path in ipairs(files "core/*/*.c core/*/*/*.c core/*/*.h") do
  local own, system = includes(path)
  local room = path:match "^core/([^/]+)/"
  if tap.ok(level[room], path .. " lies in a room") then
    forbid(path, own, function(name)
      local other = level[room_of(name, room)]
      return other and other <= level[room]
    end, "includes no later room")
    included[path] = {}
    for _, name in ipairs(own) do
      table.insert(included[path], "core/" .. (name:find "/" and name or room .. "/" .. name))
    end
  end
  forbid(path, system, is_libc, "knows no Lua, CUDA or oneDNN")
end
tap.is(circle(included), "", "no circle of includes in core/")

-- a pass knows programs, never networks: compile alone makes one of the other
for _, path in ipairs(files "core/passes/*.c core/passes/*.h") do
  if not path:find "/compile%." then
    forbid(path, includes(path), function(name)
      return not name:find "^network/" or name == "network/options.h"
    end, "knows no networks")
  end
end

-- PyTorch's step is made of a network: it knows no programs, and of the passes their settings alone
for _, path in ipairs(files "core/eager/*.c core/eager/*.h") do
  forbid(path, includes(path), function(name)
    return not name:find "^program/" and (not name:find "^passes/" or name == "passes/settings.h")
  end, "knows no programs")
end

-- a layer never sees tensors' memory, devices or passes; a container may need host memory for as many numbers as it has
-- children
for _, path in ipairs(files "core/layers/*.c") do
  local allowed = words "network/layer.h network/layers.def base/scratch.h"
  forbid(path, includes(path), function(name) return allowed[name] end, "knows the layer contract only")
end

-- ---- kernels/: the device and kernel headers, its own folder; no Lua
for _, folder in ipairs{"kernels/cpu", "kernels/cuda"} do
  local here = {}
  for _, path in ipairs(files(folder .. "/*.h")) do here[path:match "[^/]+$"] = true end
  for _, path in ipairs(files(folder .. "/*.[ch] " .. folder .. "/*.cu*")) do
    local own, system = includes(path)
    forbid(path, own, function(name)
      return here[name] or KERNEL_ALSO[name] or KERNEL_ROOMS[room_of(name)]
    end, "knows kernels and devices only")
    forbid(path, system, function(name)
      return not name:find "lua" and (folder == "kernels/cuda" or not name:find "cud")
    end, "knows no Lua and no other device")
  end
end

-- ---- lua/: never a kernels header
for _, path in ipairs(files "lua/*.[ch]") do
  forbid(path, includes(path), function(name) return level[room_of(name)] or name:find "^bind" end,
    "knows core and the bindings only")
end

-- ---- the modules in Lua: rooms in one direction, and no circle
local lua_level, required = order(LUA_ROOMS), {}
for _, path in ipairs(files "lua/memtide/*/*.lua") do
  local room, name = path:match "memtide/([^/]+)/([^/]+)%.lua$"
  required[room .. "." .. name] = {}
  if tap.ok(lua_level[room], path .. " lies in a room") then
    local wrong = {}
    for line in io.lines(path) do
      for other in line:gmatch 'require%s*%(?%s*"memtide%.([a-z_]+%.[a-z_0-9]+)"' do
        table.insert(required[room .. "." .. name], other)
        local at = lua_level[other:match "^[^.]+"]
        if not (at and at <= lua_level[room]) then wrong[#wrong + 1] = other end
      end
    end
    tap.is(table.concat(wrong, " "), "", path .. " requires no later room")
  end
end
tap.is(circle(required), "", "no circle of modules")

-- ---- calls that the includes do not show: an object's functions, and whose functions it calls
local build = os.getenv "BUILD" or "build"

-- Objects of some folders by their source. One that is older than its source, or whose source is gone, says nothing.
local function objects(folders)
  local list = {}
  local pipe = assert(io.popen(([[for object in %s; do
    source=${object#%s/}; source=${source#emulate/}; source=${source%%.o}
    case $source in *.cu) ;; *) source=$source.c ;; esac
    if [ "$object" -nt "$source" ]; then echo "$object $source"; fi
  done]]):format((folders:gsub("%S+", build .. "/%0")), build)))
  for line in pipe:lines() do
    local object, source = line:match "^(%S+) (%S+)$"
    list[source] = object
  end
  pipe:close()
  return list
end

local function calls(folders)
  local defined, wanted = {}, {}
  for source, object in pairs(objects(folders)) do
    wanted[source] = {}
    local nm = assert(io.popen("nm " .. object))
    for line in nm:lines() do
      local kind, symbol = line:match "(%a) ([%w_]+)$"
      if kind == "T" then defined[symbol] = source elseif kind == "U" then table.insert(wanted[source], symbol) end
    end
    nm:close()
  end
  local needs = {}
  for source, symbols in pairs(wanted) do
    needs[source] = {}
    for _, symbol in ipairs(symbols) do
      if defined[symbol] and defined[symbol] ~= source then table.insert(needs[source], defined[symbol]) end
    end
  end
  return needs
end
local core_calls = calls "core/*/*.o core/*/*/*.o"
tap.ok(next(core_calls), "there are objects of core/ in " .. build)
for source, needed in pairs(core_calls) do
  local room = source:match "^core/([^/]+)/"
  forbid(source, needed, function(other)
    return level[other:match "^core/([^/]+)/"] <= level[room]
  end, "calls no later room")
end
tap.is(circle(core_calls), "", "no circle of calls in core/")

-- the emulated GPU has all but what only NVIDIA's libraries can do, also where there is no nvcc
local plugin, emulated = calls "kernels/cuda/*.o", calls "emulate/kernels/cuda/*.o"
tap.ok(plugin["kernels/cuda/device.c"] or emulated["kernels/cuda/device.c"],
       "there are objects of kernels/cuda/ in " .. build .. " (make emulated)")
tap.is(circle(plugin), "", "no circle of calls in kernels/cuda/")
tap.is(circle(emulated), "", "no circle of calls in kernels/cuda/, emulated")

-- ---- experiments: the memtide module only
for _, path in ipairs(files "experiments/*.lua") do
  local wrong = {}
  for line in io.lines(path) do
    for name in line:gmatch 'require%s*%(?%s*["\']([^"\']+)["\']' do
      local beside = io.open("experiments/" .. name .. ".lua")
      if beside then beside:close() elseif not name:find "^memtide" then wrong[#wrong + 1] = name end
    end
  end
  tap.is(table.concat(wrong, " "), "", path .. " requires memtide, and scripts beside it, only")
  local lines = 0
  for _ in io.lines(path) do lines = lines + 1 end
  tap.ok(lines >= 10 and lines <= 90, ("%s has %d lines"):format(path, lines))
end

-- ---- no printing and no exit in core/ and kernels/
for _, path in ipairs(files "core/*/*.c core/*/*/*.c kernels/*/*.c") do
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
