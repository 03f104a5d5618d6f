-- Where a picture goes: a file, .svg or .png by its name, or standard output.
local svg = require "memtide.picture.svg"
local util = require "memtide.base.util"

local output = {}

local CONVERTER = "rsvg-convert"

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

local function write_png(path, text)
  local here = os.execute(("command -v %s >/dev/null 2>&1"):format(CONVERTER))
  if not here then
    error(util.failure(("%s: a .png needs %s, which is not here: install it (librsvg2-bin), or name a .svg"):format(path,
      CONVERTER), "file"), 0)
  end
  local part = path .. ".part"
  local pipe = util.must_write(path, io.popen(("%s --zoom 2 --format png --output %s"):format(CONVERTER,
    quoted(part:sub(1, 1) == "-" and "./" .. part or part)), "w"))
  local written = pipe:write(text)
  local closed, how, status = pipe:close()
  if not written or not closed then
    os.remove(part)
    error(util.failure(("%s: %s failed (%s %s)"):format(path, CONVERTER, how, status), "file"), 0)
  end
  util.must_write(path, os.rename(part, path))
end

-- The names of files that a picture can have, by their ends
local ENDS = {"%.svg$", "%.png$", "%.vl%.json$"}

-- Is the file's name one that a picture can have? For checks before any work.
function output.check(command, path)
  for _, ending in ipairs(ENDS) do if not path or path == "-" or path:find(ending) then return end end
  util.fail_usage('%s: --output: expected a name that ends in .svg, .png or .vl.json, found "%s"', command, path)
end

-- Is it a specification of Vega-Lite that is asked for?
function output.is_vega(path) return path ~= nil and path:find "%.vl%.json$" ~= nil end

-- text: a whole file; path: nil or "-" is standard output
function output.text(text, path)
  if not path or path == "-" then return util.must_write("standard output", io.stdout:write(text)) end
  util.replace(path, function(write) write(text) end)
end

-- picture: of svg.picture; path: nil or "-" is standard output
function output.write(picture, path)
  local text = svg.text(picture) .. "\n"
  if path and path:find "%.png$" then return write_png(path, text) end
  output.text(text, path)
end

return output
