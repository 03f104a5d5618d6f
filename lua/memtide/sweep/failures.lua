-- The ways in which a cell can fail, and what a sweep does about each.
local statuses = require "memtide.results.statuses"

local failures = {}

--   status     of the row                    attempts   how often the cell is tried altogether
--   fresh      the next cell needs a new worker
failures.classes = {
  crash = {status = "crashed", attempts = 2, fresh = true},     -- the worker ended
  killed = {status = "crashed", attempts = 1, fresh = true},    -- a SIGKILL that memtide did not send
  timeout = {status = "timeout", attempts = 1, fresh = true},
  device = {status = "error", attempts = 2, fresh = true},      -- the device failed; nothing it says now is reliable
  host_memory = {status = "error", attempts = 1, fresh = true}, -- the heap may be fragmented, unfair to the next cell
  host_limit = {status = "oom", attempts = 1, fresh = true},    -- the same under --host-memory, where it is a result
  oom = {status = "oom", attempts = 1},
  other = {status = "error", attempts = 1},
}

-- The class of a row that a worker finished with this status and code; nil: no failure. host_limit: is --host-memory
-- set?
function failures.of_row(status, code, host_limit)
  if statuses.of(status).settled then return failures.classes[status] end
  if code == "host_memory" and host_limit then return failures.classes.host_limit end
  return failures.classes[code] or failures.classes.other
end

local ORDINALS = {"1st", "2nd", "3rd"}

-- The reason with the number of the attempt, if it is not the first.
function failures.attempt(n, reason)
  if n == 1 then return reason end
  return ("%s attempt: %s"):format(ORDINALS[n] or n .. "th", reason)
end

-- How a worker ended, cause = {kind =, what =, seconds =, note =} -> class, reason. kind: "signal" (what: "SEGV"),
-- "exit" (what: its status), "timeout", "stuck" (it cannot be ended) or "message" (what it sent is no message)
function failures.of_end(cause, host_limit)
  local during = cause.note ~= "" and " while " .. cause.note or ""
  if cause.kind == "timeout" then
    return failures.classes.timeout, ("no end after %.6g s%s"):format(cause.seconds, during)
  elseif cause.kind == "exit" then
    return failures.classes.crash, ("the worker ended with exit status %d%s"):format(cause.what, during)
  elseif cause.kind == "message" then
    return failures.classes.crash, ("what the worker sent%s is no message: it was ended"):format(during)
  elseif cause.kind == "stuck" then
    return failures.classes.crash, ("the worker is stuck%s: not even SIGKILL ends it"):format(during)
  elseif cause.what == "KILL" then
    return failures.classes.killed, ("killed by SIGKILL%s: not by memtide, probably by the kernel for lack of memory")
      :format(during)
  end
  return failures.classes.crash, ("crashed by SIG%s%s%s"):format(cause.what, during,
    host_limit and " (under --host-memory)" or "")
end

return failures
