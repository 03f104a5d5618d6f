-- The transformer of tests/unit/traces/gpt_inference_256: 24 layers, all of a script's own. Its names hold what the names
-- of the recorded program held, as the lifetimes in its list show. RoPE turns halves, where that one turns pairs: the
-- sizes are the same.
local mt = require "memtide"
local nn = mt.nn
local V, T, B, D, H, F, L = 10000, 256, 4, 1024, 16, 4096, 24

local function linear(x, weight) return nn.einsum("... d_in, d_out d_in -> ... d_out", x, weight) end

local function norm(x, weight)
  local rms = nn.rsqrt((x ^ 2):mean(-1, true) + 1e-5)
  x = x * rms
  return weight * x
end

local function rope(x, cos, sin)
  local x1, x2 = x:narrow(3, 0, D // H // 2), x:narrow(3, D // H // 2, D // H // 2)
  local r1 = cos * x1 - sin * x2
  local r2 = sin * x1 + cos * x2
  local result = nn.cat({r1, r2}, 3)
  return result
end

local function softmax(x)
  local rescaled = x - x:max(-1, true)
  local e = nn.exp(rescaled)
  return e / e:sum(-1, true)
end

local function sdpa(q, k, v, mask)
  local scores = nn.einsum("... query d_k, ... key d_k -> ... query key", q, k) / math.sqrt(D // H)
  scores = nn.where(mask, scores, -math.huge)
  local weights = softmax(scores)
  return nn.einsum("... query key, ... key d_v -> ... query d_v", weights, v)
end

local function attention(self, x, b)
  local q, k, v = linear(x, self["q" .. b]), linear(x, self["k" .. b]), linear(x, self["v" .. b])
  q = q:view(B, T, H, D // H):transpose(1, 2)
  k = k:view(B, T, H, D // H):transpose(1, 2)
  v = v:view(B, T, H, D // H):transpose(1, 2)
  local cos, sin = self.cos, self.sin
  q = rope(q, cos, sin)
  k = rope(k, cos, sin)
  local seq = nn.arange(T)
  local mask = nn.ge(seq:unsqueeze(1), seq:unsqueeze(0))
  local y = sdpa(q, k, v, mask)
  y = y:transpose(1, 2):reshape(B, T, D)
  return linear(y, self["o" .. b])
end

local function ffn(self, x, b)
  local function silu(g) return g * nn.sigmoid(g) end
  return linear(silu(linear(x, self["w1_" .. b])) * linear(x, self["w3_" .. b]), self["w2_" .. b])
end

local function block(self, x, b)
  local x_attn = attention(self, norm(x, self["n1_" .. b]), b)
  local attn_sublayer_output = x + x_attn
  local x_ffn = ffn(self, norm(attn_sublayer_output, self["n2_" .. b]), b)
  local ffn_sublayer_output = attn_sublayer_output + x_ffn
  return ffn_sublayer_output
end

local function Transformer()
  local what = {embed = nn.Embedding(V, D), norm = nn.Parameter({D}, 1), head = nn.Parameter({V, D}, "normal"),
    cos = nn.Parameter({T, D // H // 2}, 1), sin = nn.Parameter({T, D // H // 2}, 1)}
  for b = 1, L do
    for name in ("n1_ n2_"):gmatch "%S+" do what[name .. b] = nn.Parameter({D}, 1) end
    for name in ("q k v o"):gmatch "%S+" do what[name .. b] = nn.Parameter({D, D}, "normal") end
    what["w1_" .. b], what["w3_" .. b] = nn.Parameter({F, D}, "normal"), nn.Parameter({F, D}, "normal")
    what["w2_" .. b] = nn.Parameter({D, F}, "normal")
  end
  function what.forward(self, i)
    local embedded = self.embed(i)
    local x = embedded
    for b = 1, L do x = block(self, x, b) end
    x = norm(x, self.norm)
    return linear(x, self.head)
  end
  return nn.Graph(what)
end

return mt.experiment{
  name = "own_gpt", model_name = "own_gpt", model = Transformer(), input = {T}, loss = nn.CrossEntropyLoss(),
  optimizer = mt.optim.AdamW{lr = 1e-3}, batch = B, mode = "eval", framework = "pytorch", pytorch = {keep = {}},
}
