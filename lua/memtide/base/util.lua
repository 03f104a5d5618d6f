-- What the other modules share: errors with the script's line, names, sizes.
local core = require "memtide.core"

local util = {}

local function escape(c) return (c:gsub(".", function(byte) return ("\\x%02x"):format(byte:byte()) end)) end

-- Replaces control characters by their codes (\x1b): messages contain names from untrusted files, which must not
-- control a terminal. lines: line breaks and tabs stay.
function util.printable(text, lines)
  local controls = lines and "[^%C\n\t]" or "%c"
  return (text:gsub(controls, escape):gsub("\xc2[\x80-\x9f]", escape))
end

-- Raises "article.lua:7: text": the position of the innermost function that is not memtide's own.
function util.fail(format, ...) util.fail_at(core.where(), format, ...) end

-- The same at a position that was kept before; where: "article.lua:7: " or ""
function util.fail_at(where, format, ...) error(util.printable(where .. format:format(...), true), 0) end

-- A failure that is no mistake in the script: no device, no file, no memory. Functions raise it; code: as in err.h, in
-- small letters.
local Failure = {}
Failure.__index = Failure
Failure.__tostring = function(failure) return failure.message end

function util.failure(message, code)
  return setmetatable({message = type(message) == "string" and util.printable(message, true) or message, code = code},
    Failure)
end

function util.is_failure(value) return getmetatable(value) == Failure end

-- Raises an error about the use of the command line: exit status 2.
function util.fail_usage(format, ...) error(util.failure(format:format(...), "usage"), 0) end

-- What Ctrl-C raises: see main.c.
util.interrupted = util.failure("interrupted", "interrupted")

function util.is_interrupt(value) return util.is_failure(value) and value.code == "interrupted" end

local NO_MEMORY = "not enough memory" -- Lua's own message

-- The value that was raised, if it is a failure; else nil.
function util.as_failure(problem)
  if problem == NO_MEMORY then return util.failure(NO_MEMORY, "host_memory") end
  return util.is_failure(problem) and problem or nil
end

local function outcome(good, first, ...)
  if good then return true, first, ... end
  local no_memory = ...
  if no_memory then first = NO_MEMORY end
  return false, util.as_failure(first) or first
end

-- As xpcall, with arguments; handler: a function of the value that was raised, or nil. When Lua runs out of memory, the
-- value is a failure, and the handler is not called.
function util.try(f, handler, ...) return outcome(core.try(f, handler, ...)) end

local tostring, pcall = tostring, pcall -- a script may replace the global ones

-- The text of whatever value a script raised
function util.text_of(problem)
  local good, text = pcall(tostring, problem)
  return good and text or ("an error (a %s) that cannot be shown: its __tostring fails"):format(type(problem))
end

util.MOST_TEXT = 4096 -- bytes of a text in a row, or of a worker's log on the terminal

-- The text, or its first `most` bytes (nil: MOST_TEXT) and a note of how much was cut.
function util.cut(text, most)
  local last = most or util.MOST_TEXT
  if #text <= last then return text end
  while last > 0 and text:byte(last + 1) & 0xC0 == 0x80 do last = last - 1 end -- not inside of a UTF-8 character
  return ("%s... (%s cut)"):format(text:sub(1, last), util.show_bytes(#text - last))
end

-- Returns its arguments, or raises the failure of a function that has returned nil, message, code.
function util.must(value, message, code, ...)
  if value == nil and message ~= nil then error(util.failure(message, code), 0) end
  return value, message, code, ...
end

-- Raises when a write, a flush or a close of `name` failed with `message`.
function util.must_write(name, done, message)
  if done then return done end
  local why = tostring(message):match("^.*: (.*)$") or tostring(message)
  error(util.failure(('cannot write to %s: %s'):format(name, why), "file"), 0)
end

-- The text of a file that a script names. what: calls the path in messages: "data.mnist: folder"
function util.read_file(path, what)
  core.check_path(path, what)
  local file, message = io.open(path, "rb")
  local text = file and file:read "a"
  if file then file:close() end
  if text then return text end
  local why = message and message:match "^.*: (.*)$" or "it is no file"
  error(util.failure(("cannot open %s: %s"):format(path, why), "file"), 0)
end

-- Calls fill(write), where write(text) appends to a new file that gets the name `path` when it is complete
-- (core/io/file.h). Returns whether the text went to standard output instead.
function util.replace(path, fill)
  local file <close> = util.must(core.new_file(path))
  fill(function(text) util.must(file:write(text)) end)
  local to_output = file:is_output()
  util.must(file:finish(true))
  return to_output
end

-- nearest(name, {known, ...}) -> the known name that was probably meant, or nil: see core/base/nearest.h.
util.nearest = core.nearest

-- ' (did you mean "batch"?)' or ""
function util.meant(name, known)
  local nearest = util.nearest(tostring(name), known)
  return nearest and (' (did you mean "%s"?)'):format(nearest) or ""
end

-- Raises unless the value has that Lua type; what names it in the message: "data.mnist: folder".
function util.check_type(what, value, expected)
  if type(value) ~= expected then
    util.fail("%s: expected a %s, found %s", what, expected, value == nil and "nil" or "a " .. type(value))
  end
end

-- Returns the value; raises unless it is true, false or nil. In Lua 0 and "no" count as true, which nobody means.
function util.check_flag(what, value)
  if value ~= nil and type(value) ~= "boolean" then
    util.fail("%s: expected true or false, found %s", what,
      type(value) == "string" and '"' .. value .. '"' or tostring(value))
  end
  return value
end

-- Makes the methods of a class raise if their first argument is not an object of the class (a dot instead of a colon).
function util.guard_methods(name, class)
  for key, method in pairs(class) do
    if type(method) == "function" then
      class[key] = function(self, ...)
        if getmetatable(self) ~= class then
          util.fail("%s.%s: expected a %s as self, found %s: call it with a colon, %s:%s(...)", name, key, name,
            self == nil and "nil" or "a " .. type(self), name, key)
        end
        return method(self, ...)
      end
    end
  end
end

-- Raises unless `given` is a table whose keys are all in the list `known`.
function util.check_keys(what, given, known)
  util.check_type(what, given, "table")
  local set = {}
  for _, name in ipairs(known) do set[name] = true end
  for key in pairs(given) do
    if not set[key] then
      util.fail('%s: unknown key "%s"%s; known: %s', what, tostring(key), util.meant(key, known),
        table.concat(known, ", "))
    end
  end
end

function util.sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

local UNITS = {[""] = 1, b = 1, kb = 1e3, mb = 1e6, gb = 1e9, tb = 1e12,
  k = 2 ^ 10, m = 2 ^ 20, g = 2 ^ 30, kib = 2 ^ 10, mib = 2 ^ 20, gib = 2 ^ 30, tib = 2 ^ 40}

-- "512MiB", "8GB" (powers of ten), "4096" or a number -> bytes; nil: this is no size.
function util.bytes(size)
  if math.type(size) == "integer" then return size >= 0 and size or nil end
  local number, unit = tostring(size):match("^%s*([%d.]+)%s*(%a*)%s*$")
  local factor, value = UNITS[(unit or "?"):lower()], tonumber(number)
  if not factor or not value or value * factor >= 2 ^ 62 then return nil end
  return math.floor(value * factor)
end

local SECONDS = {[""] = 1, s = 1, m = 60, min = 60, h = 3600, d = 86400}

-- "60s", "5m", "1.5h" or "60" -> seconds; nil: this is no time.
function util.seconds(time)
  local number, unit = tostring(time):match("^%s*([%d.]+)%s*(%a*)%s*$")
  local factor, value = SECONDS[(unit or "?"):lower()], tonumber(number)
  return factor and value and factor * value
end

-- The number of elements of a shape
function util.product(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end

-- 12345678 -> "11.8 MiB"
function util.show_bytes(bytes)
  local names, value, i = {"B", "KiB", "MiB", "GiB", "TiB"}, bytes, 1
  while math.abs(value) >= 1024 and i < #names do value, i = value / 1024, i + 1 end
  return i == 1 and ("%d B"):format(bytes) or ("%.1f %s"):format(value, names[i])
end

-- The quantile p, 0 to 1, of a sorted list that is not empty, interpolated between neighbours.
function util.quantile(sorted, p)
  assert(#sorted > 0 and p >= 0 and p <= 1)
  local at = 1 + (#sorted - 1) * p
  local low = math.floor(at)
  local high = math.min(low + 1, #sorted)
  return sorted[low] + (sorted[high] - sorted[low]) * (at - low)
end

return util
