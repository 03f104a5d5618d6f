-- The tables of docs/ranks.md, in Markdown: memtide docs/ranks_tables.lua TABLE. They read what experiments/parallel_networks.lua
-- has measured.
local csv = require "memtide.results.csv"
local common = dofile "docs/tables.lua"

local tables = {}
local MEASURED = "experiments/results/parallel_networks.csv"
local MODES = {"data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3", "tensor", "tensor and ZeRO-3"}

-- How far the loss of a row is from that of one rank, relatively; its status, where it is not "ok"
local function apart(row, alone)
  if not row then return "" end
  if row.status ~= "ok" then return row.status end
  local distance = math.abs(row.loss_last - alone.loss_last) / math.abs(alone.loss_last)
  return distance == 0 and "0" or ("%.0e"):format(distance)
end

-- Networks and ranks, by modes
function tables.losses()
  local cases, names, lines = {}, {}, {{"network", "ranks", table.unpack(MODES)}}
  local alike, ranks = 0, 0
  csv.read(MEASURED, function(row)
    cases[row.case] = row
    local name, count = row.case:match "^(.-), one rank for (%d)$"
    if name then names[#names + 1] = {name, count} end
    local peaks = select(2, tostring(row.rank_peaks or row.peak_bytes):gsub("%d+", ""))
    ranks, alike = ranks + peaks, alike + (row.status == "ok" and peaks or 0) -- "ok" is said by each rank of itself
  end)
  for _, one in ipairs(names) do
    local line, alone = {one[1], one[2]}, cases[("%s, one rank for %s"):format(one[1], one[2])]
    for _, mode in ipairs(MODES) do line[#line + 1] = apart(cases[("%s, %s, %s ranks"):format(one[1], mode, one[2])], alone) end
    lines[#lines + 1] = line
  end
  common.put(lines)
  print(("\nPredicted == measured on %d of %d ranks."):format(alike, ranks))
end

common.run(tables, ...)
