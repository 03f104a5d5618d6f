-- tap.lua: Test Anything Protocol for Lua tests: checks, then `tap.done()`.
-- local tap = dofile "tests/tap.lua"
local tap = {count = 0, failed = 0}

function tap.ok(good, name, ...)
  tap.count = tap.count + 1
  if not good then tap.failed = tap.failed + 1 end
  io.write(good and "ok " or "not ok ", tap.count, " - ", tostring(name):format(...), "\n")
  return good
end

function tap.note(format, ...) io.write("# ", (format:format(...):gsub("\n", "\n# ")), "\n") end

function tap.is(found, expected, name, ...)
  local good = tap.ok(found == expected, name, ...)
  if not good then tap.note("found %s, expected %s", tostring(found), tostring(expected)) end
  return good
end

-- |found - expected| <= atol + rtol |expected|; NaN is never near
function tap.near(found, expected, rtol, atol, name, ...)
  local good = tap.ok(type(found) == "number" and math.abs(found - expected) <= atol + rtol * math.abs(expected), name, ...)
  if not good then tap.note("found %s, expected %.9g", tostring(found), expected) end
  return good
end

-- The text contains this part.
function tap.has(text, part, name, ...)
  local good = tap.ok(type(text) == "string" and text:find(part, 1, true) ~= nil, name, ...)
  if not good then tap.note("found %s\nwanted in it: %s", tostring(text), part) end
  return good
end

-- The call raises an error whose text contains this part.
function tap.raises(call, part, name, ...)
  local good, problem = pcall(call)
  return tap.has(not good and tostring(problem) or "no error", part, name, ...)
end

function tap.skip(name, why)
  tap.count = tap.count + 1
  io.write("ok ", tap.count, " - ", name, " # SKIP ", why, "\n")
end

function tap.done()
  io.write("1..", tap.count, "\n")
  os.exit(tap.failed == 0, true)
end

return tap
