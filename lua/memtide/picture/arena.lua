-- The arena: addresses over the ops of a step. A rectangle for each buffer: how long it lives, where it lies.
local chart = require "memtide.picture.chart"
local step = require "memtide.picture.step"
local svg = require "memtide.picture.svg"
local theme = require "memtide.picture.theme"
local tide = require "memtide.picture.tide"
local util = require "memtide.base.util"

local arena = {}

local HEIGHT, EDGE = 420, 3 -- pixels; a rectangle that is thinner than EDGE has no line around it
local MOST, LEAST = 4000, 0.25 -- of more buffers than MOST those that are thinner than LEAST pixels are left out

-- An address of a plan is its distance from the arena's begin, one of a segment is the GPU's.
local function address(facts, value) return (facts.ranges and "0x%x" or "%d"):format(value) end

local function told(facts, buf)
  local lines = {step.buf_text(facts, buf), ("%s, %s"):format(util.show_bytes(buf.bytes), step.words(facts, buf.category)),
    ("address %s to %s"):format(address(facts, buf.offset), address(facts, buf.offset + buf.size)),
    (buf.always or buf.before and buf.after) and "always" or ("%s %d to %d"):format(step.ops_word(facts), buf.first, buf.last)}
  if buf.layer ~= "" then lines[#lines + 1] = "layer " .. buf.layer end
  if buf.where ~= "" then lines[#lines + 1] = buf.where end
  return lines
end

-- PyTorch's segments: a frame around what was taken from the device at once, for as long as it was kept
local function segments(facts, up, along)
  local out = {}
  for i, one in ipairs(facts.ranges or {}) do
    local x, top = along(one.first - 1), up(one.place + one.bytes)
    local height = math.max(up(one.place) - top, 0.5)
    out[i] = svg.node("rect", {x = x, y = top, width = math.max(along(one.last) - x, 0.5), height = height,
      class = "module soft", ["stroke-width"] = height >= 2 * EDGE and 1 or 0.3}, svg.hover{"segment of " .. util.show_bytes(one.bytes),
        ("address %s to %s"):format(address(facts, one.offset), address(facts, one.offset + one.bytes)),
        ("allocations %d to %d"):format(one.first, one.last)})
  end
  return out
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

local function subtitle(facts)
  if facts.ranges or facts.allocator == "planned" then return facts.text end
  return ("%s; as allocator = \"planned\" places them, this cell has %s"):format(facts.text, facts.allocator)
end

-- What stands above the rectangles
local function bytes_text(facts, hidden)
  local text = facts.ranges and ("%s in %d segment%s"):format(util.show_bytes(facts.arena), #facts.ranges, #facts.ranges == 1 and ""
    or "s") or ("%s in one arena"):format(util.show_bytes(facts.arena))
  return hidden == 0 and text or ("%s; %d tensors too small to see are left out"):format(text, hidden)
end

-- facts: step.facts or step.recorded; style: svg.picture's
function arena.picture(facts, style)
  local head, y = chart.head(facts.title, subtitle(facts))
  local legend, below = chart.legend(20, y, theme.WIDTH - 40, tide.legend(facts))
  local box = {left = 84, right = theme.WIDTH - 24, top = below + 40, bottom = below + 40 + HEIGHT}
  local bottom = box.bottom + 50
  local up = chart.linear(0, facts.arena, box.bottom, box.top)
  local along = chart.linear(0, #facts.ops, box.left, box.right)
  local blocks, hidden = {}, 0
  for _, buf in ipairs(facts.bufs) do
    local x, top = along(buf.first - 1), up(buf.place + buf.size)
    local width, height = along(buf.last) - x, up(buf.place) - top
    if #facts.bufs > MOST and (width < LEAST or height < LEAST) then hidden = hidden + 1
    else blocks[#blocks + 1] = arena.block(x, top, width, height, buf.category, step.buf_text(facts, buf), told(facts, buf)) end
  end
  local peak = along(facts.peak.at - 0.5)
  return svg.picture(theme.WIDTH, bottom, "addresses over the ops of a step: " .. facts.title, style, chart.ground(bottom),
    head, legend, tide.phases(facts, chart.linear(0, 1, box.left, box.right), box),
    chart.left_axis(box, chart.byte_ticks(facts.arena, 8), up), segments(facts, up, along),
    chart.line(peak, box.top - 24, peak, box.bottom, "strong", "3 3"), blocks,
    chart.label(box.left, box.top - 28, bytes_text(facts, hidden), {class = "ink bold"}),
    chart.bottom_axis(box, chart.ticks(0, #facts.ops, 10), along, step.ops_text(facts)))
end

return arena
