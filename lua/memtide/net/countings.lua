-- Which outputs a hand calculation of memory counts as activations. Articles and tables have two conventions.
local countings = {}

-- Layers with parameters, but the last one
local function of_weighted(layers)
  local counts, last = {}, 0
  for i, layer in ipairs(layers) do
    counts[i] = layer.weighted
    if layer.weighted then last = i end
  end
  counts[last] = false
  return counts
end

local function same_shape(a, b) return table.concat(a, " ") == table.concat(b, " ") end

-- All layers with parameters, and poolings that make an image smaller
local function of_table(layers)
  local counts = {}
  for i, layer in ipairs(layers) do
    counts[i] = layer.weighted or layer.kind:find "Pool" ~= nil and not same_shape(layer.input, layer.out)
  end
  return counts
end

-- name; title: of its column; who: counts so, in sentences; note: what * marks; counts(layers of network:layers()) ->
-- {[number of a layer] = is its output counted?}. The input is counted by all.
countings.list = {
  {name = "outputs", title = "by hand", who = "the hand calculation",
    note = "outputs that are counted by hand: of layers with parameters but the last", counts = of_weighted},
  {name = "article", title = "article", who = "the article", note = "outputs that the article counts",
    counts = of_weighted},
  -- as the well-known table of VGG16 has it (Stanford's CS231n, "Convolutional Neural Networks: case studies")
  {name = "table", title = "table", who = "the table",
    note = "outputs that the table counts: of layers with parameters and poolings", counts = of_table},
}

countings.names = {}
for i, one in ipairs(countings.list) do countings.names[i], countings.list[one.name] = one.name, one end

-- The counting of that name, nil: the first; there must be one.
function countings.of(name) return assert(countings.list[name or 1]) end

return countings
