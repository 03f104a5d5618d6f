-- The arena: addresses over the ops of a step. A rectangle for each buffer: how long it lives, where it lies.
local chart = require "memtide.picture.chart"
local svg = require "memtide.picture.svg"
local theme = require "memtide.picture.theme"
local tide = require "memtide.picture.tide"
local util = require "memtide.base.util"

local arena = {}

local HEIGHT, EDGE = 420, 3 -- pixels; a rectangle that is thinner than EDGE has no line around it

local function told(buf)
  local lines = {buf.name, ("%s, %s"):format(util.show_bytes(buf.bytes), tide.words(buf.category)),
    ("address %d to %d"):format(buf.offset, buf.offset + buf.size),
    buf.always and "always" or ("ops %d to %d"):format(buf.first, buf.last)}
  if buf.layer ~= "" then lines[#lines + 1] = "layer " .. buf.layer end
  if buf.where ~= "" then lines[#lines + 1] = buf.where end
  return lines
end

-- A rectangle of a category (nil: of a module), with its name inside where enough of it fits
function arena.block(x, y, width, height, category, name, lines)
  local edged = width >= EDGE and height >= EDGE
  local out = {svg.node("rect", {x = x, y = y, width = math.max(width, 0.5), height = math.max(height, 0.5),
    class = (category and theme.category(category) or "module") .. " block" .. (edged and " edge" or ""),
    ["stroke-width"] = edged and 0.8 or nil}, svg.hover(lines))}
  if height >= 15 then
    local text = svg.fitted(name, width - 8, theme.LETTERS)
    if text == name or #text > 5 then
      out[2] = chart.label(x + 4, y + height / 2 + 4, text, {class = category and theme.on_category(category) or "ink",
        ["pointer-events"] = "none"})
    end
  end
  return out
end

-- facts: step.facts of memtide's step; style: svg.picture's. Raises for PyTorch's, whose buffers have no address.
function arena.picture(facts, style)
  if facts.pytorch then util.fail_usage "arena: PyTorch's step has no plan: its tensors come and go; memtide snapshot has segments" end
  local text = facts.text
  if facts.allocator ~= "planned" then
    text = ("%s; as allocator = \"planned\" places them, this cell has %s"):format(text, facts.allocator)
  end
  local head, y = chart.head(facts.title, text)
  local legend, below = chart.legend(20, y, theme.WIDTH - 40, tide.legend(facts))
  local box = {left = 84, right = theme.WIDTH - 24, top = below + 40, bottom = below + 40 + HEIGHT}
  local bottom = box.bottom + 50
  local up = chart.linear(0, facts.arena, box.bottom, box.top)
  local along = chart.linear(0, #facts.ops, box.left, box.right)
  local blocks = {}
  for i, buf in ipairs(facts.bufs) do
    local x, top = along(buf.first - 1), up(buf.offset + buf.size)
    blocks[i] = arena.block(x, top, along(buf.last) - x, up(buf.offset) - top, buf.category, buf.name, told(buf))
  end
  local peak = along(facts.peak.at - 0.5)
  return svg.picture(theme.WIDTH, bottom, "addresses over the ops of a step: " .. facts.title, style, chart.ground(bottom),
    head, legend, tide.phases(facts, chart.linear(0, 1, box.left, box.right), box),
    chart.left_axis(box, chart.byte_ticks(facts.arena, 8), up),
    chart.line(peak, box.top - 24, peak, box.bottom, "strong", "3 3"), blocks,
    chart.label(box.left, box.top - 28, ("%s in one arena"):format(util.show_bytes(facts.arena)), {class = "ink bold"}),
    chart.bottom_axis(box, chart.ticks(0, #facts.ops, 10), along, "ops of one step, in their order"))
end

return arena
