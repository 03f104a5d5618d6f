-- What --on-done and --on-fail run after a sweep: a shell command that finds in MEMTIDE_* what came of it.
local statuses = require "memtide.results.statuses"

local hook = {}

local function quoted(text) return "'" .. tostring(text):gsub("'", "'\\''") .. "'" end

-- NAME=value for the command; without the sweep's rows in a file, MEMTIDE_CSV is empty.
local function variables(board, status, message)
  local list = {{"NAME", board.name}, {"CSV", board.csv or ""}, {"STATUS", status}, {"MESSAGE", message or ""},
    {"CELLS", board.total}, {"ENDED", board.ended}, {"SECONDS", os.time() - board.started}}
  for _, word in ipairs(statuses.names) do list[#list + 1] = {word:upper(), board.counts[word]} end
  return list
end

-- The sweep has ended with this exit status, or was stopped with a message. Standard output is for rows: what the
-- command prints goes to standard error.
function hook.ended(options, status, message)
  local command = status ~= 0 and options.on_fail or options.on_done
  if not options.outcome or not command then return end -- it has not begun
  local lines = {"exec </dev/null >&2"}
  for _, one in ipairs(variables(options.outcome, status, message)) do
    lines[#lines + 1] = ("export MEMTIDE_%s=%s"):format(one[1], quoted((tostring(one[2]):gsub("%z", "?"))))
  end
  lines[#lines + 1] = command
  io.stdout:flush()
  local _, how, number = os.execute(table.concat(lines, "\n"))
  if number ~= 0 then
    local name = command == options.on_fail and "--on-fail" or "--on-done"
    options.say(("%s: the command ended with %s %d"):format(name, how == "signal" and "signal" or "status", number))
  end
end

return hook
