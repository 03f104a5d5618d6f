-- The exponents of gradients, a panel for each cell that has counted them (gradient_exponents = true): how many elements have
-- which exponent in fp32, how many of them the cell's precision loses, and the range that fp16 holds, with the cell's loss
-- scale and without.
local chart = require "memtide.picture.chart"
local exponents = require "memtide.net.exponents"
local svg = require "memtide.picture.svg"
local theme = require "memtide.picture.theme"

local gradients = {}

local HEIGHT, MOST_PANELS = 150, 12
-- Of fp16, as powers of two: the least subnormal number, the least normal one, the largest (65504, by this much below 2^16)
local FP16 = {{-24, "least subnormal"}, {-14, "least normal"}, {math.log(65504, 2), "largest"}}

-- The cells with a histogram: {{row, bins by exponent, zero, overflow, elements, scale, least, most}, ...}
local function panel_of(row)
  local list = exponents.read(row.gradient_histogram or "")
  if not list then return nil end
  local out = {row = row, bins = {}, zero = 0, overflow = 0, elements = 0, tallest = 1, scale = list.loss_scale,
    least = FP16[1][1], most = 16}
  for _, bin in ipairs(list) do
    out.elements = out.elements + bin.exact
    if bin.exponent == "zero" then out.zero = bin.exact
    elseif not math.type(bin.exponent) then out.overflow = out.overflow + bin.stored
    elseif bin.exact > 0 then
      out.bins[#out.bins + 1] = bin
      out.least, out.most = math.min(out.least, bin.exponent), math.max(out.most, bin.exponent + 1)
      out.tallest = math.max(out.tallest, bin.exact)
    end
  end
  return out
end

local function panels_of(facts)
  local out = {}
  for _, point in ipairs(facts.points) do out[#out + 1] = panel_of(point.row) end
  return out
end

local function counted(n, what) return ("%d %s"):format(n, what) end

local function title_of(panel)
  local share, text = tonumber(panel.row.underflow_share), counted(panel.elements, "elements, ") .. counted(panel.zero, "zero in fp32")
  if share then text = text .. (", %.3g %% of the others underflow"):format(share * 100) end
  if panel.overflow > 0 then text = text .. ", " .. counted(panel.overflow, "not finite as stored") end
  return text
end

local function bars(panel, box, x, y)
  local out, base = {}, box.bottom
  for _, bin in ipairs(panel.bins) do
    local left, right = x(bin.exponent), x(bin.exponent + 1)
    local function bar(count, class)
      return svg.node("rect", {x = left, y = y(count), width = right - left, height = base - y(count), class = class .. " edge"})
    end
    out[#out + 1] = svg.node("g", {class = "block"}, bar(bin.exact, "fill-blue"),
      bin.underflow > 0 and bar(bin.underflow, "fill-vermilion") or {},
      svg.hover{("2^%d to 2^%d"):format(bin.exponent, bin.exponent + 1), counted(bin.exact, "elements in fp32"),
        counted(bin.underflow, "of them zero as stored")})
  end
  return out
end

-- The range of fp16, moved by the loss scale; dashed: where it is without one
local function ranges(panel, box, x)
  local moved = panel.scale and math.log(panel.scale, 2) or 0
  local from, to = math.max(x(FP16[1][1] - moved), box.left), math.min(math.max(x(FP16[3][1] - moved), box.left), box.right)
  local out = {svg.node("rect", {x = from, y = box.top, width = math.max(to - from, 0), height = box.bottom - box.top, class = "shade"})}
  local function mark(power, class, dashes, text)
    local at = x(power)
    if at < box.left or at > box.right then return end
    out[#out + 1] = chart.line(at, box.top, at, box.bottom, class, dashes)
    if text then out[#out + 1] = chart.label(at, box.top - 4, text, {["text-anchor"] = "middle", class = "muted"}) end
  end
  for _, one in ipairs(FP16) do
    mark(one[1] - moved, "strong", nil, one[2])
    if moved ~= 0 then mark(one[1], "soft", "3 3") end
  end
  return out
end

-- Ticks of powers of two, every 8 or 16
local function ticks(least, most)
  local out, every = {}, most - least > 96 and 16 or 8
  for power = math.ceil(least / every) * every, most, every do
    out[#out + 1] = {value = power, text = ("2^%d"):format(power)}
  end
  return out
end

local function draw(panel, top, least, most)
  local box = {left = 84, right = theme.WIDTH - 24, top = top + 48, bottom = top + 48 + HEIGHT}
  local x = chart.linear(least, most, box.left, box.right)
  local y = chart.logarithmic(0.7, panel.tallest * 1.3, box.bottom, box.top)
  local scale = panel.scale and ("loss scale %s"):format(chart.plain(panel.scale)) or "no loss scale"
  local function line(y_of, text, class)
    return chart.label(20, y_of, svg.fitted(text, theme.WIDTH - 40, theme.LETTERS), {class = class})
  end
  return {line(top + 8, ("%s: %s"):format(panel.row.case, scale), "ink bold"), line(top + 24, title_of(panel), "muted"),
    ranges(panel, box, x), chart.left_axis(box, chart.powers(1, panel.tallest * 1.3, 6), y),
    bars(panel, box, x, y), chart.bottom_axis(box, ticks(least, most), x)}, box.bottom + 44
end

-- facts: rows.facts; style: svg.picture's. nil and why: no row has such counts.
function gradients.picture(facts, style)
  local panels, drawn = panels_of(facts), {}
  if not panels[1] then
    return nil, facts.path .. ": no cell has counted the exponents of its gradients: say gradient_exponents = true"
  end
  local left_out = #panels > MOST_PANELS and ("; %d more cells are in the file"):format(#panels - MOST_PANELS) or ""
  local head, y = chart.head(("%s: exponents of the gradients"):format(facts.rows[1].experiment),
    "elements of the gradients of all parameters by their exponents, of one step after the last one" .. left_out)
  local legend, top = chart.legend(20, y, theme.WIDTH - 40, {{text = "in fp32", class = "fill-blue"},
    {text = "of these zero in the cell's precision", class = "fill-vermilion"},
    {text = "what fp16 holds, times the loss scale", class = "shade"},
    {text = "its limits without a scale", class = "soft", line = true, dashes = "3 3"}})
  local least, most = math.huge, -math.huge
  for i = 1, math.min(#panels, MOST_PANELS) do
    local moved = panels[i].scale and math.log(panels[i].scale, 2) or 0
    least, most = math.min(least, panels[i].least, FP16[1][1] - moved), math.max(most, panels[i].most)
  end
  top = top + 10
  for i = 1, math.min(#panels, MOST_PANELS) do drawn[i], top = draw(panels[i], top, math.floor(least) - 1, most + 1) end
  return svg.picture(theme.WIDTH, top, "exponents of the gradients", style, chart.ground(top), head, legend, drawn)
end

return gradients
