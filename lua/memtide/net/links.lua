-- Links between ranks, and the time that a step's collective ops take over them. The time is a model: it was never measured.
--
-- It is NCCL's own, with which it chooses between algorithms: of a ring, protocol Simple (ncclTopoTuneModel in
-- src/graph/tuning.cc), as Thakur, Rabenseifner and Gropp 2005 have it. Of N ranks in M nodes, a collective op whose parts go
-- round once (twice where they are summed up and all get the sums) takes
--
--   call + rounds ((N - M) within.step + (M - 1) between.step) + sent / bandwidth
--
-- sent: what one rank sends, (N - 1) / N of the tensor a round. bandwidth: of a rank within its node; of a ring through several
-- nodes what their adapters have, where that is less, since each adapter carries a ring of its own. Ops of one bucket are one
-- call. Nothing else is on the links, and no rank waits for another. Above some hundred ranks NCCL prefers trees, whose steps
-- are fewer.
local core = require "memtide.core"
local util = require "memtide.base.util"

local links = {}

local CALL_US, RANKS = 8.4, 8 -- baseLat of that file; ranks of a node, as in a DGX
-- hwLat of that file: NVLink, PCI, network. It has no figure of its own for Ethernet with TCP, which is slower.
local NVLINK_US, PCIE_US, NETWORK_US = 3.4, 5.7, 9.6
local INFINIBAND = "one adapter for each rank, as in a DGX; NVIDIA's data sheet of ConnectX: "
local ETHERNET = "one adapter for each node; IEEE 802.3: "

-- bandwidth: bytes per second in one direction, of a rank's link or of an adapter; step_us: microseconds of a step to the next
-- rank; adapters: of a node, nil: one for each rank
local KNOWN = {
  {name = "nvlink3", bandwidth = 300e9, step_us = NVLINK_US, source = "NVIDIA's data sheet of the A100: 600 GB/s in both directions"},
  {name = "nvlink4", bandwidth = 450e9, step_us = NVLINK_US, source = "NVIDIA's data sheets of H100 and H200: 900 GB/s in both directions"},
  {name = "nvlink5", bandwidth = 900e9, step_us = NVLINK_US, source = "NVIDIA's data sheet of the B200: 1.8 TB/s in both directions"},
  {name = "pcie3", bandwidth = 15.75e9, step_us = PCIE_US, source = "PCI-SIG: 16 lanes of 8 GT/s, 128 bits of 130"},
  {name = "pcie4", bandwidth = 31.5e9, step_us = PCIE_US, source = "PCI-SIG: 16 lanes of 16 GT/s, 128 bits of 130"},
  {name = "pcie5", bandwidth = 63e9, step_us = PCIE_US, source = "PCI-SIG: 16 lanes of 32 GT/s, 128 bits of 130"},
  {name = "infiniband-hdr", bandwidth = 25e9, step_us = NETWORK_US, source = INFINIBAND .. "200 Gb/s"},
  {name = "infiniband-ndr", bandwidth = 50e9, step_us = NETWORK_US, source = INFINIBAND .. "400 Gb/s"},
  {name = "ethernet10", bandwidth = 1.25e9, step_us = NETWORK_US, adapters = 1, source = ETHERNET .. "10 Gb/s"},
  {name = "ethernet25", bandwidth = 3.125e9, step_us = NETWORK_US, adapters = 1, source = ETHERNET .. "25 Gb/s"},
  {name = "ethernet100", bandwidth = 12.5e9, step_us = NETWORK_US, adapters = 1, source = ETHERNET .. "100 Gb/s"},
}
local by_name, names = {}, {}
for i, link in ipairs(KNOWN) do by_name[link.name], names[i] = link, link.name end
links.list = KNOWN

-- What a device's ranks have unless the cell says it: by a pattern of its title, within a node and between nodes
local DEFAULTS = {
  {"B200", "nvlink5", "infiniband-ndr"}, {"H100 PCIe", "pcie5", "infiniband-ndr"}, {"H[12]00", "nvlink4", "infiniband-ndr"},
  {"A100", "nvlink3", "infiniband-hdr"}, {"RTX 5090", "pcie5", "ethernet100"}, {"RTX", "pcie4", "ethernet100"},
  {"NVIDIA L4", "pcie4", "ethernet100"}, {"A10G", "pcie4", "ethernet100"}, {"T4", "pcie3", "ethernet100"},
}

local function named(word)
  return by_name[word] or util.fail('link: expected some of %s, or a file NAME.json, found "%s"%s', table.concat(names, ", "), word,
    util.meant(word, names))
end

-- ---- a file of the user's own

local FIELDS = {bandwidth = true, step_us = true, adapters = false} -- must it be there?
local KEYS = {"within", "between", "ranks_per_node", "call_us"}

local function number_of(place, value, least)
  if type(value) ~= "number" or not (value >= least and value < math.huge) then
    util.fail("%s: expected a number of at least %s, found %s", place, core.number(least), tostring(value))
  end
  return value
end

-- A link of the file: a name that is known, or {bandwidth, step_us, adapters}
local function link_of(place, value)
  if type(value) == "string" then return named(value) end
  if type(value) ~= "table" then util.fail("%s: expected the name of a link or an object, found %s", place, tostring(value)) end
  for _, key in ipairs(util.sorted_keys(value)) do
    if FIELDS[key] == nil then util.fail("%s: unknown field \"%s\"", place, key) end
  end
  for _, key in ipairs(util.sorted_keys(FIELDS)) do
    if FIELDS[key] or value[key] then number_of(place .. "." .. key, value[key], key == "step_us" and 0 or 1) end
  end
  return value
end

local function from_file(path)
  local found = util.must(core.json(util.read_file(path, "link"), path))
  local known = {}
  for _, key in ipairs(KEYS) do known[key] = true end
  if type(found) ~= "table" then util.fail("%s: expected an object with %s", path, table.concat(KEYS, ", ")) end
  for _, key in ipairs(util.sorted_keys(found)) do
    if not known[key] then util.fail("%s: unknown field \"%s\"%s", path, tostring(key), util.meant(tostring(key), KEYS)) end
  end
  local within = link_of(path .. ": within", found.within)
  return {within = within, between = found.between and link_of(path .. ": between", found.between) or within,
    ranks = number_of(path .. ": ranks_per_node", found.ranks_per_node or RANKS, 1),
    call_us = number_of(path .. ": call_us", found.call_us or CALL_US, 0)}
end

-- ---- which links a training's ranks have

local function of_device(title)
  for _, one in ipairs(DEFAULTS) do if title:find(one[1]) then return one[2], one[3] end end
end

-- The links that a cell's setting `link` names, "nvlink4+infiniband-ndr" (within a node + between nodes) or a file, or those
-- of the device of that title where it is "device": {within, between, ranks of a node, call_us}; nil: they are not known. Raises
-- where the name or the file is wrong.
function links.of(text, title)
  if text:find "%.json$" then return from_file(text) end
  local within, between = text:match "^([^+]*)%+?(.*)$"
  if text == "device" then within, between = of_device(title or "") end
  if not within then return nil end
  return {within = named(within), between = named(between ~= "" and between or within), ranks = RANKS, call_us = CALL_US}
end

-- Seconds of what a rank sends in a step to a group of `ranks`, each `stride` ranks after the one before: {ranks, stride, sent,
-- calls, rounds}, of program:transfer(). Groups that begin at neighbours share the adapters of their nodes.
function links.seconds(found, group)
  local in_node = math.max(1, math.min(group.ranks, found.ranks // group.stride))
  local nodes, sharing = math.ceil(group.ranks / in_node), math.min(group.stride, found.ranks)
  local across = (found.between.adapters or found.ranks) * found.between.bandwidth / sharing
  local bandwidth = in_node == 1 and across or nodes == 1 and found.within.bandwidth or math.min(found.within.bandwidth, across)
  local steps = (group.ranks - nodes) * found.within.step_us + (nodes - 1) * found.between.step_us
  return (group.calls * found.call_us + group.rounds * steps) / 1e6 + group.sent / bandwidth
end

return links
