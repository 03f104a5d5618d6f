-- Memory against time: a point for each cell that did the same work; the front of those that no other one beats in both,
-- with the 95 % interval of each time. Points have numbers, which the table below names.
local chart = require "memtide.picture.chart"
local rows = require "memtide.picture.rows"
local svg = require "memtide.picture.svg"
local theme = require "memtide.picture.theme"
local util = require "memtide.base.util"

local pareto = {}

local HEIGHT, MOST_ROWS, MOST_GREY, WIDE_RANGE = 380, 24, 2000, 8
local WORK = {"model", "effective_batch", "mode"} -- what must be equal for one cell to stand for another

-- ---- facts

-- The points of one work that no other point of it beats: none has as little memory in as little time. By time.
function pareto.front(points)
  local list = table.move(points, 1, #points, 1, {})
  local order = {}
  for i, point in ipairs(list) do order[point] = i end
  table.sort(list, function(a, b)
    if a.time.median ~= b.time.median then return a.time.median < b.time.median end
    if a.memory ~= b.memory then return a.memory < b.memory end
    return order[a] < order[b]
  end)
  local out = {}
  for _, point in ipairs(list) do
    if #out == 0 or point.memory < out[#out].memory then out[#out + 1] = point end
  end
  return out
end

-- {{label, points, front, on = {[point] = true}}, ...}: by work, of the points that have both
function pareto.groups(facts)
  local out, of = {}, {}
  for _, point in ipairs(facts.points) do
    if point.memory and point.time then
      local label = rows.label(point, WORK)
      if not of[label] then
        of[label] = {label = label, points = {}}
        out[#out + 1] = of[label]
      end
      table.insert(of[label].points, point)
    end
  end
  for _, group in ipairs(out) do
    group.front, group.on = pareto.front(group.points), {}
    for _, point in ipairs(group.front) do group.on[point] = true end
  end
  return out
end

-- ---- picture

local function time_text(time)
  local text = ("%.4g ms"):format(time.median)
  return time.low and ("%s [%.4g, %.4g]"):format(text, time.low, time.high) or text
end

local function range(groups, value)
  local least, most = math.huge, 0
  for _, group in ipairs(groups) do
    for _, point in ipairs(group.points) do
      local low, high = value(point)
      least, most = math.min(least, low), math.max(most, high)
    end
  end
  if most / least >= WIDE_RANGE then return least / 1.3, most * 1.3, true end
  local room = math.max(most - least, most * 0.05) * 0.12
  return math.max(0, least - room), most + room, false
end

local function mark(point, on, colour, x, y)
  local px, py = x(point.time.median), y(point.memory)
  local out = {}
  if point.time.low then
    out[1] = svg.node("path", {class = on and "stroke-" .. colour or "stroke-grey", ["stroke-width"] = 2,
      d = ("M%s %sH%s"):format(svg.number(x(math.max(point.time.low, 1e-9))), svg.number(py), svg.number(x(point.time.high)))})
  end
  out[#out + 1] = svg.node("circle", {cx = px, cy = py, r = on and 6 or 5, class = "edge block fill-" .. (on and colour or "grey"),
    ["stroke-width"] = 1}, svg.hover{point.row.case, util.show_bytes(point.memory), time_text(point.time),
    on and "on the front" or "another cell needs no more of both"})
  return out
end

-- The number below a point of the front, where no other point of it can be, unless it would touch one that is there: the table has it, too.
local function number(n, point, x, y, taken)
  local wide = svg.width_of(tostring(n), theme.LETTERS)
  local px, py = x(point.time.median) - 8 - wide, y(point.memory) + 14
  for _, other in ipairs(taken) do
    if px < other.x + other.wide and other.x < px + wide and math.abs(other.y - py) < theme.LETTERS then return {} end
  end
  taken[#taken + 1] = {x = px, y = py, wide = wide}
  return chart.label(px, py, tostring(n), {class = "ink"})
end

local function draw_front(group, colour, x, y)
  local parts = {}
  for i, point in ipairs(group.front) do
    local px, py = svg.number(x(point.time.median)), svg.number(y(point.memory))
    parts[#parts + 1] = i == 1 and ("M%s %s"):format(px, py) or ("H%sV%s"):format(px, py)
  end
  return svg.node("path", {d = table.concat(parts), class = "stroke-" .. colour, ["stroke-width"] = 1.5,
    ["stroke-dasharray"] = "5 3"})
end

-- The points with their numbers, and the table's rows: those of the fronts by number
local function draw(groups, x, y)
  local behind, before, taken, n = {}, {}, {}, 0
  local lines = {{"", "on the front", "memory", "a step, with its 95 % interval", head = true}}
  for i, group in ipairs(groups) do
    local colour = theme.series(i)
    behind[#behind + 1] = draw_front(group, colour, x, y)
    for _, point in ipairs(group.points) do
      if not group.on[point] and #behind < MOST_GREY then behind[#behind + 1] = mark(point, false, colour, x, y) end
    end
    for _, point in ipairs(group.front) do
      n = n + 1
      before[#before + 1] = mark(point, true, colour, x, y)
      before[#before + 1] = number(n, point, x, y, taken)
      if #lines <= MOST_ROWS then
        lines[#lines + 1] = {tostring(n), point.row.case, util.show_bytes(point.memory), time_text(point.time),
          class = "fill-" .. colour}
      end
    end
  end
  if n > MOST_ROWS then lines[#lines + 1] = {"", ("and %d more"):format(n - MOST_ROWS)} end
  return {behind, before}, lines
end

-- facts: rows.facts; style: svg.picture's. nil and why: there are no points to draw.
function pareto.picture(facts, style)
  local groups = pareto.groups(facts)
  if not groups[1] then return nil, facts.path .. ": no cell has both memory and time: the cells must have run" end
  local head, y = chart.head(("%s: memory against time"):format(facts.rows[1].experiment),
    "a dashed line for each work: no other cell needs less of both; grey: another cell needs no more of either")
  local entries = {}
  for i, group in ipairs(groups) do entries[i] = {text = group.label, class = "fill-" .. theme.series(i)} end
  local legend, top = chart.legend(20, y, theme.WIDTH - 40, entries)
  local box = {left = 84, right = theme.WIDTH - 24, top = top + 30, bottom = top + 30 + HEIGHT}
  local from, to, wide = range(groups, function(p) return p.time.low or p.time.median, p.time.high or p.time.median end)
  local x = (wide and chart.logarithmic or chart.linear)(from, to, box.left, box.right)
  local least, most, tall = range(groups, function(p) return p.memory, p.memory end)
  local up = (tall and chart.logarithmic or chart.linear)(least, most, box.bottom, box.top)
  local ticks = tall and chart.byte_powers(least, most, 7) or chart.byte_ticks(most, 7, least)
  local drawn, lines = draw(groups, x, up)
  local table_rows, bottom = chart.rows(box.bottom + 70, {30, 420, -110, 330}, lines)
  return svg.picture(theme.WIDTH, bottom, "memory against time", style, chart.ground(bottom), head, legend,
    chart.left_axis(box, ticks, up, "memory at the peak"),
    chart.bottom_axis(box, wide and chart.powers(from, to, 10) or chart.ticks(from, to, 10), x, "milliseconds a step"), drawn,
    table_rows)
end

return pareto
