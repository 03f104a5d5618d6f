-- NAME: a PyTorch listing, line by line. Replace the comments by yours, and the Lua below each by what it says.
-- A model that Python can import needs no handwork: memtide import FILE.py:Net --input 3,32,32 -o NAME.lua
local mt = require "memtide"
local nn, optim, F = mt.nn, mt.optim, mt.nn.functional

-- class Net(nn.Module):
--     def __init__(self):
--         super().__init__()
--         self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
--         self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
--         self.fc = nn.Linear(64 * 8 * 8, 10)
--
--     def forward(self, x):
--         x = F.max_pool2d(F.relu(self.conv1(x)), 2)
--         x = F.max_pool2d(F.relu(self.conv2(x)), 2)
--         return self.fc(x.flatten(1))
local function Net()
  return nn.Graph{
    conv1 = nn.Conv2d(3, 32, 3, {padding = 1}),
    conv2 = nn.Conv2d(32, 64, 3, {padding = 1}),
    fc = nn.Linear(64 * 8 * 8, 10),
    forward = function(self, x)
      x = F.max_pool2d(F.relu(self.conv1(x)), 2)
      x = F.max_pool2d(F.relu(self.conv2(x)), 2)
      return self.fc(x:flatten(1))
    end,
  }
end

return mt.experiment{
  name = "NAME",
  model = Net(),                                            -- model = Net()
  loss = nn.CrossEntropyLoss(),                             -- criterion = nn.CrossEntropyLoss()
  optimizer = optim.Adam{lr = 1e-3},                        -- optimizer = optim.Adam(model.parameters(), lr=1e-3)
  input = {3, 32, 32}, classes = 10,                        -- x.shape[1:]
  sweep = {
    {"batch", {32, 64, 128}},                               -- DataLoader(..., batch_size=...)
    {"framework", {"memtide", "pytorch"}},                  -- memtide's own step, and what eager PyTorch allocates
  },
  steps = 5, warmup = 1,                                    -- for x, y in loader: ... optimizer.step()
}
