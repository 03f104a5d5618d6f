-- lua5.4 tests/coverage.lua FOLDER LEAST: which lines of core/ the programs reached that were built with --coverage in
-- FOLDER and have run since. Prints a line per file, then the lines that nobody reached; ends with 1 where less than
-- LEAST percent of all were reached.
local folder, least = arg[1], tonumber(arg[2])

local lines = {} -- by file and number: {text, reached}; a header's stands in every object that includes it

local function read_objects(paths)
  local pipe = assert(io.popen("gcov -t " .. paths .. " 2>/dev/null"))
  local file
  for line in pipe:lines() do
    local count, number, text = line:match "^%s*([^:]+):%s*(%d+):(.*)$"
    if number == "0" then file = text:match "^Source:(core/.*)" or text:match "^Source:" and nil or file end
    if count and file and number ~= "0" and count ~= "-" then
      lines[file] = lines[file] or {}
      local known = lines[file][tonumber(number)] or {text = text, reached = false}
      known.reached = known.reached or not count:find "[#=]"
      lines[file][tonumber(number)] = known
    end
  end
  assert(pipe:close())
end

local function read_all()
  local list, pipe = {}, assert(io.popen(("find %s/core -name '*.gcno' | sort"):format(folder)))
  for path in pipe:lines() do list[#list + 1] = path end
  pipe:close()
  assert(#list > 0, "no object built with --coverage in " .. folder)
  read_objects(table.concat(list, " "))
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

local function count(of)
  local all, reached = 0, 0
  for _, line in pairs(of) do
    all, reached = all + 1, reached + (line.reached and 1 or 0)
  end
  return all, reached
end

read_all()
local files, all, reached = sorted_keys(lines), 0, 0
for _, file in ipairs(files) do
  local a, r = count(lines[file])
  all, reached = all + a, reached + r
  print(("%6.1f %% %5d of %5d  %s"):format(100 * r / a, r, a, file))
end
for _, file in ipairs(files) do
  for _, number in ipairs(sorted_keys(lines[file])) do
    local line = lines[file][number]
    if not line.reached then print(("%s:%d: %s"):format(file, number, line.text)) end
  end
end
local percent = 100 * reached / all
print(("%6.1f %% %5d of %5d  lines of core/; expected at least %g %%"):format(percent, reached, all, least))
os.exit(percent >= least)
