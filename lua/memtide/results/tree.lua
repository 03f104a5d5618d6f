-- Rows with dotted paths as a tree with sums, in which blocks that repeat are one: "blocks.0-11 x 12". So are several that repeat in
-- turns: "0-5 x 3" of the kinds (Conv2d, ReLU).
local tree = {}

local function new(name, path) return {name = name, path = path, children = {}, sums = {}, count = 1} end

local function child_of(node, name)
  node.by_name = node.by_name or {}
  local child = node.by_name[name]
  if not child then
    child = new(name, node.path == "" and name or node.path .. "." .. name)
    node.by_name[name], node.children[#node.children + 1] = child, child
  end
  return child
end

local function add(sums, more) for key, value in pairs(more) do sums[key] = (sums[key] or 0) + value end end

-- ---- blocks that repeat

-- What a node is, apart from its name and its numbers
local function signature(node)
  if not node.signature then
    local parts = {node.same or ""}
    for _, child in ipairs(node.children) do parts[#parts + 1] = child.name .. "\1" .. signature(child) end
    node.signature = table.concat(parts, "\2") .. "\3"
  end
  return node.signature
end

-- Node b's numbers go into node a, which is the same but for them.
local function absorb(a, b)
  add(a.sums, b.sums)
  for i, child in ipairs(a.children) do absorb(child, b.children[i]) end
end

local function multiply(node, count)
  node.count = node.count * count
  for _, child in ipairs(node.children) do multiply(child, count) end
end

local function is_next(name, after) return math.tointeger(tonumber(name)) == (math.tointeger(tonumber(after)) or -2) + 1 end

-- How many siblings from list[first] on repeat the first `period` ones, these included: numbered without a gap, equal but for
-- their numbers. The last turn need not be whole.
local function repeating(list, first, period)
  local at = first + period
  while list[at] and is_next(list[at].name, list[at - 1].name) and signature(list[at]) == signature(list[at - period]) do
    at = at + 1
  end
  return at - first
end

-- The period of the most siblings from list[first] on that repeat, of equal ones the least, and how many they are; 1, 1: none do
local function longest(list, first)
  local period, most = 1, 1
  for p = 1, (#list - first + 1) // 2 do
    local length = repeating(list, first, p)
    if length >= 2 * p and length > most then period, most = p, length end
  end
  return period, most
end

-- The first of `count` equal nodes stands for all: list[first], list[first + period], ...
local function merge(list, first, period, count)
  local node, last = list[first], list[first + period * (count - 1)].name
  for i = 1, count - 1 do absorb(node, list[first + period * i]) end
  multiply(node, count)
  if period == 1 then node.name = ("%s-%s"):format(node.name, last)
  elseif count == 2 then node.name = ("%s, %s"):format(node.name, last)
  else node.name = ("%s, %s .. %s"):format(node.name, list[first + period].name, last) end
  node.name = ("%s x %d"):format(node.name, count)
  return node
end

-- A node for `period` siblings that repeat in turns. Layers without children are told by its one line.
local function pattern(list, first, period, count)
  local name = ("%s-%s x %d"):format(list[first].name, list[first + period * count - 1].name, count)
  local node = new(name, list[first].path)
  node.pattern = {}
  local deep = false
  for i = 1, period do
    local member = merge(list, first + i - 1, period, count)
    add(node.sums, member.sums)
    node.count, node.pattern[i], deep = member.count, member, deep or #member.children > 0
  end
  if deep then node.children, node.pattern = node.pattern, nil end
  return node
end

-- Siblings that repeat become one, as do those that repeat in turns. A turn ends where the repetition ends: in Conv2d, ReLU,
-- Conv2d, ReLU, ... the first Conv2d often differs, and the first ReLU then stands by itself.
local function roll(node)
  local out, i, list = {}, 1, node.children
  while i <= #list do
    local period, length = longest(list, i)
    if length == 1 or length % period > 0 then
      out[#out + 1], i = list[i], i + 1
    else
      out[#out + 1], i = (period == 1 and merge or pattern)(list, i, period, length // period), i + length
    end
  end
  node.children = out
  for _, child in ipairs(out) do roll(child) end
end

-- A node that holds nothing but one other is one line with it.
local function join(node)
  for i, child in ipairs(node.children) do
    while #child.children == 1 and not child.row do
      local only = child.children[1]
      only.name = child.name .. "." .. only.name
      child = only
    end
    node.children[i] = child
    join(child)
  end
end

-- ---- building and showing

-- "a.b" -> {"a", "b"}; the network itself is "."
local function names_of(path)
  local names = {}
  for name in path:gmatch "[^.]+" do names[#names + 1] = name end
  return #names > 0 and names or {"."}
end

-- rows: {{path = "blocks.0.attn", same = a text, and what else the caller wants}, ...}, in their order; numbers(row): the
-- numbers of a row, {name = number}, which a node sums up over all rows below it. Rows with equal texts `same` are the
-- same but for their place. -> the root: a node is {name, path, row (of its own path, the first of several; nil: none),
-- sums, count (how many it stands for), children, pattern (of layers that repeat in turns the nodes of one turn; nil: it is none)}.
function tree.build(rows, numbers)
  local root = new("", "")
  for _, row in ipairs(rows) do
    local node, found = root, numbers(row)
    add(root.sums, found)
    for _, name in ipairs(names_of(row.path)) do
      node = child_of(node, name)
      add(node.sums, found)
    end
    node.row, node.same = node.row or row, (node.same or "") .. row.same
  end
  roll(root)
  join(root)
  return root
end

-- What text(row) says of a node's rows, a list: of a layer one, of layers that repeat in turns one each, of others none.
function tree.texts(node, text)
  local out = {}
  for _, member in ipairs(node.pattern or {node}) do out[#out + 1] = member.row and text(member.row) end
  return out
end

-- The kind of a node's row; of layers that repeat in turns "(Conv2d, ReLU)"; else "". kind(row): of a row
function tree.kind(node, kind)
  local text = table.concat(tree.texts(node, kind), ", ")
  return node.pattern and "(" .. text .. ")" or text
end

-- Calls each(node, name) for the nodes of the tree down to `depth` levels (nil: all), in their order; name: indented.
function tree.each(root, depth, each, level)
  level = level or 0
  if depth and level >= depth then return end
  for _, node in ipairs(root.children) do
    each(node, ("  "):rep(level) .. node.name)
    tree.each(node, depth, each, level + 1)
  end
end

return tree
