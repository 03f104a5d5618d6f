-- A writer of SVG. A picture is a tree of nodes that becomes text once, at the end, and in one place: names from scripts
-- and files are strings in that tree, so that none can reach the text unescaped.
--
--   svg.node("rect", {x = 1, class = "bar"}, svg.node("title", nil, name))
local terminal = require "memtide.base.terminal"

local svg = {}

local ENTITIES = {["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;"}

-- Any text as XML's and HTML's text, or as the value of an attribute in quotes. What XML 1.0 forbids becomes "?".
function svg.escape(text)
  text = terminal.harmless(tostring(text)):gsub("\xef\xbf[\xbe\xbf]", "?")
  return (text:gsub("[&<>\"']", ENTITIES))
end

-- A number with at most two decimals, which are enough for a pixel: "12", "12.5"
function svg.number(value)
  local text = ("%.2f"):format(value):gsub("%.?0+$", "")
  return text == "-0" and "0" or text
end

-- An element. attributes: {name = text or number} or nil; the rest are nodes, texts, and lists of these, which
-- have no `tag`. open: it has an end even where it is empty, as HTML wants it.
function svg.node(tag, attributes, ...)
  return {tag = tag, attributes = attributes or {}, ...}
end

-- Text that is written as it stands: a style or a script of our own, never one with a foreign name in it.
function svg.verbatim(text) return {verbatim = text} end

local VOID = {meta = true, input = true} -- of HTML: they have no end

local write

local function write_attributes(put, attributes)
  local names = {}
  for name in pairs(attributes) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local value = attributes[name]
    put((' %s="%s"'):format(name, svg.escape(math.type(value) and svg.number(value) or value)))
  end
end

local function write_all(put, list)
  for i = 1, #list do write(put, list[i]) end
end

local function write_element(put, node)
  put("<" .. node.tag)
  write_attributes(put, node.attributes)
  if VOID[node.tag] then return put ">" end
  if #node == 0 and not node.open then return put "/>" end
  put ">"
  write_all(put, node)
  put(("</%s>"):format(node.tag))
end

function write(put, node)
  if type(node) ~= "table" then put(svg.escape(node))
  elseif node.verbatim then put(node.verbatim)
  elseif node.tag then write_element(put, node)
  else write_all(put, node) end
end

-- A node, or a list of nodes, as text
function svg.text(node)
  local parts = {}
  write(function(text) parts[#parts + 1] = text end, node)
  return table.concat(parts)
end

-- A whole picture of width x height pixels. `style`: CSS of our own (nil: the page around it has it); title: what a
-- reader hears who cannot see it.
function svg.picture(width, height, title, style, ...)
  return svg.node("svg", {xmlns = "http://www.w3.org/2000/svg", viewBox = ("0 0 %d %d"):format(width, height),
    width = width, height = height, class = "picture", role = "img"},
    svg.node("title", nil, title), style and svg.node("style", nil, svg.verbatim(style)) or {}, {...})
end

-- What is told when the pointer rests on the element around it: lines of text
function svg.hover(lines)
  local out = {}
  for i, line in ipairs(lines) do
    if i > 1 then out[#out + 1] = svg.verbatim "\n" end
    out[#out + 1] = line
  end
  return svg.node("title", nil, table.unpack(out))
end

-- Columns of pixels that a text takes at most, at that height of letters: no font is at hand to ask.
function svg.width_of(text, height) return terminal.width(text) * height * 0.6 end

-- The text, cut so that it takes at most `width` pixels; "" where not even three letters fit.
function svg.fitted(text, width, height)
  local columns = math.floor(width / (height * 0.6))
  if terminal.width(text) <= columns then return text end
  return columns < 3 and "" or terminal.cut(text, columns)
end

return svg
