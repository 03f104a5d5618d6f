-- Distillation: a small network learns what a large one answers, whose weights do not change. The teacher only
-- evaluates: it has no gradients and no optimizer state, and keeps no activations, but its weights are in memory while the
-- student's step runs.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local dir = ...
dir = dir or "digits"
if not mt.data.exists(dir .. "/train-images-idx3-ubyte") then require "memtide.digits".write(dir, 2000, 500, 1) end

local function student(width)
  return nn.Sequential{
    nn.Conv2d(1, width, 3, {stride = 2, padding = 1}), nn.ReLU(), nn.Flatten(), nn.Linear(14 * 14 * width, 10),
  }
end

return mt.experiment{
  name = "distill",
  model_name = "SimpleCNN to one convolution",
  trainings = function(s)
    return {
      teacher = {model = mt.models.SimpleCNN(), input = {1, 28, 28}, weights = s.teacher ~= "" and s.teacher or nil},
      student = {model = nn.Sequential{{"student", student(s.width)}}, input = {1, 28, 28}, loss = nn.MSELoss()},
    }
  end,
  round = function(t, draw)
    local x = draw "images"
    return t.student:step(x, t.teacher:outputs(x))
  end,
  data = {images = mt.data.mnist(dir, "train"):normalize({0.5}, {0.5})},
  options = {{"teacher", "", "safetensors of the teacher's weights; without them they are random"}},
  optimizer = optim.Adam{lr = 1e-3},
  batch = 50, shuffle = true, steps = 38, warmup = 2,
  sweep = {{"width", {4, 8}}, {"precision", {"fp32", "amp_bf16"}}},
}
