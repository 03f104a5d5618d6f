-- What a script can use under --safe: Lua without access to the machine, memtide, and files below its own folder.
--
-- Its globals are a table of their own with copies of the libraries, so it cannot change what memtide's modules use. It
-- cannot reach their internals: it sees no metatables but its own, no classes, no bytecode and no debug library. Only
-- the core opens files for it, and the core is confined to the folder. Time and memory are not limited: see --timeout
-- and --host-memory.
local core = require "memtide.core"
local strict = require "memtide.base.strict"
local util = require "memtide.base.util"

local safe = {}
local wanted, space = false, nil

-- ---- globals

local PLAIN = {"assert", "collectgarbage", "error", "ipairs", "next", "pairs", "pcall", "print", "rawequal", "rawget",
  "rawlen", "rawset", "select", "tonumber", "tostring", "type", "xpcall", "_VERSION"}
local LIBRARIES = {"coroutine", "math", "string", "table", "utf8"}
local CLOCK = {"clock", "date", "difftime", "time"} -- of os
local ABSENT = {}
for _, name in ipairs{"debug", "dofile", "io", "loadfile", "package"} do ABSENT[name] = ": --safe leaves it out" end

local function copy(from, names)
  local to = {}
  for _, name in ipairs(names or util.sorted_keys(from)) do to[name] = from[name] end
  return to
end

-- getmetatable and setmetatable work on the script's own tables only, so that it cannot change memtide's metatables.
local function metatables(globals)
  local own = setmetatable({}, {__mode = "k"})
  local hidden, get, set = debug.getmetatable, getmetatable, setmetatable
  function globals.getmetatable(value)
    local found = hidden(value)
    if found == nil then return nil end
    return own[found] and get(value) or false
  end
  function globals.setmetatable(value, new)
    local found = type(value) == "table" and hidden(value)
    if found and not own[found] then util.fail("setmetatable: --safe keeps memtide's metatables as they are") end
    set(value, new)
    if new ~= nil then own[new] = true end
    return value
  end
end

-- load for text only, with the script's globals unless it passes others
local function loader(globals)
  return function(chunk, name, _, ...)
    local under = globals
    if select("#", ...) > 0 then under = ... end
    return load(chunk, name, "t", under)
  end
end

local function read(path)
  core.check_path(path, "require")
  local file <close> = io.open(path, "rb")
  return file and file:read("a")
end

-- require for memtide and for modules beside the script
local function requirer(globals, folder)
  local loaded = {memtide = require "memtide"}
  return function(name)
    util.check_type("require: name", name, "string")
    if loaded[name] ~= nil then return loaded[name] end
    local path = ("%s/%s.lua"):format(folder, name:gsub("%.", "/"))
    if name:find("^memtide") then util.fail('require: --safe has "memtide" and not "%s"', name) end
    local text = read(path)
    if not text then util.fail('require: there is no "%s"', path) end
    local chunk, message = load(text, "@" .. path, "t", globals)
    if not chunk then error(message, 0) end
    local found = chunk(name, path)
    if loaded[name] == nil then loaded[name] = found == nil and true or found end
    return loaded[name]
  end
end

-- ---- classes

-- Objects usually find methods in their class by __index, so that object.__index is the class. This replaces it by a
-- copy of the methods, which a script cannot reach by name. Every class is found by following upvalues and tables from
-- memtide's modules.
local function hide_classes()
  local seen = {}
  local function visit(value)
    local kind = type(value)
    if kind ~= "function" and kind ~= "table" or seen[value] then return end
    seen[value] = true
    if kind == "function" then
      local i, name, found = 1, debug.getupvalue(value, 1)
      while name do
        visit(found)
        i = i + 1
        name, found = debug.getupvalue(value, i)
      end
      return
    end
    visit(debug.getmetatable(value))
    for key, item in next, value do
      visit(key)
      visit(item)
    end
    if rawget(value, "__index") == value then
      local methods = {}
      for key, item in next, value do
        if type(key) ~= "string" or key:sub(1, 2) ~= "__" then methods[key] = item end
      end
      value.__index = methods
    end
  end
  for name, module in pairs(package.loaded) do if name:find("^memtide") then visit(module) end end
end

-- ---- the script's globals

local function new_space(folder)
  local globals = copy(_G, PLAIN)
  for _, name in ipairs(LIBRARIES) do globals[name] = copy(_G[name]) end
  globals.os, globals._G = copy(os, CLOCK), globals
  globals.string.dump = nil
  rawset(string, "dump", nil) -- ("").dump is found in the library itself
  globals.load, globals.require = loader(globals), requirer(globals, folder)
  metatables(globals)
  return globals
end

-- From now on this process runs its script safely; this cannot be undone.
function safe.on() wanted = true end

function safe.is_on() return wanted end

-- The globals of a script in this folder. Under --safe the first call confines the process to its folder.
function safe.space(folder)
  if not wanted then
    strict.on(_G)
    return _G
  end
  if space then return space end
  util.must(core.confine(folder))
  space = new_space(folder)
  strict.on(space, ABSENT)
  hide_classes()
  return space
end

return safe
