-- The interactive prompt: prints expressions, runs statements, asks for more lines of an incomplete one.
local core = require "memtide.core"

local repl = {}

local function read(prompt)
  io.stdout:write(prompt)
  io.stdout:flush()
  return io.read("L")
end

-- Reads a complete chunk from the user; nil at the end of input.
local function read_chunk(globals)
  local text = read("> ")
  if not text then return nil end
  local chunk, message = load("return " .. text, "=stdin", "t", globals)
  while not chunk do
    chunk, message = load(text, "=stdin", "t", globals)
    if chunk or not message:find("<eof>", 1, true) then break end
    local more = read(">> ")
    if not more then break end
    text = text .. more
  end
  return chunk or function() error(message, 0) end
end

local function show(good, ...)
  if not good then
    io.stderr:write(tostring((...)), "\n")
  elseif select("#", ...) > 0 then
    print(...)
  end
end

function repl.run(globals)
  if core.isatty(0) then
    print("memtide " .. core.version .. ", Lua " .. _VERSION:match("[%d.]+$") .. "; end with Ctrl-D")
  end
  for chunk in read_chunk, globals do show(pcall(chunk)) end
  print()
end

return repl
