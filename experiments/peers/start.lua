-- The start of a row of peers.lua, so that PyTorch can start there too: memtide start.lua CASE PRECISION BATCH STEPS FOLDER
-- writes weights and the first batches into FOLDER, makes a step with each batch, and prints the losses.
local mt = require "memtide"

local case, precision, batch, steps, folder = ...
local experiment = dofile "experiments/peers.lua"
experiment:set("precision", {precision})
experiment:set("batch", {tonumber(batch)})
local found
for _, cell in ipairs(experiment:cells()) do if cell.name == case then found = cell.values end end
if not found then error("no case " .. tostring(case), 0) end

local function write(name, step, tensor, format)
  local file <close> = assert(io.open(("%s/%s%d"):format(folder, name, step), "wb"))
  for _, value in ipairs(tensor:values()) do assert(file:write(string.pack(format, value))) end
end

local info = found.data:info()
local model = type(found.model) == "function" and found.model(found) or found.model
local trainer <close> = assert(mt.trainer{model = model, input = info.shape, batch = found.batch,
  precision = precision, loss = found.loss, optimizer = found.optimizer, seed = found.seed})
assert(trainer:save(folder .. "/weights"))
local batches = mt.data.loader{found.data, batch = found.batch, seed = found.seed}:epoch()
for step = 1, tonumber(steps) do
  local x, y = batches()
  write("x", step, x, "<f")
  write("y", step, y, "<i4")
  print(("%.9g"):format(assert(trainer:step(x, y))))
end
