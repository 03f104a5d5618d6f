-- lua5.4 tests/coverage.lua BUILD LEAST: which lines of core/ were run, of what make coverage built and ran, by gcov.
-- Prints a line for each file, BUILD/coverage.txt says which lines were not reached; ends with 1 below LEAST percent
-- (0: prints the sum alone).
local build, least = arg[1], tonumber(arg[2])

-- reached[file][line]: was it, by any of the objects that hold code of it (a header is in several)
local function read(reached)
  local gcov = assert(io.popen(("find %s/core -name '*.gcda' | sort | xargs gcov --stdout 2>%s/gcov.log")
                               :format(build, build)))
  local lines
  for text in gcov:lines() do
    local count, number, rest = text:match "^%s*([^:]+):%s*(%d+):(.*)"
    local source = number == "0" and rest:match "^Source:(.*)"
    if source then
      lines = source:find "^core/" and (reached[source] or {}) or {}
      if source:find "^core/" then reached[source] = lines end
    elseif lines and number and number ~= "0" and count ~= "-" then
      lines[tonumber(number)] = lines[tonumber(number)] or count:find "^%d" ~= nil
    end
  end
  assert(gcov:close(), "gcov failed: " .. build .. "/gcov.log says why")
end

-- Does the object of a source have functions? One of a table alone has none.
local function has_code(source)
  local nm <close> = assert(io.popen(("nm %s/%s"):format(build, source:gsub("c$", "o"))))
  return nm:read "a":find " [tT] " ~= nil
end

-- An object that nothing linked, or that nothing ran, has no counts at all: its lines would be missing from the sum.
local function expect_all(reached)
  local sources = assert(io.popen "ls core/*/*.c core/*/*/*.c")
  for source in sources:lines() do
    if not reached[source] and has_code(source) then
      error(source .. ": nothing of it was run: was it built with --coverage?", 0)
    end
  end
  sources:close()
end

local function sorted(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

-- "12-14 20", how many lines there are, and how many of them were reached. Lines without code join what is around them.
local function summary(lines)
  local missed, all, hit, open = {}, 0, 0, false
  for _, number in ipairs(sorted(lines)) do
    all = all + 1
    if lines[number] then
      hit, open = hit + 1, false
    elseif open then
      missed[#missed] = missed[#missed]:match "^%d+" .. "-" .. number
    else
      missed[#missed + 1], open = tostring(number), true
    end
  end
  return missed, all, hit
end

local function percent(hit, all) return ("%6.1f %%"):format(100 * hit / all) end

local reached, all, hit, missing = {}, 0, 0, {}
read(reached)
expect_all(reached)
if least > 0 then print "lines reached percent  file" end
for _, source in ipairs(sorted(reached)) do
  local missed, a, h = summary(reached[source])
  all, hit = all + a, hit + h
  for _, range in ipairs(missed) do missing[#missing + 1] = source .. ":" .. range .. "\n" end
  if least > 0 then print(("%5d %7d %s %s"):format(a, h, percent(h, a), source)) end
end
print(("%5d %7d %s core/"):format(all, hit, percent(hit, all)))
local file = assert(io.open(build .. "/coverage.txt", "w"))
assert(file:write(table.concat(missing)))
assert(file:close())
if least > 0 then print("lines that were not reached: " .. build .. "/coverage.txt") end
if 100 * hit < least * all then
  print(("expected at least %g %%"):format(least))
  os.exit(1)
end
