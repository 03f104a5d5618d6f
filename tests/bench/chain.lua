-- The time from one op to the next: two chains of ops that do next to nothing, which differ by a thousand of them.
-- sh tests/gpu.sh --part gap
local mt = require "memtide"
local nn = mt.nn
local function chain(n)
  local layers = {nn.Linear(64, 64)}
  for k = 1, n do layers[k + 1] = nn.Softplus() end
  return nn.Sequential(layers)
end
return mt.experiment{name = "chain", input = {64}, target = {64}, loss = nn.MSELoss(), optimizer = mt.optim.SGD{lr = 0},
  cases = {{case = "100", model = chain(100)}, {case = "600", model = chain(600)}}, batch = 1, steps = 200, warmup = 20}
