-- The transformer of tests/unit/traces/: 24 layers, all of a script's own, with the loss and the optimizer. Its names hold
-- what the names of the recorded program held, as the lifetimes in its lists show. RoPE turns halves, where that one turns
-- pairs: the sizes are the same.
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local V, B, D, H, F, L = 10000, 4, 1024, 16, 4096, 24

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

local function attention(self, x, b, T)
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

local function block(self, x, b, T)
  local x_attn = attention(self, norm(x, self["n1_" .. b]), b, T)
  local attn_sublayer_output = x + x_attn
  local x_ffn = ffn(self, norm(attn_sublayer_output, self["n2_" .. b]), b)
  local ffn_sublayer_output = attn_sublayer_output + x_ffn
  return ffn_sublayer_output
end

local function Transformer(s)
  local T = s.context
  local what, order = {}, {} -- parameters in the recorded program's order
  local function add(name, layer)
    what[name], order[#order + 1] = layer, name
  end
  add("embed", nn.Embedding(V, D))
  for b = 1, L do
    for name in ("q k v o"):gmatch "%S+" do add(name .. b, nn.Parameter({D, D}, "normal")) end
    add("w1_" .. b, nn.Parameter({F, D}, "normal"))
    add("w2_" .. b, nn.Parameter({D, F}, "normal"))
    add("w3_" .. b, nn.Parameter({F, D}, "normal"))
    for name in ("n1_ n2_"):gmatch "%S+" do add(name .. b, nn.Parameter({D}, 1)) end
  end
  add("norm", nn.Parameter({D}, 1))
  add("head", nn.Parameter({V, D}, "normal"))
  for name in ("cos sin"):gmatch "%a+" do add(name, nn.Frozen(nn.Parameter({T, D // H // 2}, 1))) end
  function what.forward(self, i)
    local embedded = self.embed(i)
    local x = embedded
    for b = 1, L do x = block(self, x, b, T) end
    x = norm(x, self.norm)
    return linear(x, self.head)
  end
  what.order = order
  return nn.Graph(what)
end

local function cross_entropy(logits, targets)
  local function log_softmax(x)
    local most = x:max(-1, true)
    local rescaled = x - most
    return rescaled - nn.log(nn.exp(rescaled):sum(-1, true))
  end
  local log_p = -log_softmax(logits)
  return log_p:gather(-1, targets:unsqueeze(-1))
end

local function AdamW()
  return optim.Rule{lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.01, states = {"m", "v"},
    update = function(p, g, s, t, o)
      p:sub_(o.lr * o.decay * p)
      local m = s:get("m", optim.zeros_like(g))
      local v = s:get("v", optim.zeros_like(g))
      s.m = o.beta1 * m + (1 - o.beta1) * g
      s.v = o.beta2 * v + (1 - o.beta2) * g ^ 2
      local rate = o.lr * optim.sqrt(1 - o.beta2 ^ t) / (1 - o.beta1 ^ t)
      p:sub_(rate * s.m / (s.v:sqrt() + o.eps))
    end}
end

-- The recorded program holds five batches on the device; its inference has neither targets nor a variable for the output.
return mt.experiment{
  name = "own_gpt", model_name = "own_gpt", model = Transformer, input = function(s) return {s.context} end,
  loss = nn.Loss(cross_entropy), optimizer = AdamW(), batch = B, framework = "pytorch",
  cases = {
    {case = "inference", mode = "eval", context = 256, pytorch = {keep = {}, resident = 5 * B * 256 * 8}},
    {case = "training", context = 128, pytorch = {step_function = true, resident = {5 * B * 128 * 8, 5 * B * 128 * 8}}},
  },
}
