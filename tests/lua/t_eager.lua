-- What eager PyTorch allocates, beside what framework = "pytorch" predicts of it: lists that tests/peers/eager.py wrote
-- (--short), for machines without PyTorch. `make peer-eager` compares many more networks with PyTorch itself.
local tap = dofile "tests/tap.lua"

local program = os.getenv "MEMTIDE" or "build/memtide"

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

-- One event: what it is, "bytes" or "= mark", where it stands in the text, and what was freed before the next one.
local function add(events, what, text) events[#events + 1] = {what = what, text = text, freed = {}} end

local function sorted(freed)
  table.sort(freed)
  return table.concat(freed, " ")
end

-- A list of tests/peers/eager/: see short_form in eager.py.
local function expected_of(text)
  local events, allocations, step, last = {}, 0, {}, {}
  local function take(line)
    local bytes, op, freed = line:match "^(%d+) (%S+)(.*)$"
    allocations = allocations + 1
    add(events, bytes, op)
    for back in freed:gmatch "%-(%d+)" do table.insert(events[#events].freed, allocations - tonumber(back)) end
  end
  for line in text:gmatch "[^\n]+" do
    if line:find "^= " then
      add(events, line, "")
      step, last = {}, step
    elseif line == "as before" then
      for _, before in ipairs(last) do take(before) end
      step = last
    else
      take(line)
      step[#step + 1] = line
    end
  end
  return events
end

-- What `memtide dump` prints of a step of PyTorch, without the workspaces that only cuDNN knows.
local function found_of(text)
  local events, place, allocations, unknown = {}, {}, 0, {}
  add(events, "= setup", "")
  for line in text:gmatch "[^\n]+" do
    local id, bytes, op = line:match "^%+(%d+) (%d+) %S+ (.*)$"
    if id and op:find("aten::cudnn_convolution", 1, true) then unknown["-" .. id] = true
    elseif id then
      allocations = allocations + 1
      place[id] = allocations
      add(events, bytes, op)
    elseif line:find "^= " then add(events, line, "")
    elseif not unknown[line] then
      local freed = events[#events].freed
      freed[#freed + 1] = assert(place[line:match "^%-(%d+)$"], line)
    end
  end
  return events
end

local NOTHING = {what = "nothing", text = "", freed = {}}

-- nil, or the first difference
local function difference(expected, found)
  for i = 1, math.max(#expected, #found) do
    local a, b = expected[i] or NOTHING, found[i] or NOTHING
    if a.what ~= b.what then
      return ("event %d: PyTorch %s %s, memtide %s %s"):format(i, a.what, a.text, b.what, b.text)
    elseif sorted(a.freed) ~= sorted(b.freed) then
      return ("after event %d (%s %s), freed by PyTorch: %s; by memtide: %s"):format(i, a.what, a.text, sorted(a.freed),
        sorted(b.freed))
    end
  end
end

-- The events that memtide predicts of the script, or nil and its message
local function predicted(script)
  local path, errors = os.tmpname(), os.tmpname()
  local file = assert(io.open(path, "w"))
  assert(file:write(script))
  file:close()
  local pipe = assert(io.popen(("%s dump %s --set framework=pytorch 2>%s"):format(program, path, errors)))
  local text = pipe:read "a"
  local good, message = pipe:close(), read(errors)
  os.remove(path)
  os.remove(errors)
  if good then return found_of(text) end
  return nil, message
end

-- The comparison itself: a list that is equal, and ones in which a size, a lifetime or the end differs
local list = "= setup\n8 a\n= step 1\n16 b\n4 c -1\n= step 2\nas before\n"
local dumped = "+1 8 - a - -\n= step 1\n+2 16 - b - -\n+3 4 - c - -\n-2\n= step 2\n+5 16 - b - -\n+6 4 - c - -\n-5\n"
tap.is(difference(expected_of(list), found_of(dumped)), nil, "a list is equal to what was dumped")
tap.has(difference(expected_of(list), found_of((dumped:gsub("16", "17")))), "event 4: PyTorch 16 b, memtide 17 b",
  "a size differs")
tap.has(difference(expected_of(list), found_of((dumped:gsub("%-5\n", "")))), "freed by PyTorch: 4; by memtide: ",
  "a lifetime differs")
tap.has(difference(expected_of(list), found_of(dumped .. "+7 1 - d - -\n")), "PyTorch nothing", "one more is allocated")

local pipe = assert(io.popen "ls tests/peers/eager/*.txt")
local count = 0
for path in pipe:lines() do
  local name, text = path:match "([^/]+)%.txt$", read(path)
  local script, events = text:match "^(.-)\n%-%-\n(.*)$"
  local found, message = predicted(script)
  local what = found and difference(expected_of(events), found) or not found and message
  tap.ok(not what, name)
  if what then print("# " .. what) end
  count = count + 1
end
pipe:close()
tap.ok(count >= 20, "there are lists")
tap.done()
