-- mt.models: Hugging Face's models that predict the next token. Options, defaults and names of parameters are those of
-- transformers: of its configuration classes and of the model's state_dict. Each gives (N, T) tokens -> (N T,
-- vocab_size), the logits of the next token of each.
local model = require "memtide.net.model"
local nn = require "memtide.net.nn".nn
local util = require "memtide.base.util"

local define = model.define

local function merged(...)
  local all = {}
  for _, options in ipairs{...} do
    for key, value in pairs(options) do all[key] = value end
  end
  return all
end

-- ---- Llama and its kin: normalised sums of squares, rotary positions, gated products

-- {rope_type = {field = option of nn.RotaryPositionalEmbeddings}}
local ROPE = {
  linear = {factor = "factor"},
  llama3 = {factor = "factor", low_freq_factor = "low_freq_factor", high_freq_factor = "high_freq_factor",
    original_max_position_embeddings = "original_max_seq_len"},
}

-- Rotary positions of `dim` features of each head; rope_scaling: a table with its rope_type, {}: none.
local function rotary_of(name, o, dim)
  local scaling, options = o.rope_scaling, {interleaved = false}
  local kind = scaling.rope_type or "default"
  if kind ~= "default" then
    if not ROPE[kind] then
      util.fail('models.%s: rope_scaling: expected rope_type = "default" or one of %s, found "%s"', name,
        table.concat(util.sorted_keys(ROPE), ", "), tostring(kind))
    end
    options.scaling = kind
    for field, option in pairs(ROPE[kind]) do
      if type(scaling[field]) ~= "number" then util.fail("models.%s: rope_scaling: %s is missing", name, field) end
      options[option] = scaling[field]
    end
  end
  return nn.RotaryPositionalEmbeddings(dim, o.max_position_embeddings, o.rope_theta, options)
end

-- What one family has that others have not; o: the model's options
--   q_bias, o_bias, mlp_bias, head_norm (of queries and keys); listing: the classes' forward functions are transformers'
--   own, which PyTorch's step then follows
local function attention(name, o, kind, window)
  local heads = o.num_attention_heads
  local width = o.head_dim > 0 and o.head_dim or o.hidden_size // heads
  local of_keys = width * (o.num_key_value_heads > 0 and o.num_key_value_heads or heads)
  local rotary = rotary_of(name, o, width)
  local how = {num_heads = heads, is_causal = true, enable_gqa = true, dropout_p = o.attention_dropout,
    window = window > 0 and window or nil, scale = kind.scale, softcap = kind.softcap}
  local function heads_of(norm, x, features)
    if not norm then return x end
    return norm(x:view(x:size(0), -1, width)):view(x:size(0), -1, features)
  end
  local parts = {
    q_proj = nn.Linear(o.hidden_size, heads * width, {bias = kind.q_bias}),
    k_proj = nn.Linear(o.hidden_size, of_keys, {bias = kind.q_bias}),
    v_proj = nn.Linear(o.hidden_size, of_keys, {bias = kind.q_bias}),
    o_proj = nn.Linear(heads * width, o.hidden_size, {bias = kind.o_bias}),
    order = {"q_proj", "k_proj", "v_proj", "o_proj"}, listing = kind.listing and "LlamaAttention" or nil,
    forward = function(self, x)
      local q = heads_of(kind.head_norm and self.q_norm, self.q_proj(x), heads * width)
      local k = heads_of(kind.head_norm and self.k_norm, self.k_proj(x), of_keys)
      local v = self.v_proj(x)
      q, k = rotary(q), rotary(k)
      return self.o_proj(nn.scaled_dot_product_attention(q, k, v, how))
    end,
  }
  if kind.head_norm then
    parts.q_norm, parts.k_norm = nn.RMSNorm(width, o.rms_norm_eps), nn.RMSNorm(width, o.rms_norm_eps)
    table.move({"q_norm", "k_norm"}, 1, 2, 5, parts.order)
  end
  return nn.Graph(parts)
end

local function gated(name, o, kind)
  local act = model.activation(o, name, "hidden_act")
  local function linear(from, to) return nn.Linear(from, to, {bias = kind.mlp_bias}) end
  return nn.Graph{
    gate_proj = linear(o.hidden_size, o.intermediate_size), up_proj = linear(o.hidden_size, o.intermediate_size),
    down_proj = linear(o.intermediate_size, o.hidden_size),
    forward = function(self, x) return self.down_proj(act(self.gate_proj(x)) * self.up_proj(x)) end,
  }
end

local function rms_norm(o, kind)
  return nn.RMSNorm(o.hidden_size, {eps = o.rms_norm_eps, listing = kind.listing and "LlamaRMSNorm" or nil})
end

local function layer_of(name, o, kind, window)
  local norm = kind.norm or rms_norm
  return nn.Graph{
    self_attn = (kind.attention or attention)(name, o, kind, window), mlp = (kind.mlp or gated)(name, o, kind),
    input_layernorm = norm(o, kind), post_attention_layernorm = norm(o, kind),
    order = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
    forward = function(self, x)
      local residual = x
      x = self.input_layernorm(x)
      x = self.self_attn(x)
      x = residual + x
      residual = x
      x = self.post_attention_layernorm(x)
      x = self.mlp(x)
      return residual + x
    end,
  }
end

-- The whole model. windows(i): the keys that a query of layer i sees, itself included; 0: all before it
local function decoder(name, o, kind, windows)
  local embed_tokens, layers = nn.Embedding(o.vocab_size, o.hidden_size), {}
  for i = 1, o.num_hidden_layers do layers[i] = nn.Checkpoint((kind.layer or layer_of)(name, o, kind, windows(i))) end
  return nn.Graph{
    model = nn.Graph{
      embed_tokens = embed_tokens, layers = layers, norm = (kind.norm or rms_norm)(o, kind),
      listing = kind.listing and "LlamaModel" or nil,
      forward = function(self, x)
        local inputs_embeds = self.embed_tokens(x)
        x = inputs_embeds
        if kind.embedding_scale then x = kind.embedding_scale * x end
        for _, layer in ipairs(self.layers) do x = layer(x) end
        return self.norm(x)
      end,
    },
    lm_head = nn.Linear(o.hidden_size, o.vocab_size,
      {bias = false, tied = o.tie_word_embeddings and embed_tokens or nil}),
    forward = function(self, x)
      local logits = self.lm_head(self.model(x)):flatten(0, 1)
      return kind.cap and kind.cap * nn.tanh(logits / kind.cap) or logits
    end,
  }
end

local COMMON = {vocab_size = 32000, hidden_size = 4096, num_hidden_layers = 32, num_attention_heads = 32,
  num_key_value_heads = 0, head_dim = 0, hidden_act = "silu", rms_norm_eps = 1e-6, rope_theta = 10000,
  rope_scaling = {}, attention_dropout = 0, tie_word_embeddings = false}

local function all_keys() return 0 end

local FILES = {base = "model.", ignored = {"rotary_emb%.inv_freq$"}}

-- The windows of Qwen2 and Qwen3: layers after the first max_window_layers have one.
local function qwen_windows(o)
  return function(i) return o.use_sliding_window and i > o.max_window_layers and o.sliding_window or 0 end
end

return function(models)
  local function of_llama_kind(name, defaults, kind_of, windows_of)
    define(models, name, merged(COMMON, defaults), function(o)
      return decoder(name, o, kind_of(o), windows_of and windows_of(o) or all_keys)
    end, FILES)
  end

  -- num_key_value_heads = 0: as many as num_attention_heads; head_dim = 0: hidden_size / num_attention_heads
  of_llama_kind("Llama", {intermediate_size = 11008, max_position_embeddings = 2048, attention_bias = false,
    mlp_bias = false}, function(o)
    return {q_bias = o.attention_bias, o_bias = o.attention_bias, mlp_bias = o.mlp_bias, listing = true}
  end)

  local function without_biases() return {q_bias = false, o_bias = false, mlp_bias = false} end

  -- sliding_window = 0: none
  of_llama_kind("Mistral", {intermediate_size = 14336, num_key_value_heads = 8, max_position_embeddings = 131072,
    sliding_window = 0}, without_biases, function(o) return function() return o.sliding_window end end)

  local QWEN = {intermediate_size = 22016, max_position_embeddings = 32768, vocab_size = 151936,
    num_key_value_heads = 32, use_sliding_window = false, sliding_window = 4096, max_window_layers = 28}
  of_llama_kind("Qwen2", QWEN, function() return {q_bias = true, o_bias = false, mlp_bias = false} end, qwen_windows)
  of_llama_kind("Qwen3", merged(QWEN, {head_dim = 128, attention_bias = false}), function(o)
    return {q_bias = o.attention_bias, o_bias = o.attention_bias, mlp_bias = false, head_norm = true}
  end, qwen_windows)

  -- ---- GPT-2

  local function gpt2_layer(o)
    local inner, act = o.n_inner > 0 and o.n_inner or 4 * o.n_embd, model.activation(o, "GPT2", "activation_function")
    return nn.Graph{
      ln_1 = nn.LayerNorm(o.n_embd, o.layer_norm_epsilon),
      attn = nn.Graph{
        c_attn = nn.Conv1D(3 * o.n_embd, o.n_embd), c_proj = nn.Conv1D(o.n_embd, o.n_embd),
        resid_dropout = nn.Dropout(o.resid_pdrop),
        forward = function(self, x)
          local qkv = self.c_attn(x)
          local q, k, v = qkv:narrow(2, 0, o.n_embd), qkv:narrow(2, o.n_embd, o.n_embd),
            qkv:narrow(2, 2 * o.n_embd, o.n_embd)
          local y = nn.scaled_dot_product_attention(q, k, v, {num_heads = o.n_head, is_causal = true,
            dropout_p = o.attn_pdrop, scale = not o.scale_attn_weights and 1 or nil})
          return self.resid_dropout(self.c_proj(y))
        end,
      },
      ln_2 = nn.LayerNorm(o.n_embd, o.layer_norm_epsilon),
      mlp = nn.Graph{
        c_fc = nn.Conv1D(inner, o.n_embd), c_proj = nn.Conv1D(o.n_embd, inner), dropout = nn.Dropout(o.resid_pdrop),
        forward = function(self, x) return self.dropout(self.c_proj(act(self.c_fc(x)))) end,
      },
      forward = function(self, x)
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))
      end,
    }
  end

  -- n_inner = 0: 4 n_embd
  define(models, "GPT2", {vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12, n_inner = 0,
    activation_function = "gelu_new", resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1,
    layer_norm_epsilon = 1e-5, scale_attn_weights = true, tie_word_embeddings = true}, function(o)
    local wte, h = nn.Embedding(o.vocab_size, o.n_embd), {}
    for i = 1, o.n_layer do h[i] = gpt2_layer(o) end
    return nn.Graph{
      transformer = nn.Graph{
        wte = wte, wpe = nn.PositionEmbedding(o.n_positions, o.n_embd), drop = nn.Dropout(o.embd_pdrop), h = h,
        ln_f = nn.LayerNorm(o.n_embd, o.layer_norm_epsilon),
        forward = function(self, x)
          x = self.drop(self.wpe(self.wte(x)))
          for _, layer in ipairs(self.h) do x = layer(x) end
          return self.ln_f(x)
        end,
      },
      lm_head = nn.Linear(o.n_embd, o.vocab_size, {bias = false, tied = o.tie_word_embeddings and wte or nil}),
      forward = function(self, x) return self.lm_head(self.transformer(x)):flatten(0, 1) end,
    }
  end, {base = "transformer.", ignored = {"%.attn%.bias$", "%.attn%.masked_bias$"}})
end
