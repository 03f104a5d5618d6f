-- The ranks: what each rank of a script's cells has at its peak, by category, a bar for all ranks that are alike.
local cell = require "memtide.net.cell"
local chart = require "memtide.picture.chart"
local max_batch = require "memtide.sweep.max_batch"
local selection = require "memtide.sweep.selection"
local step = require "memtide.picture.step"
local svg = require "memtide.picture.svg"
local theme = require "memtide.picture.theme"
local tide = require "memtide.picture.tide"
local util = require "memtide.base.util"
local worker = require "memtide.sweep.worker"

local ranks = {}

local MOST_BARS, LEFT, BAR, NAME = 60, 150, 24, 26

-- "rank 3", "ranks 0 to 6". Of PyTorch's step one rank is predicted, which all are like.
local function label_of(self, class)
  local count = self.values.framework == "pytorch" and self.values.world or class.count
  if count == 1 then return ("rank %d"):format(class.rank) end
  return ("ranks %d %s %d"):format(class.rank, count == 2 and "and" or "to", class.rank + count - 1)
end

local function add_cell(bars, self, rank)
  max_batch.settle(cell.build(self))
  self.rank = rank
  cell.compile(self)
  for _, class in ipairs(self.alike) do
    local peak = cell.predict_rank(self, class).peak
    bars[#bars + 1] = {cell = self.name, label = label_of(self, class), bytes = peak.bytes, categories = peak.categories,
      op = peak.op}
  end
end

-- Adds the bars of a cell, or why it has none.
local function add_bars(bars, self, rank)
  local good, problem = util.try(function() add_cell(bars, self, rank) end)
  if util.is_interrupt(problem) then error(problem, 0) end
  if not good then bars[#bars + 1] = {cell = self.name, label = util.text_of(problem), bytes = 0, categories = {}} end
  cell.release(self)
end

-- What the cells of a script need that several ranks train: {experiment, bars = {{cell, label, bytes, categories, op}, ...},
-- left}. bars: by cell, and in the order of the ranks; label: which they are; bytes, categories: at their peak, which is at the
-- op (nil: there is no step, and label says why); left: cells that are not predicted any more, since there are bars enough.
-- options: of the command line; rank: only that.
function ranks.facts(experiment, options)
  local cells, bars, left = selection.new(experiment, nil, options), {}, 0
  worker.check_devices(cells.devices)
  for k = 1, cells:count() do
    local self = cells:cell(k)
    local world = self.values.world or 1
    if world > (options.rank or 0) and world > 1 and self.repeat_number == 1 then
      if #bars >= MOST_BARS then left = left + 1
      else add_bars(bars, self, options.rank) end
    end
  end
  return {experiment = experiment.name, bars = bars, left = left}
end

local function categories_of(bar) return bar.categories end

local function told(bar, name)
  local part = ("%s %s of %s"):format(step.words({}, name), util.show_bytes(bar.categories[name]), util.show_bytes(bar.bytes))
  return {("%s, %s"):format(bar.cell, bar.label), part, bar.op ~= "" and "at " .. bar.op or nil}
end

-- One bar: its parts one after the other, and its bytes after the last
local function draw_bar(bar, names, x, y)
  if not bar.op then return chart.label(20, y + 13, svg.fitted(bar.label, theme.WIDTH - 40, theme.LETTERS), {class = "muted"}) end
  local out, at = {chart.label(20, y + 13, svg.fitted(bar.label, LEFT - 28, theme.LETTERS), {class = "muted"})}, 0
  for _, name in ipairs(names) do
    local bytes = bar.categories[name] or 0
    if bytes > 0 then
      out[#out + 1] = svg.node("rect", {x = x(at), y = y, width = x(at + bytes) - x(at), height = BAR - 6,
        class = "edge block " .. theme.category(name), ["stroke-width"] = 0.6}, svg.hover(told(bar, name)))
      at = at + bytes
    end
  end
  out[#out + 1] = chart.label(x(bar.bytes) + 6, y + 13, util.show_bytes(bar.bytes))
  return out
end

-- facts: ranks.facts; style: svg.picture's. nil and why: no cell has several ranks.
function ranks.picture(facts, style)
  local bars, most = facts.bars, 0
  if not bars[1] then return nil, facts.experiment .. ": no cell that was chosen has several ranks (world)" end
  for _, bar in ipairs(bars) do most = math.max(most, bar.bytes) end
  local names, entries, drawn = tide.present(bars, categories_of), {}, {}
  for i, name in ipairs(names) do entries[i] = {text = step.words(facts, name), class = theme.category(name)} end
  local head, y = chart.head(facts.experiment .. ": what each rank has at its peak", facts.left == 0 and "predicted, by category"
    or ("predicted, by category; %d more cells are not shown"):format(facts.left))
  local legend, below = chart.legend(20, y, theme.WIDTH - 40, entries)
  local box = {left = LEFT, right = theme.WIDTH - 100, top = below, bottom = below}
  local x = chart.linear(0, most, box.left, box.right)
  for i, bar in ipairs(bars) do
    if i == 1 or bar.cell ~= bars[i - 1].cell then
      drawn[#drawn + 1] = chart.label(20, box.bottom + 17, svg.fitted(bar.cell, theme.WIDTH - 40, theme.LETTERS), {class = "ink bold"})
      box.bottom = box.bottom + NAME
    end
    drawn[#drawn + 1] = draw_bar(bar, names, x, box.bottom)
    box.bottom = box.bottom + BAR
  end
  local height = box.bottom + 40
  return svg.picture(theme.WIDTH, height, "memory of each rank at its peak: " .. facts.experiment, style, chart.ground(height), head,
    legend, drawn, most > 0 and chart.bottom_axis(box, chart.byte_ticks(most, 6), x) or {})
end

return ranks
