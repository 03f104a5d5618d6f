-- Rows with dotted paths as a tree with sums, in which blocks that repeat are one: "blocks.0-11 x 12".
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

-- Siblings that follow each other, numbered without a gap and equal but for their numbers, become one.
local function roll(node)
  local out, i, list = {}, 1, node.children
  while i <= #list do
    local first, last = list[i], i
    while list[last + 1] and is_next(list[last + 1].name, list[last].name)
      and signature(list[last + 1]) == signature(first) do
      last = last + 1
      absorb(first, list[last])
    end
    if last > i then
      first.name = ("%s-%s x %d"):format(first.name, list[last].name, last - i + 1)
      multiply(first, last - i + 1)
    end
    out[#out + 1], i = first, last + 1
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
-- sums, count (how many it stands for), children}.
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
