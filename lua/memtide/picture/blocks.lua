-- The tide in a terminal: memory over the ops of a step in block characters, a row for each category, or in ASCII.
local step = require "memtide.picture.step"
local terminal = require "memtide.base.terminal"
local tide = require "memtide.picture.tide"
local util = require "memtide.base.util"

local blocks = {}

-- From nothing to a full field
local LEVELS = {
  unicode = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"},
  ascii = {" ", ".", ":", "-", "=", "+", "*", "#", "@"},
}
local ROWS = 6 -- of the total
local NAME, BYTES, LEAST = 21, 11, 10 -- columns of a name and of a number of bytes; the least that the ops have

-- Colours of the 256 that terminals have, near those of theme.lua
local COLOURS = {weights = 25, gradients = 166, optimizer = 175, activations = 74, activation_gradients = 178, input = 36,
  workspace = 227, other = 247}

local function coloured(text, name, colour)
  return colour and COLOURS[name] and ("\27[38;5;%dm%s\27[0m"):format(COLOURS[name], text) or text
end

-- The character for a share of a field; anything above 0 is seen.
local function level(levels, share)
  if share <= 0 then return levels[1] end
  return levels[math.min(#levels, math.max(2, 1 + math.ceil(share * (#levels - 1) - 1e-9)))]
end

-- {values} as lines, the highest first: a bar of up to `rows` fields for each value, `most` fills them all.
function blocks.bars(values, most, rows, levels)
  local out = {}
  for row = rows, 1, -1 do
    local line = {}
    for i, value in ipairs(values) do line[i] = level(levels, math.min(1, value / math.max(most, 1) * rows - (row - 1))) end
    out[#out + 1] = table.concat(line)
  end
  return out
end

-- "forward   |backward    |update": the names of the phases where they begin
local function phase_line(facts, count, place)
  local cells = {}
  for i = 1, count do cells[i] = " " end
  for _, phase in ipairs(facts.phases) do
    local from, to = place(phase.first), place(phase.last)
    cells[from] = "|"
    for i = 1, math.min(#phase.name, to - from) do cells[from + i] = phase.name:sub(i, i) end
  end
  return table.concat(cells)
end

-- facts: step.facts; look: {width = columns of the terminal, unicode =, colour =}. Returns lines.
function blocks.lines(facts, look)
  local levels = look.unicode and LEVELS.unicode or LEVELS.ascii
  local room = math.max(LEAST, look.width - NAME - BYTES - 2)
  local columns, each = tide.columns(facts, room)
  local wide = math.max(1, room // #columns) -- of an op, where there are few
  local spread = {}
  for _, column in ipairs(columns) do for _ = 1, wide do spread[#spread + 1] = column end end
  local function place(op) return (op - 1) // each * wide + 1 end -- the first field of an op
  local most, out = 0, {}
  for _, column in ipairs(columns) do most = math.max(most, column.op.total) end
  local function add(name, text, bytes, category)
    local right = bytes and util.show_bytes(bytes) or ""
    out[#out + 1] = (("%s %s %s"):format(terminal.padded(name, NAME), coloured(text, category, look.colour),
      (" "):rep(BYTES - #right) .. right):gsub("%s+$", ""))
  end
  local function values(of)
    local list = {}
    for i, column in ipairs(spread) do list[i] = of(column.op) end
    return list
  end
  out[1] = terminal.cut(("%s, %s"):format(facts.title, facts.text), look.width)
  out[2] = terminal.cut(("peak %s: %s"):format(util.show_bytes(facts.peak.bytes), tide.place(facts)), look.width)
  add("", phase_line(facts, #spread, place))
  for i, line in ipairs(blocks.bars(values(function(op) return op.total end), most, ROWS, levels)) do
    add(i == 1 and "all" or "", line, i == 1 and most or nil)
  end
  add("at the peak", (" "):rep(place(facts.peak.at) - 1) .. "^")
  for _, name in ipairs(tide.categories(facts)) do
    add(step.words(facts, name), blocks.bars(values(function(op) return op.bytes[name] end), most, 1, levels)[1],
      facts.ops[facts.peak.at].bytes[name], name)
  end
  return out
end

return blocks
