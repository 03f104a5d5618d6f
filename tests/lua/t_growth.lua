-- A worker's memory is flat: it drops what it prepared for shapes that are gone. make overhead has the long form.
local tap = dofile "tests/tap.lua"
local growth = dofile "tests/lua/growth.lua"

local sizes = growth("predict", 6, 100)
tap.is(#sizes, 600, "a worker predicts 600 cells of different shapes")
local more = (sizes[600] - sizes[100]) / 500
print(("# %.2f MB after 100 cells, %.2f MB after 600"):format(sizes[100] / 1e6, sizes[600] / 1e6))
tap.ok(more < 5e3, "and grows by less than 5 KB for each of the last 500")
tap.done()
