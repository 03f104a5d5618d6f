-- build/memtide tests/same.lua OLD NEW: whether two programs of memtide mean the same: their rows for every experiment
-- (cell ids, predictions; short runs' losses) and their explanations, byte for byte. For changes that keep behaviour.
-- Columns that tell of one run are left out: version, times, what was measured of a device that others use, too; so are
-- columns and scripts that only one of the two knows. Of the reasons in an explanation the numbers are compared, not the
-- words.
local old, new = arg[1], arg[2]
if not new then
  io.stderr:write("usage: memtide tests/same.lua OLD NEW (two programs of memtide)\n")
  os.exit(64)
end
local csv = require "memtide.results.csv"

local OF_ONE_RUN = {version = true, started_at = true, step_ms = true, step_ms_min = true,
  step_ms_p90 = true, samples_per_s = true, device_used_bytes = true, untracked_bytes = true, driver = true}
-- Scripts that train for seconds: their losses are compared, too.
local TRAINED = {llama = "experiment", vae = "experiment", freeze = "experiment", offload = "experiment",
  gpt = "program", text_lstm = "program", fine_tune = "program"}

local folder = os.tmpname()
os.remove(folder)
assert(os.execute("mkdir " .. folder))

local function lines_of(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read "a"
  pipe:close()
  return text
end

-- The rows of a file: of each its fields by the columns' names. Nothing without a file.
local function rows_of(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local rows, names = {}, nil
  for line in file:lines() do
    local row = assert(csv.split(line))
    if names then
      local fields = {}
      for k, name in ipairs(names) do fields[name] = row[k] end
      rows[#rows + 1] = fields
    else
      names = row
    end
  end
  file:close()
  return rows, names
end

-- The rows as lines of the named columns.
local function lines_by(rows, names)
  local lines = {table.concat(names, ",")}
  for _, fields in ipairs(rows) do
    local kept = {}
    for k, name in ipairs(names) do kept[k] = fields[name] end
    lines[#lines + 1] = table.concat(kept, ",")
  end
  return table.concat(lines, "\n")
end

-- An explanation in which the numbers stand for the last column of its table of categories, "why".
local function without_words(text)
  local lines, at = {}, nil
  for line in text:gmatch "[^\n]*" do
    local why = line:match "()why$"
    if why then at = why
    elseif at and #line >= at and line:find "^%l+%s+%d" then
      local numbers = {}
      for number in line:sub(at):gmatch "%d+" do numbers[#numbers + 1] = number end
      line = line:sub(1, at - 1) .. table.concat(numbers, " ")
    end
    lines[#lines + 1] = line
  end
  return table.concat(lines, "\n")
end

local differences, compared = 0, 0
local function compare(what, a, b)
  compared = compared + 1
  if a == b then return end
  differences = differences + 1
  local next_a, next_b = a:gmatch "[^\n]*", b:gmatch "[^\n]*"
  for number = 1, math.huge do
    local x, y = next_a(), next_b()
    if x ~= y then
      print(("%s: line %d\n  old %s\n  new %s"):format(what, number, x, y))
      break
    end
  end
end

-- Both programs sweep a script; what they say is compared where neither writes a row. Returns whether both wrote rows.
local function compare_rows(what, command)
  local said, rows, names = {}, {}, {}
  for k, program in ipairs {old, new} do
    local path = ("%s/%d.csv"):format(folder, k)
    os.remove(path)
    said[k] = lines_of(("OMP_NUM_THREADS=1 %s %s --csv %s"):format(program, command, path))
    rows[k], names[k] = rows_of(path)
  end
  if not rows[1] or not rows[2] then
    return compare(what, rows[1] and "rows" or said[1], rows[2] and "rows" or said[2])
  end
  local known, common = {}, {}
  for _, name in ipairs(names[1]) do known[name] = not OF_ONE_RUN[name] end
  for _, name in ipairs(names[2]) do if known[name] then common[#common + 1] = name end end
  compare(what, lines_by(rows[1], common), lines_by(rows[2], common))
  return true
end

local scripts = assert(io.popen "ls experiments/*.lua")
for script in scripts:lines() do
  local name = script:match "([^/]+)%.lua$"
  compare_rows(name .. ": predicted", "predict " .. script)
  compare(name .. ": explained", without_words(lines_of(old .. " explain " .. script)),
    without_words(lines_of(new .. " explain " .. script)))
  if TRAINED[name] == "experiment" then
    local what = name .. ": run"
    if not compare_rows(what, "run --steps 2 " .. script) then compare(what, "no rows of one or both", "rows of both") end
  elseif TRAINED[name] == "program" then
    compare(name .. ": run", lines_of("OMP_NUM_THREADS=1 " .. old .. " " .. script),
      lines_of("OMP_NUM_THREADS=1 " .. new .. " " .. script))
  end
end
scripts:close()
os.execute("rm -r " .. folder)
print(("%d of %d comparisons differ"):format(differences, compared))
os.exit(differences == 0 and 0 or 1)
