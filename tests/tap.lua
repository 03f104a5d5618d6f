-- Test Anything Protocol for Lua tests: checks, then `tap.done()`.
local tap = {}
local count, failed = 0, 0
io.stdout:setvbuf "line" -- a test that is stopped, or crashes, has told how far it came

function tap.ok(good, what)
  count = count + 1
  if not good then failed = failed + 1 end
  print(("%sok %d - %s"):format(good and "" or "not ", count, what))
  return good
end

function tap.is(found, expected, what)
  if not tap.ok(found == expected, what) then
    print(("# found    %s\n# expected %s"):format(tostring(found), tostring(expected)))
  end
end

function tap.near(found, expected, tolerance, what)
  if not tap.ok(math.abs(found - expected) <= tolerance, what) then
    print(("# found %.9g, expected %.9g"):format(found, expected))
  end
end

-- The text contains the part.
function tap.has(text, part, what)
  if not tap.ok(type(text) == "string" and text:find(part, 1, true) ~= nil, what) then
    print(("# found %s\n# wanted in it: %s"):format(tostring(text), part))
  end
end

-- Calling f raises a message that contains the part.
function tap.raises(part, what, f, ...)
  local good, message = pcall(f, ...)
  if good then tap.ok(false, what .. " (nothing was raised)") else tap.has(tostring(message), part, what) end
end

-- The line on which the caller stands, offset added: "t_nn.lua:12:"
function tap.line(offset)
  local info = debug.getinfo(2, "Sl")
  return ("%s:%d:"):format(info.short_src:match("[^/]*$"), info.currentline + (offset or 0))
end

function tap.done()
  print(("1..%d"):format(count))
  io.stdout:flush()
  os.exit(failed == 0, true)
end

return tap
