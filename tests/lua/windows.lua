-- Attention as in Swin V2 for the tests, as tests/peers/pytorch_cases.py has it: to directions, with a learned scale and a
-- bias by distance; then every second of the steps, turned, through a product with a weight that is computed.
local nn = require "memtide".nn

return function(width, heads)
  local distance = {}
  for i = 0, 3 do for j = 0, 3 do distance[#distance + 1] = i - j + 3 end end
  return nn.Graph{
    scale = nn.Parameter({heads, 1, 1}, 0), table = nn.Parameter({7, heads}, 0), mix = nn.Parameter({6, width}, 0),
    distance = nn.Buffer(distance, {dtype = "int64"}), all = nn.Linear(width, 3 * width),
    forward = function(self, x)
      local all, parts = self.all(x), {}
      for i = 0, 2 do parts[i] = all:narrow(2, i * width, width):view(-1, 4, heads, width // heads):transpose(1, 2) end
      local q, k, v = parts[0], parts[1], parts[2]
      local near = nn.matmul(nn.normalize(q, {dim = -1}), nn.normalize(k, {dim = -1}):transpose(-2, -1))
      near = near * self.scale:clamp{max = 0.3}:exp()
      near = near + self.table[self.distance]:view(4, 4, heads):permute(2, 0, 1)
      local y = nn.matmul(near:softmax(-1), v):transpose(1, 2):reshape(-1, 4, width)
      return nn.linear(y:roll(1, 1):narrow(1, 0, 2, {step = 2}), 2 * self.mix)
    end,
  }
end
