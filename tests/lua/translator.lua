-- An encoder and a decoder for the tests, as tests/peers/pytorch_cases.py has it: of x the first `split` steps are the
-- encoder's, the 5 after them the decoder's. dropout is the encoder's and the decoder's.
local nn = require "memtide".nn

return function(width, heads, split, dropout)
  return nn.Graph{
    encoder = nn.TransformerEncoderLayer(width, heads, 32, {dropout = dropout or 0, batch_first = true}),
    decoder = nn.TransformerDecoderLayer(width, heads, 24, {dropout = dropout or 0, activation = "gelu",
      batch_first = true, norm_first = true, tgt_is_causal = true}),
    keys = nn.Linear(width, 12, false), values = nn.Linear(width, 20),
    attention = nn.MultiheadAttention(width, 2, {kdim = 12, vdim = 20, batch_first = true}),
    forward = function(self, x)
      local memory = self.encoder(x:narrow(1, 0, split))
      local y = self.decoder(x:narrow(1, split, 5), memory)
      return y + self.attention(y, self.keys(memory), self.values(memory))
    end,
  }
end
