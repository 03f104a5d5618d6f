-- Prediction takes time in proportion to a network's layers: four times as many take less than eight times as long.
-- Anything that looks at all pairs of layers would take sixteen times; images with batch normalisation, light ops that run again
-- among them, take 5 to 6: their programs are larger than a cache. Processor time, the shortest of three runs.
local mt = require "memtide"
local core = require "memtide.core"
local settings = require "memtide.net.settings"
local tap = dofile "tests/tap.lua"
local nn = mt.nn

local FEW, MOST = 800, 8

-- n layers; input: of one sample
local networks = {
  chain = {input = {16}, make = function(n)
    local layers = {}
    for _ = 1, n // 2 do table.move({nn.Linear(16, 16), nn.ReLU()}, 1, 2, #layers + 1, layers) end
    return nn.Sequential(layers)
  end},
  shared = {input = {16}, make = function(n)
    local layers, shared = {}, nn.Linear(16, 16)
    for _ = 1, n // 2 do table.move({shared, nn.Tanh()}, 1, 2, #layers + 1, layers) end
    return nn.Sequential(layers)
  end},
  blocks = {input = {16}, make = function(n)
    local blocks = {}
    for i = 1, n // 4 do
      blocks[i] = nn.Checkpoint(nn.Residual{nn.Sequential{nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()}})
    end
    return nn.Sequential(blocks)
  end},
  images = {input = {4, 8, 8}, make = function(n)
    local layers = {}
    for _ = 1, n // 3 do
      table.move({nn.Conv2d(4, 4, 3, {padding = 1}), nn.BatchNorm2d(4), nn.ReLU{inplace = true}}, 1, 3, #layers + 1,
        layers)
    end
    return nn.Sequential{nn.Sequential(layers), nn.Flatten(), nn.Linear(256, 16)}
  end},
  graph = {input = {16}, make = function(n)
    local parts = {order = {}}
    for i = n // 2, 1, -1 do
      parts["fc" .. i] = nn.Linear(16, 16)
      parts.order[#parts.order + 1] = "fc" .. i
    end
    function parts.forward(self, x)
      for i = 1, n // 2 do x = nn.relu(self["fc" .. i](x)) end
      return x
    end
    return nn.Graph(parts)
  end},
}

local device = assert(core.device "cpu")

local function seconds(network, n, values)
  local start = os.clock()
  local input = {values.batch or 8, table.unpack(network.input)}
  local net = assert(core.network(network.make(n), nn.CrossEntropyLoss(), input))
  local program = assert(core.compile(net, settings.for_core(values), device))
  assert(program:predict{allocator = values.allocator or "planned", steps = 3, with = {}})
  local spent = os.clock() - start
  program:close()
  net:close()
  return spent
end

local function shortest(...)
  collectgarbage()
  return math.min(seconds(...), seconds(...), seconds(...))
end

for _, case in ipairs{
  {"chain"}, {"chain", allocator = "caching"}, {"chain", precision = "amp_bf16"}, {"shared", accumulate = 4},
  {"blocks", checkpoint = "marked"}, {"blocks", inplace = true, checkpoint = "all"},
  {"chain", batch = 128, offload = "all"}, {"images"}, {"graph", checkpoint = "sqrt"},
} do
  local values, text = {checkpoint = "none"}, {case[1]}
  for name, value in pairs(case) do
    if name ~= 1 then
      values[name] = value
      text[#text + 1] = name .. "=" .. tostring(value)
    end
  end
  table.sort(text)
  local network = networks[case[1]]
  local few, many = shortest(network, FEW, values), shortest(network, 4 * FEW, values)
  tap.ok(many < MOST * few, ("%s: %.0f ms for %d layers, %.0f ms for four times as many"):format(
    table.concat(text, " "), few * 1e3, FEW, many * 1e3))
end

tap.done()
