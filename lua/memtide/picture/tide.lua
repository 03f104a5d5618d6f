-- The tide: memory over the ops of a step, stacked by category; phases shaded, the peak named, and below it its largest
-- tensors with the script's lines.
local chart = require "memtide.picture.chart"
local step = require "memtide.picture.step"
local svg = require "memtide.picture.svg"
local theme = require "memtide.picture.theme"
local util = require "memtide.base.util"

local tide = {}

-- From the bottom of the stack: what stays, then what comes and goes
tide.ORDER = {"weights", "optimizer", "gradients", "input", "activations", "activation_gradients", "workspace", "other"}

local MOST_COLUMNS, SHOWN, HEIGHT = 800, 8, 300

-- The ops as at most `most` columns of equally many: each is the one of its ops with the most memory, so that the peak
-- is always seen. {{op, number of the op, phase}, ...}; second value: how many ops a column has at most.
function tide.columns(facts, most)
  local ops, out = facts.ops, {}
  local each = math.max(1, math.ceil(#ops / most))
  for first = 1, #ops, each do
    local best = first
    for i = first, math.min(first + each - 1, #ops) do
      if i == facts.peak.at or best ~= facts.peak.at and ops[i].total > ops[best].total then best = i end
    end
    out[#out + 1] = {op = ops[best], number = best}
  end
  return out, each
end

-- The categories of which one of the items has bytes, in the order of the stack. bytes_of(item) -> {[category] = bytes}
function tide.present(items, bytes_of)
  local out = {}
  for _, name in ipairs(tide.ORDER) do
    for _, item in ipairs(items) do
      if (bytes_of(item)[name] or 0) > 0 then
        out[#out + 1] = name
        break
      end
    end
  end
  return out
end

local function bytes_of(op) return op.bytes end

-- The categories that the step has
function tide.categories(facts) return tide.present(facts.ops, bytes_of) end

function tide.legend(facts)
  local out = {}
  for i, name in ipairs(tide.categories(facts)) do out[i] = {text = step.words(facts, name), class = theme.category(name)} end
  return out
end

-- "experiments/article.lua:10" -> "article.lua:10"
function tide.short(where) return where:match "[^/]*$" end

-- "linear_dx 5 (article.lua:10)"
function tide.place(facts)
  local peak = facts.peak
  return peak.where ~= "" and ("%s (%s)"):format(peak.op, tide.short(peak.where)) or peak.op
end

-- ---- the plot

-- The outline of a layer of the stack: along `low` and back along `high`, in steps
local function outline(low, high, x, y)
  local parts = {}
  local function go(i, value) parts[#parts + 1] = svg.number(x(i)) .. " " .. svg.number(y(value)) end
  for i = 1, #high do go(i - 1, high[i]) go(i, high[i]) end
  for i = #low, 1, -1 do go(i, low[i]) go(i - 1, low[i]) end
  return "M" .. table.concat(parts, "L") .. "Z"
end

local function layers(facts, columns, x, y)
  local out, low = {}, {}
  for i = 1, #columns do low[i] = 0 end
  for _, name in ipairs(tide.categories(facts)) do
    local high = {}
    for i, column in ipairs(columns) do high[i] = low[i] + column.op.bytes[name] end
    out[#out + 1] = svg.node("path", {d = outline(low, high, x, y), class = "edge " .. theme.category(name),
      ["stroke-width"] = 0.6})
    low = high
  end
  return out
end

local function told(facts, column)
  local op, lines = column.op, {}
  lines[1] = ("%d of %d: %s"):format(column.number, #facts.ops, op.name)
  if op.layer ~= "" then lines[1] = lines[1] .. " " .. op.layer end
  if op.where ~= "" then lines[2] = op.where end
  lines[#lines + 1] = ("%s, %s alive"):format(op.phase, util.show_bytes(op.total))
  for _, name in ipairs(tide.categories(facts)) do
    if op.bytes[name] > 0 then lines[#lines + 1] = ("%s %s"):format(step.words(facts, name), util.show_bytes(op.bytes[name])) end
  end
  return lines
end

local function hits(facts, columns, x, box)
  local out = {}
  for i, column in ipairs(columns) do
    out[i] = svg.node("rect", {class = "hit", x = x(i - 1), y = box.top, width = x(i) - x(i - 1),
      height = box.bottom - box.top}, svg.hover(told(facts, column)))
  end
  return out
end

-- The phases: fields behind the plot, with their names in a strip above it
function tide.phases(facts, x, box)
  local out, count = {}, #facts.ops
  for i, phase in ipairs(facts.phases) do
    local from, to = x((phase.first - 1) / count), x(phase.last / count)
    out[#out + 1] = svg.node("rect", {x = from, y = box.top - 20, width = to - from, height = box.bottom - box.top + 20,
      class = phase.name == "backward" and "shade" or "paper"}, svg.node("title", nil, phase.name))
    local wide, peak = svg.width_of(phase.name, theme.LETTERS), x((facts.peak.at - 0.5) / count)
    local at = from + 4 < peak + 3 and peak - 3 < from + 4 + wide and peak + 5 or from + 4 -- beside the line of the peak
    if at + wide < to then out[#out + 1] = chart.label(at, box.top - 6, phase.name, {class = "muted"}) end
    if i > 1 then out[#out + 1] = chart.line(from, box.top - 20, from, box.bottom, "line") end
  end
  return out
end

local function mark_peak(facts, x, box)
  local at = x((facts.peak.at - 0.5) / #facts.ops)
  local text = ("peak %s: %s"):format(util.show_bytes(facts.peak.bytes), tide.place(facts))
  text = svg.fitted(text, box.right - box.left, theme.LETTERS)
  local half = svg.width_of(text, theme.LETTERS) / 2
  local middle = math.max(box.left + half, math.min(box.right - half, at))
  return {chart.line(at, box.top - 24, at, box.bottom, "strong", "3 3"),
    chart.label(middle, box.top - 30, text, {["text-anchor"] = "middle", class = "ink bold"})}
end

-- A line where the allocator has more than what is alive
local function mark_held(facts, y, box, most)
  if facts.held < most * 1.005 then return {} end
  return {chart.line(box.left, y(facts.held), box.right, y(facts.held), "soft", "6 3"),
    chart.label(box.right - 4, y(facts.held) - 5, ("the allocator holds %s"):format(util.show_bytes(facts.held)),
      {["text-anchor"] = "end", class = "ink"})}
end

-- Rows of the largest tensors at the peak, for chart.rows: {{name, size, share, category, line, class}, ...}
local function tensors(facts)
  local peak = facts.peak
  local rows, known = {{"alive at the peak", "size", "share", "category", "", head = true}}, false
  for i = 1, math.min(SHOWN, #peak.alive) do
    local buf = peak.alive[i]
    known = known or buf.where ~= ""
    rows[#rows + 1] = {step.buf_text(facts, buf), util.show_bytes(buf.size), ("%.1f %%"):format(100 * buf.size / peak.bytes),
      step.words(facts, buf.category), tide.short(buf.where), class = theme.category(buf.category)}
  end
  rows[1][5] = known and "script" or ""
  local rest, count = peak.bytes - peak.slack, #peak.alive - (#rows - 1)
  for i = 1, #rows - 1 do rest = rest - peak.alive[i].size end
  if count > 0 then
    rows[#rows + 1] = {("%d more"):format(count), util.show_bytes(rest), ("%.1f %%"):format(100 * rest / peak.bytes)}
  end
  if peak.slack > 0 then
    rows[#rows + 1] = {step.slack_text(facts), util.show_bytes(peak.slack), ("%.1f %%"):format(100 * peak.slack / peak.bytes)}
  end
  return rows
end

-- facts: step.facts; style: svg.picture's
function tide.picture(facts, style)
  local columns, each = tide.columns(facts, MOST_COLUMNS)
  local head, y = chart.head(facts.title, facts.text)
  local legend, below = chart.legend(20, y, theme.WIDTH - 40, tide.legend(facts))
  local box = {left = 84, right = theme.WIDTH - 24, top = below + 40, bottom = below + 40 + HEIGHT}
  local most = 0
  for _, column in ipairs(columns) do most = math.max(most, column.op.total) end
  local top = math.max(most, facts.held, 1) * 1.08
  local up = chart.linear(0, top, box.bottom, box.top)
  local share = chart.linear(0, 1, box.left, box.right)
  local along = chart.linear(0, #facts.ops, box.left, box.right)
  local function x(i) return along(math.min(i * each, #facts.ops)) end
  local rows, bottom = chart.rows(box.bottom + 70, {370, -90, -80, 170, 200}, tensors(facts))
  return svg.picture(theme.WIDTH, bottom, "memory over the ops of a step: " .. facts.title, style, chart.ground(bottom), head,
    legend, tide.phases(facts, share, box), chart.left_axis(box, chart.byte_ticks(top, 6), up), layers(facts, columns, x, up),
    chart.bottom_axis(box, chart.ticks(0, #facts.ops, 10), along,
      step.ops_text(facts)),
    mark_held(facts, up, box, most), mark_peak(facts, share, box), hits(facts, columns, x, box), rows)
end

return tide
