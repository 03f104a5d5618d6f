-- A vision transformer on small images: its memory by precision, batch and checkpointing. Patches are the pixels of a
-- convolution's output, read as a sequence without a copy; the mean over the patches is classified.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim

local function ViT(s)
  local patches = (64 // s.patch) * (64 // s.patch)
  local layer = nn.TransformerEncoderLayer(s.dim, s.heads, 4 * s.dim, {dropout = 0, activation = "gelu",
    batch_first = true, norm_first = true})
  return nn.Graph{
    conv_proj = nn.Conv2d(3, s.dim, s.patch, {stride = s.patch}), positions = nn.PositionEmbedding(patches, s.dim),
    encoder = nn.TransformerEncoder(layer, s.depth, nn.LayerNorm(s.dim)), head = nn.Linear(s.dim, 100),
    forward = function(self, x)
      x = self.conv_proj(x):flatten(2):transpose(1, 2) -- (N, H W, C)
      x = self.encoder(self.positions(x))
      return self.head(x:mean(1))
    end,
  }
end

return mt.experiment{
  name = "vit", model = ViT, model_name = "ViT", input = {3, 64, 64}, classes = 100,
  options = {{"dim", 192, "channels"}, {"depth", 6, "layers"}, {"heads", 3, "of attention"}, {"patch", 8, "pixels"}},
  loss = nn.CrossEntropyLoss{label_smoothing = 0.1}, optimizer = optim.AdamW{lr = 1e-3, weight_decay = 0.05},
  schedule = optim.SequentialLR({optim.LinearLR(0.1, 1, 100), optim.CosineAnnealingLR(900)}, {100}),
  sweep = {{"batch", {8, 32}}, {"precision", {"fp32", "amp_bf16"}}, {"checkpoint", {"none", "selective", "all"}}},
  steps = 3, warmup = 1,
}
