-- What charts are made of: scales, ticks, axes, legends. Pixels, from the upper left corner.
local svg = require "memtide.picture.svg"
local theme = require "memtide.picture.theme"

local chart = {}

local LETTERS = theme.LETTERS

-- ---- scales: a function of a value -> pixels

-- from, to: values, at the pixels a and b
function chart.linear(from, to, a, b)
  local span = to > from and to - from or 1
  return function(value) return a + (value - from) / span * (b - a) end
end

-- The same for values above 0, with equal ratios at equal distances
function chart.logarithmic(from, to, a, b)
  local scale = chart.linear(math.log(from), math.log(to), a, b)
  return function(value) return scale(math.log(value)) end
end

-- ---- ticks: {{value =, text =}, ...}

-- The step of 1, 2 or 5 times a power of ten with which [0, span] has at most `count` steps
local function nice_step(span, count)
  local power = 10.0 ^ math.floor(math.log(span / count, 10))
  for _, factor in ipairs{1, 2, 5} do
    if span / (power * factor) <= count * (1 + 1e-9) then return power * factor end
  end
  return power * 10
end

-- "0.25", "20", "1.5e-05"
local function plain(value)
  local whole = math.tointeger(value)
  return whole and math.abs(whole) < 1e9 and tostring(whole) or ("%.6g"):format(value)
end

chart.plain = plain

local function steps(from, to, step, text)
  local out = {}
  for k = math.ceil(from / step - 1e-9), math.floor(to / step + 1e-9) do
    out[#out + 1] = {value = k * step, text = text(k * step)}
  end
  return out
end

-- Of numbers from `from` to `to`, about `count`
function chart.ticks(from, to, count) return steps(from, to, nice_step(math.max(to - from, 1e-300), count), plain) end

local UNITS = {"B", "KiB", "MiB", "GiB", "TiB"}

-- The largest binary unit of which there is one at least: its bytes and its name
local function unit_of(bytes)
  local k = 1
  while bytes >= 1024.0 ^ k and k < #UNITS do k = k + 1 end
  return 1024.0 ^ (k - 1), UNITS[k]
end

-- Of bytes from `least` (nil: 0) to `most`, about `count`: round numbers of the binary unit that fits `most`
function chart.byte_ticks(most, count, least)
  local unit, name = unit_of(most)
  local from, to = (least or 0) / unit, math.max(most, 1) / unit
  local step = nice_step(to - from, count)
  if unit == 1 then step = math.max(step, 1) end
  local out = steps(from, to, step, function(value) return value == 0 and "0" or ("%s %s"):format(plain(value), name) end)
  for _, tick in ipairs(out) do tick.value = tick.value * unit end
  return out
end

-- Of a logarithmic scale of bytes: powers of two, every one or every second, fourth ...
function chart.byte_powers(from, to, count)
  local low, high = math.ceil(math.log(from, 2) - 1e-9), math.floor(math.log(to, 2) + 1e-9)
  local every, out = math.max(1, math.ceil((high - low + 1) / count)), {}
  for power = low, high, every do
    local unit, name = unit_of(2.0 ^ power)
    out[#out + 1] = {value = 2.0 ^ power, text = ("%s %s"):format(plain(2.0 ^ power / unit), name)}
  end
  return out
end

-- Of a logarithmic scale of numbers: 1, 2, 5, 10 ...; powers of ten only, where these are enough
function chart.powers(from, to, count)
  for _, factors in ipairs{{1, 2, 5}, {1}} do
    local out = {}
    for power = math.floor(math.log(from, 10)), math.ceil(math.log(to, 10)) do
      for _, factor in ipairs(factors) do
        local value = factor * 10.0 ^ power
        if value >= from * 0.999999 and value <= to * 1.000001 then out[#out + 1] = {value = value, text = plain(value)} end
      end
    end
    if #out <= count or #factors == 1 then return out end
  end
end

-- ---- pieces of a chart

function chart.label(x, y, text, attributes)
  local all = {x = x, y = y, class = "ink"}
  for name, value in pairs(attributes or {}) do all[name] = value end
  return svg.node("text", all, text)
end

function chart.line(x1, y1, x2, y2, class, dashes)
  return svg.node("line", {x1 = x1, y1 = y1, x2 = x2, y2 = y2, class = class, ["stroke-dasharray"] = dashes})
end

-- The frame of a chart: {left, right, top, bottom} in pixels. Ticks at its left, with lines across it.
function chart.left_axis(box, ticks, scale, title)
  local out = {}
  for _, tick in ipairs(ticks) do
    local y = scale(tick.value)
    out[#out + 1] = chart.line(box.left, y, box.right, y, "line")
    out[#out + 1] = chart.label(box.left - 6, y + LETTERS / 3, tick.text, {["text-anchor"] = "end", class = "muted"})
  end
  if title then out[#out + 1] = chart.label(box.left, box.top - 8, title, {class = "muted"}) end
  return out
end

-- Ticks below the frame. One that would touch the one before it has no text.
function chart.bottom_axis(box, ticks, scale, title)
  local out, free = {chart.line(box.left, box.bottom, box.right, box.bottom, "soft")}, -math.huge
  for _, tick in ipairs(ticks) do
    local x, half = scale(tick.value), svg.width_of(tick.text, LETTERS) / 2
    out[#out + 1] = chart.line(x, box.bottom, x, box.bottom + 4, "soft")
    if x - half > free then
      out[#out + 1] = chart.label(x, box.bottom + 18, tick.text, {["text-anchor"] = "middle", class = "muted"})
      free = x + half + LETTERS / 2
    end
  end
  if title then
    out[#out + 1] = chart.label((box.left + box.right) / 2, box.bottom + 36, title,
      {["text-anchor"] = "middle", class = "muted"})
  end
  return out
end

-- Swatches with their texts in rows from (x, y) on, no wider than `width`. entries: {{text =, class = of the swatch,
-- dashes = of a line instead of a field}, ...}. Returns the nodes and the y after the last row.
function chart.legend(x, y, width, entries)
  local out, at, row = {}, x, 20
  for _, entry in ipairs(entries) do
    local text = svg.fitted(entry.text, width - 24, LETTERS)
    local wide = 18 + svg.width_of(text, LETTERS) + 10
    if at > x and at + wide > x + width then at, y = x, y + row end
    out[#out + 1] = entry.line
      and svg.node("line", {x1 = at, y1 = y, x2 = at + 14, y2 = y, class = entry.class, ["stroke-width"] = 3,
        ["stroke-dasharray"] = entry.dashes})
      or svg.node("rect", {x = at, y = y - 6, width = 12, height = 12, rx = 2, class = entry.class})
    out[#out + 1] = chart.label(at + 18, y + LETTERS / 3, text)
    at = at + wide
  end
  return out, y + row
end

-- The head of a picture: its title and a line below it. Returns the nodes and the y below.
function chart.head(title, text)
  local width = theme.WIDTH - 40
  return {chart.label(20, 26, svg.fitted(title, width, 15), {class = "ink head"}),
    chart.label(20, 46, svg.fitted(text, width, LETTERS), {class = "muted"})}, 66
end

-- A table from y on: `widths` of its columns in pixels, 20 before the first; a negative one is of a column of numbers.
-- Each row: a list of texts, and `class`, of a swatch before it. Returns the nodes and the y below.
function chart.rows(y, widths, rows)
  local out = {}
  for i, row in ipairs(rows) do
    local x, at = 40, y + (i - 1) * 19
    if row.class then
      out[#out + 1] = svg.node("rect", {x = 20, y = at - 10, width = 12, height = 12, rx = 2, class = row.class})
    end
    for k, width in ipairs(widths) do
      local text = svg.fitted(row[k] or "", math.abs(width) - 12, LETTERS)
      out[#out + 1] = width < 0
        and chart.label(x - width - 12, at, text, {["text-anchor"] = "end", class = row.head and "muted" or "ink"})
        or chart.label(x, at, text, {class = row.head and "muted" or "ink"})
      x = x + math.abs(width)
    end
  end
  return out, y + #rows * 19
end

-- The ground that everything stands on
function chart.ground(height)
  return svg.node("rect", {x = 0, y = 0, width = theme.WIDTH, height = height, class = "paper"})
end

return chart
