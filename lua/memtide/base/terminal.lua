-- Text for terminals: its width, what is safe to print, colour.
local core = require "memtide.core"

local terminal = {}

terminal.NAME = 40 -- columns that a cell's name has beside other columns, however narrow the terminal is

-- Columns that a character takes at most: from U+1100 on it may be a wide one.
local function columns_of(code) return code >= 0x1100 and 2 or 1 end

-- Columns that a text takes at most.
function terminal.width(text)
  if not utf8.len(text) then return #text end
  local width = 0
  for _, code in utf8.codes(text) do width = width + columns_of(code) end
  return width
end

-- The text as one line that cannot control a terminal: control characters and broken UTF-8 become "?".
function terminal.harmless(text)
  if not utf8.len(text) then text = text:gsub("[\x80-\xff]", "?") end
  return (text:gsub("%c", "?"):gsub("\xc2[\x80-\x9f]", "?"))
end

-- At most `width` columns of the text; if it is cut, it ends in "..".
function terminal.cut(text, width)
  text = terminal.harmless(text)
  local used, keep = 0, 0 -- columns of the text; bytes of it that fit before ".."
  for at, code in utf8.codes(text) do
    used = used + columns_of(code)
    if used <= width - 2 then keep = at + #utf8.char(code) - 1 end
  end
  return used <= width and text or text:sub(1, keep) .. (".."):sub(1, width)
end

-- The same, padded with spaces to exactly `width` columns.
function terminal.padded(text, width)
  text = terminal.cut(text, width)
  return text .. (" "):rep(width - terminal.width(text))
end

-- Is colour wanted on this descriptor?
function terminal.colour(descriptor)
  local no = os.getenv("NO_COLOR")
  return core.isatty(descriptor) and (no == nil or no == "") and os.getenv("TERM") ~= "dumb"
end

-- Does the terminal show characters beyond ASCII? As the locale says; TERM=dumb never.
function terminal.unicode()
  for _, name in ipairs{"LC_ALL", "LC_CTYPE", "LANG"} do
    local locale = os.getenv(name)
    if locale and locale ~= "" then
      return locale:lower():find "utf%-?8" ~= nil and os.getenv "TERM" ~= "dumb"
    end
  end
  return false
end

function terminal.red(text, colour) return colour and "\27[31m" .. text .. "\27[0m" or text end

return terminal
