-- Runs the exporter in a Python of the user's.
local core = require "memtide.core"
local exporter = require "memtide.import.exporter"
local util = require "memtide.base.util"

local python = {}

local function quoted(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

-- A value as JSON: texts, numbers, booleans, lists and tables with names
local function json(value)
  if type(value) == "string" then
    return '"' .. value:gsub('[%c"\\\127]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
  elseif type(value) ~= "table" then return math.type(value) == "float" and core.number(value) or tostring(value) end
  local parts = {}
  if value[1] ~= nil or next(value) == nil then
    for i, one in ipairs(value) do parts[i] = json(one) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  for i, name in ipairs(util.sorted_keys(value)) do parts[i] = json(name) .. ":" .. json(value[name]) end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- The description that the Python `program` gives for a request (exporter.py), and its text. Raises a failure: there is
-- no such program, it has no torch, or the model cannot be described.
function python.describe(program, request)
  local words = {}
  for i, word in ipairs{program, "-W", "ignore", "-c", exporter, json(request)} do words[i] = quoted(word) end
  local line = ("command -v %s >/dev/null || exit 127; exec %s"):format(words[1], table.concat(words, " "))
  local pipe, why = io.popen(line, "r")
  if not pipe then error(util.failure(("cannot start %s: %s"):format(program, why), "file"), 0) end
  local text = pipe:read "a"
  local _, how, status = pipe:close()
  if how == "exit" and status == 127 and text == "" then
    error(util.failure(("there is no program %s: --python names the Python that has torch"):format(program), "file"), 0)
  elseif text == "" then
    local ended = ("%s ended with %s %d before it had described the model"):format(program, how, status)
    error(util.failure(ended, "file"), 0)
  end
  return text
end

return python
