-- --on-done and --on-fail: a shell command that is run after a sweep, with its results in variables MEMTIDE_*.
local statuses = require "memtide.results.statuses"

local hook = {}

local function quoted(text) return "'" .. tostring(text):gsub("'", "'\\''") .. "'" end

-- {{NAME, value}, ...} for the command; MEMTIDE_CSV is empty if the rows are in no file.
local function variables(board, status, message)
  local list = {{"NAME", board.name}, {"CSV", board.csv or ""}, {"STATUS", status}, {"MESSAGE", message or ""},
    {"CELLS", board.total}, {"ENDED", board.ended}, {"SECONDS", os.time() - board.started}}
  for _, word in ipairs(statuses.names) do list[#list + 1] = {word:upper(), board.counts[word]} end
  return list
end

-- Runs the command after a sweep with this exit status; message: of the error that stopped it, or nil. Standard output
-- is for rows, so what the command prints goes to standard error.
function hook.ended(options, status, message)
  local command = status ~= 0 and options.on_fail or options.on_done
  if not options.outcome or not command then return end -- without an outcome, no sweep has begun
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
