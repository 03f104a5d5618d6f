-- The text of a description's constants (exporter.py): lists in lists, in which what is there more than once, as rows of
-- a mask are, has a name.
local core = require "memtide.core"

local constants = {}
local WIDTH, MOST = 110, 4 -- columns of a line; dimensions of a value

function constants.name(key) return "constant" .. key:sub(2) end

-- The shape; without sizes of 1 where it has more dimensions than a value
function constants.shape(constant)
  if #constant.shape <= MOST then return constant.shape end
  local shape = {}
  for _, size in ipairs(constant.shape) do if size > 1 then shape[#shape + 1] = size end end
  return shape
end

local function number(x)
  if x == 0 and 1 / x < 0 then return "-0.0" end -- -0 is the whole number 0
  return core.number(x)
end

local function list_of(items)
  local lines, line = {}, "{" .. items[1]
  for i = 2, #items do
    if #line + #items[i] + 6 > WIDTH then
      lines[#lines + 1] = line .. ","
      line = " " .. items[i]
    else line = line .. ", " .. items[i] end
  end
  lines[#lines + 1] = line .. "}"
  return table.concat(lines, "\n  ")
end

-- Makes lists of `size` neighbours of `items`. Those that are there more than once become lines of `out`.
local function lists_of(items, size, out)
  local lists, count = {}, {}
  for i = 1, #items, size do
    local text = list_of(table.move(items, i, i + size - 1, 1, {}))
    lists[#lists + 1], count[text] = text, (count[text] or 0) + 1
  end
  local names = {}
  for i, text in ipairs(lists) do
    if count[text] > 1 and not names[text] then
      out.parts = out.parts + 1
      names[text] = ("part[%d]"):format(out.parts)
      out[#out + 1] = ("  %s = %s"):format(names[text], text)
    end
    lists[i] = names[text] or text
  end
  return lists
end

-- The statements that make the constant of that key
function constants.text(key, constant)
  local items, shape, out = {}, constants.shape(constant), {parts = 0}
  for i, x in ipairs(constant.values) do items[i] = number(x) end
  for d = #shape, 2, -1 do items = lists_of(items, shape[d], out) end
  local name, whole = constants.name(key), list_of(items)
  if #out == 0 then return ("local %s = %s\n"):format(name, whole) end
  return ("local %s\ndo\n  local part = {}\n%s\n  %s = %s\nend\n"):format(name, table.concat(out, "\n"), name, whole)
end

return constants
