-- Pictures of results as specifications of Vega-Lite 5 (https://vega.github.io/vega-lite/docs/), with their data inside: for
-- papers and notebooks that want to change how a picture looks. The facts are those of the SVG pictures.
local pareto = require "memtide.picture.pareto"
local report = require "memtide.results.report"
local rows = require "memtide.picture.rows"
local sweep = require "memtide.picture.sweep"
local util = require "memtide.base.util"

local vega = {}

local SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
local WIDTH, HEIGHT, GIB = 640, 260, 2 ^ 30

-- ---- data: a record of each point

-- The settings that vary are the record's own; numbers are numbers.
local function record(facts, point, more)
  local out = {case = point.row.case, status = point.status, memory_bytes = point.memory, predicted = point.predicted,
    fits = not sweep.did_not_fit(point), step_ms = point.time and point.time.median,
    step_ms_low = point.time and point.time.low, step_ms_high = point.time and point.time.high}
  for _, name in ipairs(facts.varying) do
    local text = point.row[name]
    if text ~= "" then out[name] = tonumber(text) or text end
  end
  for key, value in pairs(more) do out[key] = value end
  return out
end

-- ---- parts of a specification

-- The unit that memory is shown in, by the largest value: how many bytes, and its name
local function unit_of(memories)
  for _, bytes in ipairs(memories) do if bytes >= GIB then return GIB, "GiB" end end
  return 2 ^ 20, "MiB"
end

-- A column of the data as a field: dots and brackets would lead into the record's parts
local function field_of(name) return (name:gsub("[.%[%]]", "\\%0")) end

local function calculated(unit) return {{calculate = ("datum.memory_bytes / %d"):format(unit), as = "memory"}} end

-- A channel of numbers; logarithmic over a wide range, from 0 elsewhere unless `free`
local function quantity(field, title, values, free)
  local _, _, logarithmic = sweep.span(values)
  return {field = field_of(field), type = "quantitative", title = title,
    scale = logarithmic and {type = "log", nice = false, padding = 16} or {zero = not free, padding = free and 16 or nil}}
end

local function collect(points, value)
  local out = {}
  for _, point in ipairs(points) do out[#out + 1] = value(point) end
  return out
end

local function memory_of(point) return point.memory end
local function time_of(point) return point.time and point.time.median end

-- Does a record have it?
local function has(values, name)
  for _, one in ipairs(values) do if one[name] ~= nil then return true end end
  return false
end

-- What a mark shows when it is pointed at: of these and the settings, what there is
local function tooltips(facts, values, more)
  local out = {}
  for _, names in ipairs{{"case", "status", "memory_bytes", "step_ms"}, facts.varying, more or {}} do
    for _, name in ipairs(names) do if has(values, name) then out[#out + 1] = {field = field_of(name)} end end
  end
  return out
end

local function whole(facts, text, values, parts)
  parts["$schema"], parts.data, parts.description = SCHEMA, {values = values}, facts.path
  parts.title = {text = ("%s: %d cells"):format(facts.rows[1].experiment, #facts.points), subtitle = text, anchor = "start"}
  return parts
end

-- ---- the sweep

-- Lines across the panel of memory: where the device ends that a cell did not fit into, and where cards end
local function borders(facts, memories, unit)
  local least, most = sweep.span(memories)
  local limit, list = sweep.limit(facts), {}
  if limit then list[1] = {memory_bytes = limit, border = ("the limit of %s"):format(util.show_bytes(limit))} end
  for _, one in ipairs(sweep.capacities()) do
    if one.memory >= least and one.memory <= most then
      list[#list + 1] = {memory_bytes = one.memory, border = ("%s, %d GiB"):format(one.names[1], one.size)}
    end
  end
  if not list[1] then return {} end
  local y = {field = "memory", type = "quantitative"}
  return {{data = {values = list}, transform = calculated(unit), mark = {type = "rule", strokeDash = {6, 3}, color = "grey"},
      encoding = {y = y, tooltip = {{field = "border"}}}},
    {data = {values = list}, transform = calculated(unit), mark = {type = "text", align = "right", baseline = "bottom", color = "grey"},
      encoding = {y = y, x = {value = WIDTH}, text = {field = "border"}}}}
end

local function panel(facts, axis, values, labels, y, transform, more)
  local x = quantity(axis, axis, collect(facts.points, function(point) return tonumber(point.row[axis]) end), true)
  local encoding = {x = x, y = y, color = {field = "series", type = "nominal", title = "", sort = labels}}
  local shape
  for _, point in ipairs(facts.points) do
    if sweep.did_not_fit(point) then
      shape = {field = "fits", type = "nominal", title = "it fits", scale = {domain = {true, false}, range = {"circle", "cross"}}}
    end
  end
  local layers = {{mark = {type = "line"}, transform = {{filter = ("isValid(datum.%s)"):format(y.field)}}, encoding = {}},
    {mark = {type = "point", filled = true, size = 60}, transform = {{filter = ("isValid(datum.%s)"):format(y.field)}},
      encoding = {shape = shape, tooltip = tooltips(facts, values)}}}
  for _, layer in ipairs(layers) do for channel, what in pairs(encoding) do layer.encoding[channel] = what end end
  return {width = WIDTH, height = HEIGHT, transform = transform, layer = table.move(more, 1, #more, #layers + 1, layers)}
end

-- Bars of each cell, where no setting has numbers
local function bars(facts)
  local memories, values, cases = collect(facts.points, memory_of), {}, {}
  local unit, name = unit_of(memories)
  for i, point in ipairs(facts.points) do values[i], cases[i] = record(facts, point, {}), point.row.case end
  local function bar(field, title, colour)
    return {width = WIDTH / 2, mark = {type = "bar", color = colour}, transform = calculated(unit),
      encoding = {y = {field = "case", type = "nominal", sort = cases, title = "", axis = {labelLimit = 300}},
        x = {field = field, type = "quantitative", title = title}, tooltip = tooltips(facts, values)}}
  end
  local panels = {bar("memory", "memory at the peak, " .. name, "#56b4e9")}
  if collect(facts.points, time_of)[1] then panels[2] = bar("step_ms", "milliseconds a step", "#e69f00") end
  return whole(facts, "memory and time of each cell", values, {hconcat = panels})
end

-- facts: rows.facts; axis: the column along x (nil: the best one). -> the specification as a table
function vega.sweep(facts, axis)
  axis = axis or rows.axis(facts)
  local memories = collect(facts.points, memory_of)
  if not memories[1] then return nil, facts.path .. ": no cell has memory to draw" end
  if not axis then return bars(facts) end
  local values, labels = {}, {}
  for i, one in ipairs(sweep.series(facts, axis)) do
    labels[i] = one.label ~= "" and one.label or "all cells"
    for _, p in ipairs(one.points) do
      values[#values + 1] = record(facts, p.point, {series = labels[i]})
      values[#values][axis] = p.x
    end
  end
  local unit, name = unit_of(memories)
  local panels = {panel(facts, axis, values, labels, quantity("memory", "memory at the peak, " .. name, memories), calculated(unit),
    borders(facts, memories, unit))}
  local times = collect(facts.points, time_of)
  if times[1] then panels[2] = panel(facts, axis, values, labels, quantity("step_ms", "milliseconds a step", times), nil, {}) end
  return whole(facts, "memory and time over " .. axis, values, {vconcat = panels})
end

-- ---- memory against time

-- facts: rows.facts. -> the specification as a table; nil and why: there are no points to draw
function vega.pareto(facts)
  local groups = pareto.groups(facts)
  if not groups[1] then return nil, facts.path .. ": no cell has both memory and time: the cells must have run" end
  local values, points, works = {}, {}, {}
  for i, group in ipairs(groups) do
    works[i] = group.label ~= "" and group.label or "all cells"
    for _, point in ipairs(group.points) do
      points[#points + 1] = point
      values[#values + 1] = record(facts, point, {work = works[i],
        on_the_front = group.on[point] or false})
    end
  end
  local memories = collect(points, memory_of)
  local unit, name = unit_of(memories)
  local function layer(mark, more, filter)
    local encoding = {x = quantity("step_ms", "milliseconds a step", collect(points, time_of), true),
      y = quantity("memory", "memory at the peak, " .. name, memories, true),
      color = {field = "work", type = "nominal", title = "", sort = works}}
    for channel, what in pairs(more) do encoding[channel] = what end
    return {mark = mark, encoding = encoding, transform = filter and {{filter = filter}} or nil}
  end
  local layers = {layer({type = "line", interpolate = "step-after", strokeDash = {5, 3}}, {}, "datum.on_the_front"),
    layer({type = "point", filled = true, size = 80}, {opacity = {field = "on_the_front", type = "nominal",
      title = "on the front", scale = {domain = {true, false}, range = {1, 0.35}}},
      tooltip = tooltips(facts, values, {"step_ms_low", "step_ms_high", "on_the_front"})})}
  if has(values, "step_ms_low") then -- 95 % intervals, where the file has samples
    table.insert(layers, 2, layer({type = "rule"}, {x = {field = "step_ms_low", type = "quantitative"},
      x2 = {field = "step_ms_high"}}, "isValid(datum.step_ms_low)"))
  end
  return whole(facts, "the line joins those cells of a work that no other one beats in both", values,
    {width = WIDTH, height = 380, transform = calculated(unit), layer = layers})
end

-- The specification as JSON
function vega.text(spec) return report.json(spec, util.sorted_keys(spec)) .. "\n" end

return vega
