-- What tests of commands share: a folder of their own, files in it, and what memtide prints.
local core = require "memtide.core"

local folder = {program = os.getenv "MEMTIDE" or "build/memtide", path = os.tmpname()}
os.remove(folder.path)
assert(core.make_folder(folder.path))

-- Writes a file of that name into the folder -> its path
function folder.write(name, text)
  local path = folder.path .. "/" .. name
  local file <close> = assert(io.open(path, "wb"))
  file:write(text)
  return path
end

-- What a command prints, on both outputs, and its exit status
function folder.run(command)
  local pipe = assert(io.popen(("%s %s 2>&1"):format(folder.program, command)))
  local text = pipe:read "a"
  local _, _, status = pipe:close()
  return text, status
end

-- With what is in it
function folder.remove() os.execute(("rm -r '%s'"):format(folder.path)) end

return folder
