-- Writes values as Python's pickle does, so that tests need no Python: pickle.dump(value, protocol) -> bytes.
--   a table with a first item, or none at all   a list        pickle.tuple{...}   a tuple
--   any other table, pickle.dict{}              a dict, keys sorted               pickle.none   None
-- What is met again, a table or a text, is taken from the memo, also in itself. Protocols 0, 2 and 4; in 0 no floats.
local pickle = {none = setmetatable({}, {__name = "None"})}

local Dict, Tuple = {}, {}
function pickle.dict(t) return setmetatable(t, Dict) end
function pickle.tuple(t) return setmetatable(t, Tuple) end

local function memoize(out, value)
  out.memo[value], out.count = out.count, out.count + 1
  local place = out.memo[value]
  if out.protocol == 0 then out(("p%d\n"):format(place))
  elseif out.protocol == 4 then out "\x94"
  elseif place < 256 then out("q" .. string.char(place))
  else out(("<c1I4"):pack("r", place)) end
end

local function recall(out, place)
  if out.protocol == 0 then out(("g%d\n"):format(place))
  elseif place < 256 then out("h" .. string.char(place))
  else out(("<c1I4"):pack("j", place)) end
end

local function put_integer(out, n)
  if out.protocol == 0 then out(("L%dL\n"):format(n))
  elseif n >= 0 and n < 256 then out("K" .. string.char(n))
  elseif n >= 0 and n < 65536 then out(("<c1I2"):pack("M", n))
  elseif n >= -2 ^ 31 and n < 2 ^ 31 then out(("<c1i4"):pack("J", n))
  else out("\x8a\x08" .. ("<i8"):pack(n)) end
end

local function put_text(out, text)
  if out.protocol == 0 then out("V" .. text:gsub("[\\\n]", {["\\"] = "\\u005c", ["\n"] = "\\u000a"}) .. "\n")
  elseif out.protocol == 4 and #text < 256 then out("\x8c" .. ("s1"):pack(text))
  else out("X" .. ("<s4"):pack(text)) end
  memoize(out, text)
end

local put

-- Of a list or a dict: each thousand of them after a mark, in protocol 0 one by one.
local function put_items(out, n, width, one, many, item)
  for first = 1, n, 1000 do
    local last = math.min(n, first + 999)
    if out.protocol > 0 then out "(" end
    for i = first, last do
      for k = 1, width do put(out, item(i, k)) end
      if out.protocol == 0 then out(one) end
    end
    if out.protocol > 0 then out(many) end
  end
end

local function put_tuple(out, t)
  out "("
  for _, value in ipairs(t) do put(out, value) end
  out "t"
  memoize(out, t)
end

local function put_list(out, t)
  out(out.protocol == 0 and "(l" or "]")
  memoize(out, t)
  put_items(out, #t, 1, "a", "e", function(i) return t[i] end)
end

local function put_dict(out, t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  out(out.protocol == 0 and "(d" or "}")
  memoize(out, t)
  put_items(out, #keys, 2, "s", "u", function(i, k) return k == 1 and keys[i] or t[keys[i]] end)
end

function put(out, value)
  local kind = getmetatable(value)
  if value == pickle.none then out "N"
  elseif value == true then out(out.protocol == 0 and "I01\n" or "\x88")
  elseif value == false then out(out.protocol == 0 and "I00\n" or "\x89")
  elseif math.type(value) == "integer" then put_integer(out, value)
  elseif math.type(value) == "float" then out("G" .. (">d"):pack(value))
  elseif out.memo[value] then recall(out, out.memo[value])
  elseif type(value) == "string" then put_text(out, value)
  elseif kind == Tuple then put_tuple(out, value)
  elseif kind == Dict or value[1] == nil and next(value) ~= nil then put_dict(out, value)
  else put_list(out, value) end
end

-- Calls write(bytes) with one piece after the other.
function pickle.write(value, protocol, write)
  local out = setmetatable({memo = {}, count = 0, protocol = protocol or 4},
    {__call = function(_, bytes) write(bytes) end})
  if out.protocol > 0 then out("\x80" .. string.char(out.protocol)) end
  put(out, value)
  out "."
end

function pickle.dump(value, protocol)
  local parts = {}
  pickle.write(value, protocol, function(bytes) parts[#parts + 1] = bytes end)
  return table.concat(parts)
end

return pickle
