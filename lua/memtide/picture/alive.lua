-- Alive at the peak: from the step over modules and layers to tensors, each as wide as its bytes.
local arena = require "memtide.picture.arena"
local chart = require "memtide.picture.chart"
local step = require "memtide.picture.step"
local svg = require "memtide.picture.svg"
local theme = require "memtide.picture.theme"
local tide = require "memtide.picture.tide"
local util = require "memtide.base.util"

local alive = {}

local ROW, LEAST = 30, 0.25 -- pixels: of a level; a block that is narrower is left out

-- ---- facts

local function child_of(node, name)
  local child = node.of[name]
  if not child then
    child = {name = name, path = node.path == "" and name or node.path .. "." .. name, bytes = 0, of = {}}
    node.of[name] = child
    node[#node + 1] = child
  end
  return child
end

-- {name, path, bytes, children ...} of modules; a tensor is a node with `buf`. Buffers of no layer, such as inputs, are
-- the step's own. Children are in the order of the network. A recording knows no layers: lines of code stand in their place.
function alive.tree(facts)
  local root, bufs = {name = "the peak", path = "", bytes = 0, of = {}}, {}
  table.move(facts.peak.alive, 1, #facts.peak.alive, 1, bufs)
  table.sort(bufs, function(a, b) return a.number < b.number end)
  for _, buf in ipairs(bufs) do
    local node = root
    node.bytes = node.bytes + buf.size
    local function go_into(part)
      node = child_of(node, part)
      node.bytes = node.bytes + buf.size
    end
    if not facts.recorded then buf.layer:gsub("[^.]+", go_into) elseif buf.where ~= "" then go_into(tide.short(buf.where)) end
    node[#node + 1] = {buf = buf, bytes = buf.size, name = buf.name:sub(1, #buf.layer + 1) == buf.layer .. "."
      and buf.layer ~= "" and buf.name:sub(#buf.layer + 2) or buf.name}
  end
  if facts.peak.slack > 0 then
    local slack = {name = step.slack_text(facts), category = "other", bytes = facts.peak.slack}
    root[#root + 1], root.bytes = {buf = slack, bytes = slack.bytes, name = slack.name}, root.bytes + slack.bytes
  end
  return root
end

function alive.depth(node)
  local most = 0
  for _, child in ipairs(node) do most = math.max(most, alive.depth(child)) end
  return most + 1
end

-- ---- picture

local function share(facts, bytes) return ("%.1f %% of the peak"):format(100 * bytes / facts.peak.bytes) end

local function told(facts, node)
  if not node.buf then
    return {node.path == "" and facts.title or node.path, util.show_bytes(node.bytes), share(facts, node.bytes)}
  end
  local buf = node.buf
  local lines = {buf.size and step.buf_text(facts, buf) or buf.name,
    ("%s, %s"):format(util.show_bytes(buf.bytes), step.words(facts, buf.category)), share(facts, node.bytes)}
  if buf.where and buf.where ~= "" then lines[#lines + 1] = buf.where end
  return lines
end

local function draw(out, facts, node, x, y, width)
  if width < LEAST then return end
  local text = ("%s %s"):format(node.name, util.show_bytes(node.bytes))
  if svg.width_of(text, theme.LETTERS) > width - 8 then text = node.name end
  out[#out + 1] = arena.block(x, y, width, ROW - 2, node.buf and node.buf.category, text, told(facts, node))
  for _, child in ipairs(node) do
    local wide = width * child.bytes / math.max(node.bytes, 1)
    draw(out, facts, child, x, y + ROW, wide)
    x = x + wide
  end
end

-- facts: step.facts; style: svg.picture's
function alive.picture(facts, style)
  local tree = alive.tree(facts)
  local head, y = chart.head(facts.title, ("alive at the peak of %s, at %s; %s"):format(util.show_bytes(facts.peak.bytes),
    tide.place(facts), facts.text))
  local legend, below = chart.legend(20, y, theme.WIDTH - 40, tide.legend(facts))
  local bottom, blocks = below + alive.depth(tree) * ROW + 20, {}
  draw(blocks, facts, tree, 20, below, theme.WIDTH - 40)
  return svg.picture(theme.WIDTH, bottom, "alive at the peak, by module: " .. facts.title, style, chart.ground(bottom), head,
    legend, blocks)
end

return alive
