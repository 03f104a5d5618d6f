-- Small files that memtide keeps for the user between runs: in $XDG_CACHE_HOME/memtide, or ~/.cache/memtide.
local core = require "memtide.core"

local user_files = {}

local function cache_folder()
  local cache, home = os.getenv "XDG_CACHE_HOME", os.getenv "HOME"
  if cache and cache:sub(1, 1) == "/" then return cache end
  return home and home ~= "" and home .. "/.cache" or nil
end

-- The path of the file with that name; nil: the user has no such folder.
function user_files.path(name)
  local folder = cache_folder()
  return folder and folder .. "/memtide/" .. name
end

-- Replaces a file by `text`, and makes its folder and the one above that. Returns true, or nil and why it cannot be written.
function user_files.write(path, text)
  local folder = path:match "^(.*)/[^/]*$"
  if not (core.make_folder(folder:match "^(.*)/[^/]*$") and core.make_folder(folder)) then
    return nil, "cannot make the folder " .. folder
  end
  local file <close>, why = core.new_file(path)
  if not file then return nil, why end
  local written, problem = file:write(text)
  if not written then return nil, problem end
  local finished, last = file:finish()
  if not finished then return nil, last end
  return true
end

return user_files
