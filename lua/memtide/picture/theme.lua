-- How pictures look: colours, letters, and their CSS. Eight colours of Okabe and Ito ("Color Universal Design", 2008),
-- which people with any kind of colour blindness tell apart, on light and on dark; neighbours in a stack are apart by
-- a line of the background, too. Text on a colour is black or white, whichever reads better.
local theme = {}

theme.LETTERS = 12 -- pixels: the height of the text
theme.WIDTH = 960  -- pixels: of every picture

local COLOURS = {blue = "#0072b2", vermilion = "#d55e00", purple = "#cc79a7", sky = "#56b4e9", orange = "#e69f00",
  green = "#009e73", yellow = "#f0e442", grey = "#999999"}

-- The colour of a category of memory
local CATEGORIES = {weights = "blue", gradients = "vermilion", optimizer = "purple", activations = "sky",
  activation_gradients = "orange", input = "green", workspace = "yellow", other = "grey"}

local WHITE_ON = {blue = true, vermilion = true, green = true}

theme.SERIES = {"blue", "orange", "green", "vermilion", "sky", "purple", "grey", "yellow"}

-- The class that fills with the colour of that category
function theme.category(name) return "fill-" .. CATEGORIES[name] end

-- The class of text on it
function theme.on_category(name) return "on-" .. CATEGORIES[name] end

-- The colour's name of the nth line or technique; they repeat, and dashes tell the repeated ones apart.
function theme.series(n)
  return theme.SERIES[(n - 1) % #theme.SERIES + 1], ({"", "6 3", "2 3", "8 3 2 3"})[(n - 1) // #theme.SERIES % 4 + 1]
end

local LIGHT = {paper = "#ffffff", ink = "#1b1f24", muted = "#57606a", line = "#d8dee4", shade = "#f3f5f7", module = "#e4e8ec"}
local DARK = {paper = "#14171c", ink = "#e6e9ee", muted = "#9aa4b0", line = "#343b45", shade = "#1d2229", module = "#2a313b"}

-- {rule = {property = name of a tone}}
local RULES = {
  [".paper"] = {fill = "paper"}, [".ink"] = {fill = "ink"}, [".muted"] = {fill = "muted"}, [".shade"] = {fill = "shade"},
  [".module"] = {fill = "module"},
  [".line"] = {stroke = "line"}, [".edge"] = {stroke = "paper"}, [".strong"] = {stroke = "ink"},
  [".soft"] = {stroke = "muted"},
}

local function rules_of(tones)
  local out = {}
  for rule, properties in pairs(RULES) do
    for property, tone in pairs(properties) do
      out[#out + 1] = (".picture %s{%s:%s}"):format(rule, property, tones[tone])
    end
  end
  table.sort(out)
  return table.concat(out)
end

local function colours()
  local out = {}
  for name, colour in pairs(COLOURS) do
    out[#out + 1] = (".fill-%s{fill:%s;background:%s}.stroke-%s{stroke:%s;fill:none}.on-%s{fill:%s}"):format(name, colour,
      colour, name, colour, name, WHITE_ON[name] and "#fff" or "#111")
  end
  table.sort(out)
  return table.concat(out)
end

-- The CSS of pictures: light, or dark where the reader's screen is; on paper always light.
theme.style = (".picture{font:%dpx system-ui,'Liberation Sans','DejaVu Sans',sans-serif}.picture .bold{font-weight:600}"
  .. ".picture .head{font-size:15px;font-weight:600}.picture .hit{fill:transparent;stroke:none}"
  .. ".picture .hit:hover{fill:#80808040}.picture .hatched{fill:url(#hatch)}.picture .block:hover{filter:brightness(1.15)}%s%s"
  .. "@media screen and (prefers-color-scheme:dark){%s}"):format(theme.LETTERS, colours(), rules_of(LIGHT), rules_of(DARK))

theme.LIGHT, theme.DARK = LIGHT, DARK

return theme
