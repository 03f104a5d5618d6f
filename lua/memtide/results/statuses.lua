-- The statuses that a row can have, and what follows from each.
local statuses = {}

--   settled   a result: the cell is not run again unasked
--   good      there is nothing to explain: no reason, no colour
--   fails     a sweep with such a row has the exit status 1
--   rank      of two rows of a cell from two files, the higher is kept
-- In the order in which they are counted.
local LIST = {
  {name = "ok", settled = true, good = true, rank = 2},
  {name = "predicted", settled = true, good = true, rank = 2},
  {name = "oom", settled = true, rank = 2},
  {name = "skipped", settled = true, rank = 1},
  {name = "diverged", settled = true, fails = true, rank = 2},
  {name = "timeout", fails = true, rank = 0},
  {name = "crashed", fails = true, rank = 0},
  {name = "error", fails = true, rank = 0},
}
local UNKNOWN = {fails = true, rank = 0} -- of another program

local by_name = {}
statuses.names = {}
for i, status in ipairs(LIST) do statuses.names[i], by_name[status.name] = status.name, status end

function statuses.is_known(word) return by_name[word] ~= nil end

-- {name =, settled =, good =, fails =, rank =} of the word in a row; of another word, that of a failure without a name.
function statuses.of(word) return by_name[word] or UNKNOWN end

-- What earlier versions call otherwise.
local RENAMED = {nan = "diverged"}

-- A status by the name that it has now.
function statuses.renamed(word) return RENAMED[word] or word end

local function has(values, column) return (values[column] or "") ~= "" end

-- Has nothing been measured of what was predicted?
local function is_prediction(values)
  return has(values, "predicted_peak_bytes") and not has(values, "peak_bytes") and not has(values, "step_ms")
end

-- Of a row of any version, as text: its status by the name that it has now. In files without the column "emulated" a
-- prediction may be called ok, too.
function statuses.read(values)
  if values.status == "ok" and not values.emulated and is_prediction(values) then return "predicted" end
  return statuses.renamed(values.status)
end

return statuses
