-- The statuses of rows, and what each means for a sweep.
local statuses = {}

--   settled   a result: the cell is not run again unless that is asked for
--   good      no reason and no colour is shown
--   fails     a sweep with such a row has exit status 1
--   rank      of two rows of a cell from two files, the one with the higher rank is kept
-- A summary counts them in this order.
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
local UNKNOWN = {fails = true, rank = 0} -- a word that this version does not know

local by_name = {}
statuses.names = {}
for i, status in ipairs(LIST) do statuses.names[i], by_name[status.name] = status.name, status end

function statuses.is_known(word) return by_name[word] ~= nil end

-- {name =, settled =, good =, fails =, rank =} of a status; an unknown word is a failure without a name.
function statuses.of(word) return by_name[word] or UNKNOWN end

local RENAMED = {nan = "diverged"} -- names of earlier versions

-- The name that a status has now.
function statuses.renamed(word) return RENAMED[word] or word end

local function has(values, column) return (values[column] or "") ~= "" end

-- Does the row have a prediction and no measurement?
local function is_prediction(values)
  return has(values, "predicted_peak_bytes") and not has(values, "peak_bytes") and not has(values, "step_ms")
end

-- The status of a row of any version, by the name that it has now. values: texts. In files without the column
-- "emulated" the status of a prediction may be "ok" too.
function statuses.read(values)
  if values.status == "ok" and not values.emulated and is_prediction(values) then return "predicted" end
  return statuses.renamed(values.status)
end

return statuses
