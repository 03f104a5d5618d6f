-- Values as bytes between processes. A frame is a length, a newline, and that many bytes of
--   t f            true, false             i12;            a whole number      n0x1.8p+1;     a number (also inf, nan)
--   s3:abc         text                    {key value ...} a table; its keys are whole numbers or text
-- A reader raises for anything else.
local wire = {}

local DEEPEST, LONGEST = 8, 1 << 28
local SPECIAL = {["inf"] = 1 / 0, ["-inf"] = -1 / 0, ["nan"] = 0 / 0, ["-nan"] = 0 / 0}

local function write(value, out, depth)
  local kind = math.type(value) or type(value)
  if kind == "boolean" then out[#out + 1] = value and "t" or "f"
  elseif kind == "integer" then out[#out + 1] = ("i%d;"):format(value)
  elseif kind == "float" then out[#out + 1] = ("n%a;"):format(value)
  elseif kind == "string" then out[#out + 1] = ("s%d:%s"):format(#value, value)
  elseif kind == "table" and depth <= DEEPEST then
    out[#out + 1] = "{"
    for key, item in pairs(value) do
      write(key, out, DEEPEST + 1)
      write(item, out, depth + 1)
    end
    out[#out + 1] = "}"
  else error(("a %s cannot be sent"):format(kind), 0) end
end

-- The frame of a value; raises if the value cannot be sent.
function wire.frame(value)
  local out = {}
  write(value, out, 1)
  local text = table.concat(out)
  if #text > LONGEST then error(("a message of %d bytes is too long"):format(#text), 0) end
  return #text .. "\n" .. text
end

local function bad(at) error(("a damaged message at byte %d"):format(at), 0) end

local read

local READ = {
  t = function(_, at) return true, at end,
  f = function(_, at) return false, at end,
  i = function(text, at)
    local digits, after = text:match("^(-?%d+);()", at)
    return math.tointeger(tonumber(digits or "")) or bad(at), after
  end,
  n = function(text, at)
    local digits, after = text:match("^(-?[%w.+-]+);()", at)
    local value = digits and (SPECIAL[digits] or tonumber(digits))
    return value and value + 0.0 or bad(at), after
  end,
  s = function(text, at)
    local digits, from = text:match("^(%d+):()", at)
    local length = math.tointeger(tonumber(digits or ""))
    if not length or length > #text - from + 1 then bad(at) end
    return text:sub(from, from + length - 1), from + length
  end,
  ["{"] = function(text, at, depth)
    local out = {}
    if depth > DEEPEST then bad(at) end
    while text:sub(at, at) ~= "}" do
      local key, from = read(text, at, DEEPEST + 1)
      if math.type(key) ~= "integer" and type(key) ~= "string" or out[key] ~= nil then bad(at) end
      out[key], at = read(text, from, depth + 1)
    end
    return out, at + 1
  end,
}

function read(text, at, depth)
  local reader = READ[text:sub(at, at)]
  if not reader then bad(at) end
  return reader(text, at + 1, depth)
end

-- Returns a function that takes bytes as they arrive (or nil) and returns the next complete value, or nil. It raises if
-- the bytes are damaged.
function wire.reader()
  local pieces, size, length = {}, 0, nil -- bytes not taken yet; their number; length of the first frame, if known
  local function all()
    local text = table.concat(pieces)
    pieces = {text}
    return text
  end
  local function begin()
    local text = all()
    local digits, from = text:match("^(%d+)\n()")
    length = math.tointeger(tonumber(digits or ""))
    if not length and (#text > 10 or text:find("^%d*[^%d]")) or length and length > LONGEST then bad(1) end
    if not length then return end
    pieces = {text:sub(from)}
    size = #pieces[1]
  end
  return function(bytes)
    if bytes and bytes ~= "" then pieces[#pieces + 1], size = bytes, size + #bytes end
    if not length then begin() end
    if not length or size < length then return nil end
    local text, last = all(), length
    pieces, size, length = {text:sub(last + 1)}, size - last, nil
    text = text:sub(1, last)
    local value, after = read(text, 1, 1)
    if after ~= #text + 1 then bad(after) end
    return value
  end
end

return wire
