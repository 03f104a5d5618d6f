-- Which cells of a sweep are whose: parts have like work, none is empty, and no axis lines up with them.
local tap = dofile "tests/tap.lua"
local shards = require "memtide.sweep.shards"

local function shard(text)
  local found = shards.parse(text)
  return found and ("%d of %d"):format(found.part, found.of) or "none"
end
tap.is(shard "3/8", "3 of 8", "a part")
for _, text in ipairs{"0/8", "9/8", "3", "3/", "/8", "-1/8", "3/8/9", "1.5/8", "3/99999999999999999999"} do
  tap.is(shard(text), "none", text .. " is none")
end
tap.is(shards.path("sweep", {part = 3, of = 8}), "sweep.3-of-8.csv", "its file")

-- Sums of work by part, and the largest work of all
local function loads(works, n)
  local parts, counts = shards.deal(works, n)
  local sums, most = {}, 0
  for i = 1, n do sums[i] = 0 end
  for k, work in ipairs(works) do sums[parts[k]], most = sums[parts[k]] + work, math.max(most, work) end
  table.sort(sums)
  return sums, most, counts, parts
end

local uneven, empty, lost = 0, 0, 0
for n = 1, 9 do
  for axis = 1, 12 do
    local works, count = {}, 0
    for _ = 1, 3 do for i = 1, axis do works[#works + 1] = 1 << i end end
    if n <= #works then
      local sums, most, counts = loads(works, n)
      if sums[n] - sums[1] > most then uneven = uneven + 1 end
      for _, one in ipairs(counts) do
        count = count + one
        if one == 0 then empty = empty + 1 end
      end
      if count ~= #works then lost = lost + 1 end
    end
  end
end
tap.is(uneven, 0, "parts differ by no more than the largest cell")
tap.is(empty, 0, "none is empty")
tap.is(lost, 0, "and every cell is in one")

local equal = {}
for k = 1, 64 do equal[k] = 5 end
local _, _, counts, parts = loads(equal, 8)
tap.is(math.min(table.unpack(counts)) .. " " .. math.max(table.unpack(counts)), "8 8", "equal cells: as many for each")
local places = {}
for k, part in ipairs(parts) do if part == 1 then places[(k - 1) % 8] = true end end
local distinct = 0
for _ in pairs(places) do distinct = distinct + 1 end
tap.ok(distinct > 2, "an axis as long as there are parts gives a part several of its values")
local again = shards.deal(equal, 8)
tap.is(table.concat(again, " "), table.concat(parts, " "), "always the same")
tap.done()
