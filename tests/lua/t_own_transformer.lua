-- A transformer whose layers are all a script's own: RMSNorm of pow, mean and rsqrt, projections and attention by
-- einsum, a causal mask, softmax less its maximum, SwiGLU. The same in PyTorch, in float64 from the same parameters,
-- gave these losses; tests/lua/t_oracle.lua explains the closed forms.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local mt = require "memtide"
local nn = mt.nn

local LOSSES = {3.84499834, 4.18792582, 4.09540537, 3.74125269, 3.64017587, 3.30446964} -- PyTorch 2.15
local V, T, B, D, H, F = 24, 9, 3, 16, 4, 28
local device = assert(core.device(os.getenv "TEST_DEVICE" or "cpu"))

local function norm(x, weight) return x * nn.rsqrt((x ^ 2):mean(-1, true) + 1e-5) * weight end
local function linear(x, weight) return nn.einsum("batch time d, out d -> batch time out", x, weight) end

local function attention(x, wq, wk, wv, wo)
  local function heads(w) return linear(x, w):view(x:size(0), T, H, D // H) end
  local scores = nn.einsum("bthd,bshd->bhts", heads(wq), heads(wk)) / math.sqrt(D // H)
  scores = scores:masked_fill(~nn.tril(T), -math.huge)
  local e = nn.exp(scores - scores:amax(-1, true))
  local y = (e / e:sum(-1, true)):matmul(heads(wv):transpose(1, 2))
  return linear(y:transpose(1, 2):reshape(B, T, D), wo)
end

local function Transformer()
  local what = {embed = nn.Embedding(V, D), positions = nn.Parameter{T, D}, norm = nn.Parameter({D}, 1),
    head = nn.Parameter({V, D}, "normal")}
  for b = 0, 1 do
    what["n1_" .. b], what["n2_" .. b] = nn.Parameter({D}, 1), nn.Parameter({D}, 1)
    for name in ("qkvo"):gmatch "." do what[name .. b] = nn.Parameter({D, D}, {init = "uniform", bound = 0.25}) end
    what["w1_" .. b], what["w3_" .. b] = nn.Parameter({F, D}, "normal"), nn.Parameter({F, D}, "normal")
    what["w2_" .. b] = nn.Parameter({D, F}, {init = "normal", std = 0.02})
  end
  function what.forward(self, i)
    local x = self.embed(i) + self.positions
    for b = 0, 1 do
      local h = norm(x, self["n1_" .. b])
      x = x + attention(h, self["q" .. b], self["k" .. b], self["v" .. b], self["o" .. b])
      h = norm(x, self["n2_" .. b])
      local gate = linear(h, self["w1_" .. b])
      x = x + linear(gate * nn.sigmoid(gate) * linear(h, self["w3_" .. b]), self["w2_" .. b])
    end
    return linear(norm(x, self.norm), self.head):flatten(0, 1)
  end
  what.order = {"embed", "positions"}
  for b = 0, 1 do
    for name in ("n1_ q k v o n2_ w1_ w3_ w2_"):gmatch "%S+" do what.order[#what.order + 1] = name .. b end
  end
  table.move({"norm", "head"}, 1, 2, #what.order + 1, what.order)
  return nn.Graph(what)
end

local function losses(settings)
  local network = assert(core.network(Transformer(), nn.CrossEntropyLoss(), {B, T}))
  settings.optimizer = mt.optim.SGD{lr = 0.1, momentum = 0.9}
  local runtime <close> = assert(core.runtime{programs = {assert(core.compile(network, settings, device))},
    allocator = "planned"})
  for k, param in ipairs(network:params()) do
    local flat = #param.shape == 1
    local scale = flat and 0.1 or 1 / math.sqrt(param.elements / param.shape[1])
    assert(runtime:write(param.name, function(i)
      return (flat and 1 or 0) + scale * math.sin(0.731 * (i - 1) + 1.37 * (k - 1) + 0.5)
    end))
  end
  local found = {}
  for s = 0, #LOSSES - 1 do
    local x, t = {}, {}
    for i = 0, B * T - 1 do x[i + 1], t[i + 1] = (5 * i + s) % V, (3 * i + s) % V end
    found[s + 1] = assert(runtime:step(1, x, t))
  end
  return found
end

for _, case in ipairs{{{}, 1e-4, "fp32"}, {{checkpoint = "all"}, 1e-4, "recomputed"},
  {{precision = "amp_bf16"}, 5e-2, "amp_bf16"}, {{precision = "bf16"}, 0.1, "bf16"}} do
  local found = losses(case[1])
  for s, loss in ipairs(found) do
    tap.near(loss, LOSSES[s], case[2] * LOSSES[s], ("%s: the loss of step %d"):format(case[3], s))
  end
end

tap.done()
