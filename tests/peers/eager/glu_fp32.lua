local mt = require "memtide"
local nn, optim, models = mt.nn, mt.optim, mt.models
return mt.experiment{
  name = "glu_fp32", model_name = "glu_fp32",
  model = nn.Sequential{nn.Conv1d(5, 14, 3), nn.GLU(1), nn.Conv1d(7, 8, 3), nn.Linear(27, 22), nn.GLU(), nn.Tanh()},
  input = {5, 31}, loss = nn.MSELoss(),
  optimizer = optim.Adam({lr = 0.001}), batch = 29, precision = "fp32", accumulate = 1, mode = "train",
}
