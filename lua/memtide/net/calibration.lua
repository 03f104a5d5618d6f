-- What a user's own machines take beside PyTorch's allocator: the context, in a file of the user's cache. memtide calibrate
-- writes it, predictions read it. A line: card, PyTorch's version, bytes, date, what they follow from; between tabs.
local user_files = require "memtide.base.user_files"
local util = require "memtide.base.util"

local calibration = {}

local NAME = "calibration.txt"
local entries -- as read; nil: not read yet

local function line_of(one)
  return ("%s\t%s\t%d\t%s\t%s\n"):format(one.card, one.version, one.bytes, one.date, one.source)
end

local function entry_of(line)
  local card, version, bytes, date, source = line:match "^([^\t]+)\t([^\t]+)\t(%d+)\t([^\t]*)\t([^\t]*)$"
  bytes = math.tointeger(tonumber(bytes))
  return bytes and bytes > 0 and {card = card, version = version, bytes = bytes, date = date, source = source} or nil
end

-- The path of the file; nil: the user has no folder for it.
function calibration.path() return user_files.path(NAME) end

-- {{card, version, bytes, date, source}, ...}, the one that was stored last at the end. Raises if a line is none.
function calibration.list()
  if entries then return entries end
  local path, found, number = calibration.path(), {}, 0
  local file <close> = path and io.open(path, "r")
  for line in file and file:lines() or function() end do
    number = number + 1
    found[number] = entry_of(line)
    if not found[number] then
      error(util.failure(("%s:%d: expected card, version, bytes, date and source between tabs"):format(path, number),
        "format"), 0)
    end
  end
  entries = found
  return found
end

-- The context of that card, as list() has it: of several versions of PyTorch the one that was stored last. nil: none is.
function calibration.find(card)
  local list = calibration.list()
  for i = #list, 1, -1 do if list[i].card == card then return list[i] end end
end

-- Keeps an entry in place of an earlier one of the same card and version. Raises if it cannot be written.
function calibration.store(new)
  local path, kept, lines = calibration.path(), {}, {}
  if not path then error(util.failure("there is no folder to keep it in: neither XDG_CACHE_HOME nor HOME is set", "file"), 0) end
  entries = nil -- another process may have written
  for _, one in ipairs(calibration.list()) do
    if one.card ~= new.card or one.version ~= new.version then kept[#kept + 1] = one end
  end
  kept[#kept + 1] = new
  for i, one in ipairs(kept) do lines[i] = line_of(one) end
  local done, why = user_files.write(path, table.concat(lines))
  if not done then error(util.failure(("cannot write %s: %s"):format(path, why), "file"), 0) end
  entries = kept
end

return calibration
