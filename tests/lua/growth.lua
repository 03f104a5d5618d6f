-- How a worker's memory grows over many cells of which no two have the same shapes: a sweep in one worker. Returns the
-- anonymous resident bytes that it had (what it has allocated, without code that it has read) after so many cells.
local core = require "memtide.core"
local script = require "memtide.sweep.script"
local sweep = require "memtide.sweep.sweep"

-- ...: the file that the worker writes its size to, after each cell
local TEXT = [[
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local file = assert(io.open(..., "w"))
file:setvbuf "line"
local function resident()
  for line in io.lines "/proc/self/status" do
    local kib = line:match("^RssAnon:%%s*(%%d+)")
    if kib then return tonumber(kib) * 1024 end
  end
end
return mt.experiment{
  name = "growth", model_name = "m", input = {1, 6, 6}, classes = 4, steps = 1, warmup = 0,
  sweep = {{"batch", mt.range(1, %d)}, {"width", mt.range(1, %d)}},
  model = function(s)
    file:write(resident(), "\n")
    if s.width %% 10 == 0 then
      return nn.Sequential{nn.Conv2d(1, s.width // 10, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * (s.width // 10), 4)}
    end
    return nn.Sequential{nn.Flatten(), nn.Linear(36, s.width), nn.ReLU(), nn.Linear(s.width, 4)}
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1},
}]]

-- purpose: "run" or "predict"; `batches` times `widths` cells. Second: the seconds that they took
return function(purpose, batches, widths)
  local path = os.tmpname()
  local text, args = TEXT:format(batches, widths), {path}
  local experiment = script.load_experiment("growth.lua", args, text)
  local begun = core.clock()
  sweep.run(experiment, purpose, {set = {}, quiet = true, say = print,
    script = {path = "growth.lua", text = text, args = args}})
  local seconds, sizes = core.clock() - begun, {}
  for line in io.lines(path) do sizes[#sizes + 1] = tonumber(line) end
  os.remove(path)
  return sizes, seconds
end
