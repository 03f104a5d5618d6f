-- The sweep: memory and time over an axis, a line for each technique; lines where cards end; what does not fit is
-- hatched. Without an axis of numbers: bars, one for each cell.
local chart = require "memtide.picture.chart"
local core = require "memtide.core"
local rows = require "memtide.picture.rows"
local settings = require "memtide.net.settings"
local svg = require "memtide.picture.svg"
local theme = require "memtide.picture.theme"
local util = require "memtide.base.util"

local sweep = {}

local LETTERS, HEIGHT, GAP = theme.LETTERS, 260, 70
local WIDE_RANGE = 8      -- from the least to the largest: with more the scale is logarithmic
local MOST_SERIES, MOST_BARS = 24, 60
local DID_NOT_FIT = {oom = true, skipped = true}

function sweep.did_not_fit(point) return DID_NOT_FIT[point.status] or false end

-- ---- what both panels share

local function pattern()
  return svg.node("defs", nil, svg.node("pattern", {id = "hatch", width = 6, height = 6, patternUnits = "userSpaceOnUse",
    patternTransform = "rotate(45)"}, svg.node("line", {x1 = 0, y1 = 0, x2 = 0, y2 = 6, class = "soft",
    ["stroke-width"] = 2})))
end

local function range_of(values)
  local least, most = math.huge, -math.huge
  for _, value in ipairs(values) do least, most = math.min(least, value), math.max(most, value) end
  return least, most
end

local function xs_of(series)
  local out = {}
  for _, one in ipairs(series) do for _, p in ipairs(one.points) do out[#out + 1] = p.x end end
  return out
end

-- Is the setting a number of bytes?
local function is_of_bytes(name) return settings.known[name] and (settings.known[name].unit == "bytes"
  or settings.known[name].type:find "bytes$") end

-- The scale and the ticks along x: logarithmic over a wide range, with the values themselves as ticks where they are few
local function x_axis(series, box, name)
  local values = xs_of(series)
  local least, most = range_of(values)
  local seen, ticks = {}, {}
  table.sort(values)
  for _, value in ipairs(values) do
    if not seen[value] then seen[value], ticks[#ticks + 1] = true, {value = value, text = chart.plain(value)} end
  end
  local margin, few = 24, #ticks <= 16 and not is_of_bytes(name)
  if least > 0 and most / least >= WIDE_RANGE then
    local scale = chart.logarithmic(least, most, box.left + margin, box.right - margin)
    return scale, few and ticks or (is_of_bytes(name) and chart.byte_powers or chart.powers)(least, most, 10)
  end
  return chart.linear(least, most, box.left + margin, box.right - margin),
    few and ticks or is_of_bytes(name) and chart.byte_ticks(most, 8, least) or chart.ticks(least, most, 10)
end

-- {memory = bytes, names = {titles}} of the cards, one for each size in GiB, the smallest first
function sweep.capacities()
  local of, out = {}, {}
  for _, card in ipairs((core.cards())) do
    local size = math.floor(card.memory / 2 ^ 30 + 0.5)
    if not of[size] then
      of[size] = {memory = card.memory, size = size, names = {}}
      out[#out + 1] = of[size]
    end
    of[size].memory = math.min(of[size].memory, card.memory)
    table.insert(of[size].names, card.title)
  end
  table.sort(out, function(a, b) return a.memory < b.memory end)
  return out
end

-- "NVIDIA GeForce RTX 4090" -> "RTX 4090"
local function short(title) return (title:gsub("^NVIDIA ", ""):gsub("^GeForce ", "")) end

-- Lines at the sizes of cards, each with its text above its right end unless that would touch another's
local function capacity_lines(box, scale, least, most)
  local out, free = {}, math.huge
  for _, one in ipairs(sweep.capacities()) do
    if one.memory >= least and one.memory <= most then
      local y = scale(one.memory)
      out[#out + 1] = svg.node("g", nil, chart.line(box.left, y, box.right, y, "soft", "8 4"),
        svg.hover(one.names))
      if free - y > LETTERS + 3 then
        local text = ("%s, %d GiB"):format(short(one.names[1]), one.size)
        out[#out + 1] = chart.label(box.right - 4, y - 4, text, {["text-anchor"] = "end", class = "muted"})
        free = y
      end
    end
  end
  return out
end

-- The least and the most of an axis of values, with room; the least is 0 unless the range is wide.
function sweep.span(values)
  local least, most = range_of(values)
  if most / least >= WIDE_RANGE then return least / 1.3, most * 1.3, true end
  return 0, most * 1.12, false
end

local function told(one, p, text)
  local lines = {one.label ~= "" and one.label or p.point.row.case, p.point.row.case, text}
  if p.point.status ~= "ok" then lines[#lines + 1] = ("%s %s"):format(p.point.status, p.point.row.reason) end
  return lines
end

-- A line with its points; value(point) -> number or nil; text(number)
local function draw_series(n, one, x, y, value, text)
  local colour, dashes = theme.series(n)
  local parts, marks = {}, {}
  for _, p in ipairs(one.points) do
    local v = value(p.point)
    if v then
      local px, py, missing = x(p.x), y(v), DID_NOT_FIT[p.point.status]
      parts[#parts + 1] = svg.number(px) .. " " .. svg.number(py)
      marks[#marks + 1] = missing
        and svg.node("rect", {x = px - 6, y = py - 6, width = 12, height = 12, class = "hatched stroke-" .. colour,
          ["stroke-width"] = 1.5}, svg.hover(told(one, p, text(v) .. ", does not fit")))
        or svg.node("circle", {cx = px, cy = py, r = 4, class = "edge block fill-" .. colour, ["stroke-width"] = 1},
          svg.hover(told(one, p, text(v))))
    end
  end
  return {parts[2] and svg.node("path", {d = "M" .. table.concat(parts, "L"), class = "stroke-" .. colour,
    ["stroke-width"] = 2, ["stroke-dasharray"] = dashes ~= "" and dashes or nil}) or {}, marks}
end

-- The smallest limit that a cell of the file did not fit into; nil: none
function sweep.limit(facts)
  local least
  for _, point in ipairs(facts.points) do
    if point.limit and (not least or point.limit < least) then least = point.limit end
  end
  return least
end

-- One panel: what: "memory" or "time"
local PANELS = {
  {title = "memory at the peak", value = function(point) return point.memory end, text = util.show_bytes,
    ticks = function(least, most, logarithmic)
      if logarithmic then return chart.byte_powers(least, most, 7) end
      return chart.byte_ticks(most, 6)
    end},
  {title = "milliseconds a step", value = function(point) return point.time and point.time.median end,
    text = function(ms) return ("%.4g ms a step"):format(ms) end,
    ticks = function(least, most, logarithmic)
      if logarithmic then return chart.powers(least, most, 8) end
      return chart.ticks(least, most, 6)
    end},
}

local function values_of(series, panel)
  local out = {}
  for _, one in ipairs(series) do
    for _, p in ipairs(one.points) do out[#out + 1] = panel.value(p.point) end
  end
  return out
end

local function hatched(box, y, limit)
  local top = y(limit)
  if top <= box.top then return {} end
  return {svg.node("rect", {x = box.left, y = box.top, width = box.right - box.left, height = top - box.top,
    class = "hatched", opacity = 0.35}), chart.line(box.left, top, box.right, top, "strong", "8 4"),
    chart.label(box.left + 4, top - 5, ("the limit of %s"):format(util.show_bytes(limit)), {class = "ink bold"})}
end

local function draw_panel(facts, series, panel, box, axis)
  local least, most, logarithmic = sweep.span(values_of(series, panel))
  local memory, limit = panel == PANELS[1], sweep.limit(facts)
  if memory and limit and limit > most then most = limit * 1.1 end
  local y = (logarithmic and chart.logarithmic or chart.linear)(least, most, box.bottom, box.top)
  local x, ticks = x_axis(series, box, axis)
  local lines = {}
  for i, one in ipairs(series) do lines[i] = draw_series(i, one, x, y, panel.value, panel.text) end
  return {chart.left_axis(box, panel.ticks(least, most, logarithmic), y, panel.title),
    memory and limit and hatched(box, y, limit) or {}, memory and capacity_lines(box, y, least, most) or {},
    chart.bottom_axis(box, ticks, x, axis), lines}
end

-- ---- bars, where no axis has numbers

local function label_of(facts, point)
  local text = point.row.case
  return text ~= "" and text or rows.label(point, facts.varying)
end

local function bars(facts, y)
  local out, half = {}, 300
  local panels, left = {PANELS[1]}, 300
  if values_of({{points = {}}}, PANELS[2]) then panels[2] = PANELS[2] end
  for k, panel in ipairs(panels) do
    local most, x = 0, left + (k - 1) * (half + 20)
    for i, point in ipairs(facts.points) do
      if i <= MOST_BARS then most = math.max(most, panel.value(point) or 0) end
    end
    out[#out + 1] = chart.label(x, y, most > 0 and panel.title or "", {class = "muted"})
    for i, point in ipairs(facts.points) do
      local value, at = panel.value(point), y + 10 + (i - 1) * 24
      if i > MOST_BARS then break end
      if k == 1 then out[#out + 1] = chart.label(20, at + 13, svg.fitted(label_of(facts, point), left - 30, LETTERS)) end
      if value then
        local wide = value / most * (half - 110)
        out[#out + 1] = svg.node("rect", {x = x, y = at, width = math.max(1, wide), height = 18,
          class = DID_NOT_FIT[point.status] and "hatched strong" or "block fill-" .. (k == 1 and "sky" or "orange")},
          svg.hover{label_of(facts, point), panel.text(value), point.status})
        out[#out + 1] = chart.label(x + wide + 6, at + 13, panel.text(value):gsub(" a step$", ""), {class = "ink"})
      elseif k == 1 then
        out[#out + 1] = chart.label(x, at + 13, svg.fitted(point.status .. " " .. point.row.reason, half, LETTERS),
          {class = "muted"})
      end
    end
  end
  local count = math.min(#facts.points, MOST_BARS)
  if #facts.points > MOST_BARS then
    out[#out + 1] = chart.label(20, y + 26 + count * 24, ("and %d more"):format(#facts.points - MOST_BARS), {class = "muted"})
  end
  return out, y + 30 + count * 24
end

-- ---- the picture

local function bar_picture(facts, style, head, y)
  local drawn, bottom = bars(facts, y + 10)
  return svg.picture(theme.WIDTH, bottom, "memory and time of the cells of " .. facts.path, style, chart.ground(bottom),
    pattern(), head, drawn)
end

-- rows.series of the column; raises where it has no numbers.
function sweep.series(facts, axis)
  return rows.series(facts, axis)
    or util.fail_usage("%s: column %s: expected numbers for the axis of a picture", facts.path, axis)
end

-- At most MOST_SERIES of them, and how many are left out
local function shown_series(facts, axis)
  local series = sweep.series(facts, axis)
  local shown = table.move(series, 1, math.min(#series, MOST_SERIES), 1, {})
  return shown, #series - #shown
end

-- facts: rows.facts; axis: the column along x (nil: the best one); style: svg.picture's
function sweep.picture(facts, style, axis)
  axis = axis or rows.axis(facts)
  local title = ("%s: %d cells"):format(facts.rows[1].experiment, #facts.points)
  if not axis then
    local head, y = chart.head(title, "memory and time of each cell")
    return bar_picture(facts, style, head, y)
  end
  local series, left = shown_series(facts, axis)
  local head, y = chart.head(title, ("memory and time over %s%s"):format(axis,
    left > 0 and ("; the first %d of %d lines"):format(#series, #series + left) or ""))
  local entries = {}
  for i, one in ipairs(series) do
    local colour, dashes = theme.series(i)
    entries[i] = {text = one.label ~= "" and one.label or "all cells", class = "stroke-" .. colour, line = true,
      dashes = dashes ~= "" and dashes or nil}
  end
  for _, point in ipairs(facts.points) do
    if DID_NOT_FIT[point.status] then
      entries[#entries + 1] = {text = "does not fit", class = "hatched strong"}
      break
    end
  end
  local legend, top = chart.legend(20, y, theme.WIDTH - 40, entries)
  local drawn = {}
  for _, panel in ipairs(PANELS) do
    if values_of(series, panel)[1] then
      local box = {left = 84, right = theme.WIDTH - 24, top = top + 30, bottom = top + 30 + HEIGHT}
      drawn[#drawn + 1] = draw_panel(facts, series, panel, box, axis)
      top = top + HEIGHT + GAP + 20
    end
  end
  return svg.picture(theme.WIDTH, top, "memory and time over " .. axis, style, chart.ground(top), pattern(), head, legend, drawn)
end

return sweep
