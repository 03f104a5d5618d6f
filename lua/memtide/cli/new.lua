-- memtide new: a script to start from, with comments.
local script = require "memtide.sweep.script"
local util = require "memtide.base.util"

local STARTS = {"cnn", "gpt", "mlp", "pytorch"} -- files of experiments/start/, in which NAME stands for the script's

local function take_from(given, text)
  for _, name in ipairs(STARTS) do if text == name then given.from = text end end
  if not given.from then
    util.fail_usage('--from: expected %s, found "%s"', table.concat(STARTS, ", "), text)
  end
end

local new = {words = "NAME", text = "a script NAME.lua to start from, with comments",
  options = {{name = "from", argument = "KIND", take = take_from, completes = {words = table.concat(STARTS, " ")},
    text = "cnn (without this option), gpt, mlp, or pytorch: a listing and what it becomes, line by line"}}}

function new.alone(words, given)
  if #words ~= 1 then util.fail_usage("new: expected one name, found %d", #words) end
  local path = words[1]:gsub("%.lua$", "")
  local name = path:match "[^/]*$"
  if not name:find "^[%w_-]+$" then
    util.fail_usage('new: expected a name of letters, digits, _ and -, found "%s"', name)
  end
  path = path .. ".lua"
  if script.exists(path) then error(util.failure(("new: %s is there already"):format(path), "file"), 0) end
  local text = require("memtide.start." .. (given.from or "cnn")):gsub("NAME", name)
  util.replace(path, function(write) write(text) end)
  given.say(("wrote %s; next: memtide predict %s"):format(path, path))
  return 0
end

return new
