-- mt.models: Hugging Face's models that predict the next token. Options, defaults and names of parameters are those of
-- transformers: of its configuration classes and of the model's state_dict. Each gives (N, T) tokens -> (N T,
-- vocab_size), the logits of the next token of each.
local model = require "memtide.net.model"
local nn = require "memtide.net.nn".nn
local util = require "memtide.base.util"

local define, merged, graph, attend = model.define, model.merged, model.graph, model.attend

-- ---- Llama and its kin: normalised sums of squares, rotary positions, gated products

-- {rope_type = {field = option of nn.RotaryPositionalEmbeddings}}
local ROPE = {
  linear = {factor = "factor"},
  llama3 = {factor = "factor", low_freq_factor = "low_freq_factor", high_freq_factor = "high_freq_factor",
    original_max_position_embeddings = "original_max_seq_len"},
}

-- Rotary positions of `dim` features of each head; rope_scaling: a table with its rope_type, {}: none.
local function rotary_of(name, o, dim, interleaved)
  local scaling, options = o.rope_scaling, {interleaved = interleaved or false}
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

-- A function that turns the first part of the features of each of its `heads` heads: all where o has no
-- partial_rotary_factor. After the heads it takes position_ids where there are any.
local function turned(name, o, width, interleaved)
  local part = math.floor((o.partial_rotary_factor or 1) * width)
  local turn = rotary_of(name, o, part, interleaved)
  if part == width then return function(x, _, ...) return turn(x, ...) end end
  return function(x, heads, ...)
    x = x:view(x:size(0), x:size(1), heads, width)
    local y = turn(x:narrow(3, 0, part):flatten(2), ...)
    y = y:view(y:size(0), y:size(1), heads, part)
    return nn.cat({y, x:narrow(3, part, width - part)}, 3):flatten(2)
  end
end

-- What one family has that others have not, in the table `kind`:
--   q_bias, o_bias, mlp_bias, head_bias  biases of q, k and v, of o, of the products after attention, of the logits
--   qk_norm                   "heads": queries and keys are normalised by head; "all": by all their features
--   norm, layer, mlp          functions that make these, in place of Llama's
--   out, final                names of attention's last product and of the last normalisation, in place of Llama's
--   act                       the option that names the activation
--   interleaved               rotary positions turn neighbours
--   scale, softcap            of the scores of attention
--   embedding_scale, residual_scale  what embeddings are multiplied by, and what each half of a layer adds
--   logit_scale, cap          of the logits
--   listing                   "Llama": what PyTorch's step makes is known of its classes
local function attention(name, o, kind, window)
  local heads, out = o.num_attention_heads, kind.out or "o_proj"
  local width = (o.head_dim or 0) > 0 and o.head_dim or o.hidden_size // heads
  local key_heads = o.num_key_value_heads > 0 and o.num_key_value_heads or heads
  local of_q, of_keys = heads * width, key_heads * width
  local turn = turned(name, o, width, kind.interleaved)
  local how = {num_heads = heads, is_causal = true, enable_gqa = true, dropout_p = o.attention_dropout,
    window = window > 0 and window or nil, scale = kind.scale, softcap = kind.softcap, packed = o.packed or nil}
  local function normalised(norm, x, features)
    if kind.qk_norm == "all" then return norm(x) end
    return norm(x:view(x:size(0), -1, width)):view(x:size(0), -1, features)
  end
  local parts = {
    q_proj = nn.Linear(o.hidden_size, of_q, {bias = kind.q_bias}),
    k_proj = nn.Linear(o.hidden_size, of_keys, {bias = kind.q_bias}),
    v_proj = nn.Linear(o.hidden_size, of_keys, {bias = kind.q_bias}),
    [out] = nn.Linear(of_q, o.hidden_size, {bias = kind.o_bias}),
    order = {"q_proj", "k_proj", "v_proj", out}, listing = kind.listing and kind.listing .. "Attention",
    forward = function(self, x, ...)
      local q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
      if kind.qk_norm then q, k = normalised(self.q_norm, q, of_q), normalised(self.k_norm, k, of_keys) end
      q, k = turn(q, heads, ...), turn(k, key_heads, ...)
      return self[out](attend(how, q, k, v, ...))
    end,
  }
  if kind.qk_norm then
    local all = kind.qk_norm == "all"
    parts.q_norm = nn.RMSNorm(all and of_q or width, o.rms_norm_eps)
    parts.k_norm = nn.RMSNorm(all and of_keys or width, o.rms_norm_eps)
    table.move({"q_norm", "k_norm"}, 1, 2, 5, parts.order)
  end
  return graph(o, parts)
end

local function gated(name, o, kind)
  local act = model.activation(o, name, kind.act or "hidden_act")
  local function linear(from, to) return nn.Linear(from, to, {bias = kind.mlp_bias}) end
  return nn.Graph{
    gate_proj = linear(o.hidden_size, o.intermediate_size), up_proj = linear(o.hidden_size, o.intermediate_size),
    down_proj = linear(o.intermediate_size, o.hidden_size),
    forward = function(self, x) return self.down_proj(act(self.gate_proj(x)) * self.up_proj(x)) end,
  }
end

-- A function that makes two products and the activation between them, under these names
local function ungated(first, second)
  return function(name, o, kind)
    local act = model.activation(o, name, "hidden_act")
    return nn.Graph{
      [first] = nn.Linear(o.hidden_size, o.intermediate_size, {bias = kind.mlp_bias}),
      [second] = nn.Linear(o.intermediate_size, o.hidden_size, {bias = kind.mlp_bias}),
      forward = function(self, x) return self[second](act(self[first](x))) end,
    }
  end
end

local function rms_norm(o) return nn.RMSNorm(o.hidden_size, o.rms_norm_eps) end
local function llama_norm(o) return nn.RMSNorm(o.hidden_size, {eps = o.rms_norm_eps, listing = "LlamaRMSNorm"}) end
local function layer_norm(o) return nn.LayerNorm(o.hidden_size, o.layer_norm_eps) end

local function layer_of(name, o, kind, window)
  local norm, scale = kind.norm or rms_norm, kind.residual_scale
  local function scaled(x) return scale and scale * x or x end
  return graph(o, {
    self_attn = attention(name, o, kind, window), mlp = (kind.mlp or gated)(name, o, kind),
    input_layernorm = norm(o), post_attention_layernorm = norm(o),
    order = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
    forward = function(self, x, ...) -- with the variables of transformers' forward function, as PyTorch's step needs them
      local residual = x
      x = self.input_layernorm(x)
      x = self.self_attn(x, ...)
      x = residual + scaled(x)
      residual = x
      x = self.post_attention_layernorm(x)
      x = self.mlp(x)
      return residual + scaled(x)
    end,
  })
end

-- Attention and products of the same normalised input, side by side
local function parallel_layer(name, o, kind, window)
  return graph(o, {
    self_attn = attention(name, o, kind, window), mlp = (kind.mlp or gated)(name, o, kind),
    input_layernorm = kind.norm(o), order = {"self_attn", "mlp", "input_layernorm"},
    forward = function(self, x, ...)
      local y = self.input_layernorm(x)
      return x + self.self_attn(y, ...) + self.mlp(y)
    end,
  })
end

-- Normalised after attention and after the products, before the sums
local function normed_after_layer(name, o, kind, window)
  return graph(o, {
    self_attn = attention(name, o, kind, window), mlp = gated(name, o, kind),
    post_attention_layernorm = rms_norm(o), post_feedforward_layernorm = rms_norm(o),
    order = {"self_attn", "mlp", "post_attention_layernorm", "post_feedforward_layernorm"},
    forward = function(self, x, ...)
      x = x + self.post_attention_layernorm(self.self_attn(x, ...))
      return x + self.post_feedforward_layernorm(self.mlp(x))
    end,
  })
end

-- The whole model. windows(i): the keys that a query of layer i sees, itself included; 0: all before it
local function decoder(name, o, kind, windows)
  local embed_tokens, layers, final = nn.Embedding(o.vocab_size, o.hidden_size), {}, kind.final or "norm"
  for i = 1, o.num_hidden_layers do
    layers[i] = nn.Checkpoint((kind.layer or layer_of)(name, o, kind, windows(i)))
  end
  return graph(o, {
    model = graph(o, {
      embed_tokens = embed_tokens, layers = layers, [final] = (kind.norm or rms_norm)(o),
      order = {"embed_tokens", "layers", final}, listing = kind.listing and kind.listing .. "Model",
      forward = function(self, x, ...)
        local inputs_embeds = self.embed_tokens(x)
        x = inputs_embeds
        if kind.embedding_scale then x = kind.embedding_scale * x end
        for _, layer in ipairs(self.layers) do x = layer(x, ...) end
        return self[final](x)
      end,
    }),
    lm_head = nn.Linear(o.hidden_size, o.vocab_size,
      {bias = kind.head_bias or false, tied = o.tie_word_embeddings and embed_tokens or nil}),
    forward = function(self, x, ...)
      local logits = self.lm_head(self.model(x, ...)):flatten(0, 1)
      if kind.logit_scale then logits = kind.logit_scale * logits end
      return kind.cap and kind.cap * nn.tanh(logits / kind.cap) or logits
    end,
  })
end

local COMMON = {vocab_size = 32000, hidden_size = 4096, num_hidden_layers = 32, num_attention_heads = 32,
  num_key_value_heads = 0, head_dim = 0, hidden_act = "silu", rms_norm_eps = 1e-6, rope_theta = 10000,
  rope_scaling = {}, attention_dropout = 0, tie_word_embeddings = false, packed = false}

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
    return {q_bias = o.attention_bias, o_bias = o.attention_bias, mlp_bias = o.mlp_bias, norm = llama_norm,
      listing = "Llama"}
  end)

  local function without_biases() return {q_bias = false, o_bias = false, mlp_bias = false} end

  -- sliding_window = 0: none; 4096 is transformers' where a file does not say
  of_llama_kind("Mistral", {intermediate_size = 14336, num_key_value_heads = 8, max_position_embeddings = 131072,
    sliding_window = 4096}, without_biases, function(o) return function() return o.sliding_window end end)

  local QWEN = {intermediate_size = 22016, max_position_embeddings = 32768, vocab_size = 151936,
    num_key_value_heads = 32, use_sliding_window = false, sliding_window = 4096, max_window_layers = 28}
  of_llama_kind("Qwen2", QWEN, function() return {q_bias = true, o_bias = false, mlp_bias = false} end, qwen_windows)
  of_llama_kind("Qwen3", merged(QWEN, {head_dim = 128, attention_bias = false}), function(o)
    return {q_bias = o.attention_bias, o_bias = o.attention_bias, mlp_bias = false, qk_norm = "heads"}
  end, qwen_windows)

  -- ---- Granite, OLMo, Starcoder2, Phi, StableLM, Cohere: each Llama with a few differences

  local LIKE_LLAMA = {intermediate_size = 11008, max_position_embeddings = 2048, attention_bias = false}

  of_llama_kind("Granite", merged(LIKE_LLAMA, {mlp_bias = false, embedding_multiplier = 1, logits_scaling = 1,
    residual_multiplier = 1, attention_multiplier = 1}), function(o)
    return {q_bias = o.attention_bias, o_bias = o.attention_bias, mlp_bias = o.mlp_bias,
      scale = o.attention_multiplier, embedding_scale = o.embedding_multiplier, residual_scale = o.residual_multiplier,
      logit_scale = 1 / o.logits_scaling}
  end)

  of_llama_kind("Olmo", merged(LIKE_LLAMA, {vocab_size = 50304}), function(o)
    return {q_bias = o.attention_bias, o_bias = o.attention_bias, mlp_bias = false,
      norm = function() return nn.LayerNorm(o.hidden_size, 1e-5, {elementwise_affine = false}) end}
  end)
  of_llama_kind("Olmo2", merged(LIKE_LLAMA, {vocab_size = 50304, rms_norm_eps = 1e-5}), function(o)
    return {q_bias = o.attention_bias, o_bias = o.attention_bias, mlp_bias = false, qk_norm = "all",
      layer = normed_after_layer}
  end)

  of_llama_kind("Starcoder2", {vocab_size = 49152, hidden_size = 3072, intermediate_size = 12288,
    num_hidden_layers = 30, num_attention_heads = 24, num_key_value_heads = 2, hidden_act = "gelu_pytorch_tanh",
    max_position_embeddings = 4096, norm_epsilon = 1e-5, sliding_window = 0, use_bias = true,
    tie_word_embeddings = true}, function(o)
    return {q_bias = o.use_bias, o_bias = o.use_bias, mlp_bias = o.use_bias, mlp = ungated("c_fc", "c_proj"),
      norm = function() return nn.LayerNorm(o.hidden_size, o.norm_epsilon) end}
  end, function(o) return function() return o.sliding_window end end)

  of_llama_kind("Phi", {vocab_size = 51200, hidden_size = 2048, intermediate_size = 8192, num_hidden_layers = 24,
    hidden_act = "gelu_new", max_position_embeddings = 2048, layer_norm_eps = 1e-5, partial_rotary_factor = 0.5},
    function()
      return {q_bias = true, o_bias = true, mlp_bias = true, head_bias = true, out = "dense",
        final = "final_layernorm", norm = layer_norm, layer = parallel_layer, mlp = ungated("fc1", "fc2")}
    end)

  of_llama_kind("StableLm", {vocab_size = 50304, hidden_size = 2560, intermediate_size = 6912,
    num_key_value_heads = 32, max_position_embeddings = 4096, layer_norm_eps = 1e-5, partial_rotary_factor = 0.25,
    use_qkv_bias = false, use_parallel_residual = false}, function(o)
    return {q_bias = o.use_qkv_bias, o_bias = false, mlp_bias = false, norm = layer_norm,
      layer = o.use_parallel_residual and parallel_layer or layer_of}
  end)

  of_llama_kind("Cohere", {vocab_size = 256000, hidden_size = 8192, intermediate_size = 22528, num_hidden_layers = 40,
    num_attention_heads = 64, max_position_embeddings = 8192, layer_norm_eps = 1e-5, logit_scale = 0.0625,
    attention_bias = false, tie_word_embeddings = true}, function(o)
    return {q_bias = o.attention_bias, o_bias = o.attention_bias, mlp_bias = false, layer = parallel_layer,
      norm = function() return nn.LayerNorm(o.hidden_size, o.layer_norm_eps, {bias = false}) end,
      interleaved = true, logit_scale = o.logit_scale}
  end)

  -- ---- Phi-3: one product for q, k and v, and one for gate and up

  local function phi3_attention(name, o, _, window)
    local heads, width = o.num_attention_heads, o.hidden_size // o.num_attention_heads
    local of_q, of_keys = heads * width, width * (o.num_key_value_heads > 0 and o.num_key_value_heads or heads)
    local turn = turned(name, o, width)
    local how = {num_heads = heads, is_causal = true, enable_gqa = true, dropout_p = o.attention_dropout,
      window = window > 0 and window or nil, packed = o.packed or nil}
    return graph(o, {
      o_proj = nn.Linear(of_q, o.hidden_size, {bias = false}),
      qkv_proj = nn.Linear(o.hidden_size, of_q + 2 * of_keys, {bias = false}),
      order = {"o_proj", "qkv_proj"},
      forward = function(self, x, ...)
        local qkv = self.qkv_proj(x)
        local q, k = turn(qkv:narrow(2, 0, of_q), heads, ...), turn(qkv:narrow(2, of_q, of_keys), of_keys // width, ...)
        return self.o_proj(attend(how, q, k, qkv:narrow(2, of_q + of_keys, of_keys), ...))
      end,
    })
  end

  local function phi3_mlp(name, o)
    local act = model.activation(o, name, "hidden_act")
    return nn.Graph{
      gate_up_proj = nn.Linear(o.hidden_size, 2 * o.intermediate_size, {bias = false}),
      down_proj = nn.Linear(o.intermediate_size, o.hidden_size, {bias = false}),
      forward = function(self, x)
        local both = self.gate_up_proj(x)
        return self.down_proj(both:narrow(2, o.intermediate_size, o.intermediate_size) *
          act(both:narrow(2, 0, o.intermediate_size)))
      end,
    }
  end

  local function phi3_layer(name, o, _, window)
    return graph(o, {
      self_attn = phi3_attention(name, o, _, window), mlp = phi3_mlp(name, o),
      input_layernorm = rms_norm(o), post_attention_layernorm = rms_norm(o),
      resid_attn_dropout = nn.Dropout(o.resid_pdrop), resid_mlp_dropout = nn.Dropout(o.resid_pdrop),
      order = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm", "resid_attn_dropout",
        "resid_mlp_dropout"},
      forward = function(self, x, ...)
        x = x + self.resid_attn_dropout(self.self_attn(self.input_layernorm(x), ...))
        return x + self.resid_mlp_dropout(self.mlp(self.post_attention_layernorm(x)))
      end,
    })
  end

  of_llama_kind("Phi3", {vocab_size = 32064, hidden_size = 3072, intermediate_size = 8192, resid_pdrop = 0,
    max_position_embeddings = 4096, rms_norm_eps = 1e-5, sliding_window = 0, partial_rotary_factor = 1},
    function() return {layer = phi3_layer} end, function(o) return function() return o.sliding_window end end)

  -- ---- Gemma: a normalisation whose weight counts from 1; embeddings that are multiplied

  local function gemma_norm(o)
    local rms = nn.RMSNorm(o.hidden_size, o.rms_norm_eps, {elementwise_affine = false})
    return nn.Graph{
      weight = nn.Parameter{o.hidden_size},
      forward = function(self, x) return rms(x) * (1 + self.weight) end,
    }
  end

  local GEMMA = {vocab_size = 256000, hidden_size = 3072, intermediate_size = 24576, num_hidden_layers = 28,
    num_attention_heads = 16, num_key_value_heads = 16, head_dim = 256, hidden_act = "gelu_pytorch_tanh",
    max_position_embeddings = 8192, attention_bias = false, tie_word_embeddings = true}

  local function gemma_kind(o)
    return {q_bias = o.attention_bias, o_bias = o.attention_bias, mlp_bias = false, norm = gemma_norm,
      embedding_scale = o.hidden_size ^ 0.5}
  end

  of_llama_kind("Gemma", GEMMA, gemma_kind)

  -- Normalised before and after attention and products
  local function gemma2_layer(name, o, kind, window)
    return graph(o, {
      self_attn = attention(name, o, kind, window), mlp = gated(name, o, kind),
      input_layernorm = gemma_norm(o), post_attention_layernorm = gemma_norm(o),
      pre_feedforward_layernorm = gemma_norm(o), post_feedforward_layernorm = gemma_norm(o),
      order = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
        "post_feedforward_layernorm"},
      forward = function(self, x, ...)
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), ...))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
      end,
    })
  end

  -- attn_logit_softcapping, final_logit_softcapping, sliding_window = 0: none; every other layer has the window
  local GEMMA2 = merged(GEMMA, {hidden_size = 2304, intermediate_size = 9216, num_hidden_layers = 26,
    num_attention_heads = 8, num_key_value_heads = 4, hidden_activation = "gelu_pytorch_tanh",
    query_pre_attn_scalar = 256, sliding_window = 4096, attn_logit_softcapping = 50, final_logit_softcapping = 30})
  of_llama_kind("Gemma2", GEMMA2, function(o)
    return merged(gemma_kind(o), {layer = gemma2_layer, act = "hidden_activation",
      scale = o.query_pre_attn_scalar ^ -0.5, softcap = o.attn_logit_softcapping,
      cap = o.final_logit_softcapping > 0 and o.final_logit_softcapping or nil})
  end, function(o) return function(i) return i % 2 == 1 and o.sliding_window or 0 end end)

  -- ---- GPT-NeoX

  local function neox_attention(o)
    local heads, width = o.num_attention_heads, o.hidden_size // o.num_attention_heads
    local turn = turned("GPTNeoX", o, width)
    return graph(o, {
      query_key_value = nn.Linear(o.hidden_size, 3 * o.hidden_size, {bias = o.attention_bias}),
      dense = nn.Linear(o.hidden_size, o.hidden_size, {bias = o.attention_bias}),
      forward = function(self, x, ...)
        local qkv = self.query_key_value(x)
        qkv = qkv:view(qkv:size(0), qkv:size(1), heads, 3 * width) -- each head has its q, k and v together
        local q, k, v = qkv:narrow(3, 0, width):flatten(2), qkv:narrow(3, width, width):flatten(2),
          qkv:narrow(3, 2 * width, width):flatten(2)
        return self.dense(attend({num_heads = heads, is_causal = true, dropout_p = o.attention_dropout,
          packed = o.packed or nil}, turn(q, heads, ...), turn(k, heads, ...), v, ...))
      end,
    })
  end

  local function neox_layer(o)
    local act = model.activation(o, "GPTNeoX", "hidden_act")
    return graph(o, {
      input_layernorm = layer_norm(o), post_attention_layernorm = layer_norm(o),
      post_attention_dropout = nn.Dropout(o.hidden_dropout), post_mlp_dropout = nn.Dropout(o.hidden_dropout),
      attention = neox_attention(o),
      mlp = nn.Graph{
        dense_h_to_4h = nn.Linear(o.hidden_size, o.intermediate_size),
        dense_4h_to_h = nn.Linear(o.intermediate_size, o.hidden_size),
        forward = function(self, x) return self.dense_4h_to_h(act(self.dense_h_to_4h(x))) end,
      },
      order = {"input_layernorm", "post_attention_layernorm", "post_attention_dropout", "post_mlp_dropout",
        "attention", "mlp"},
      forward = function(self, x, ...)
        local mixed = self.post_attention_dropout(self.attention(self.input_layernorm(x), ...))
        local before = o.use_parallel_residual and x or x + mixed
        local y = self.post_mlp_dropout(self.mlp(self.post_attention_layernorm(before)))
        return o.use_parallel_residual and y + mixed + x or y + before
      end,
    })
  end

  define(models, "GPTNeoX", {vocab_size = 50432, hidden_size = 6144, num_hidden_layers = 44, num_attention_heads = 64,
    intermediate_size = 24576, hidden_act = "gelu", attention_dropout = 0, hidden_dropout = 0, layer_norm_eps = 1e-5,
    max_position_embeddings = 2048, rope_theta = 10000, rope_scaling = {}, partial_rotary_factor = 0.25,
    use_parallel_residual = true, attention_bias = true, tie_word_embeddings = false, packed = false}, function(o)
    local embed_in, layers = nn.Embedding(o.vocab_size, o.hidden_size), {}
    for i = 1, o.num_hidden_layers do layers[i] = neox_layer(o) end
    return graph(o, {
      gpt_neox = graph(o, {
        embed_in = embed_in, emb_dropout = nn.Dropout(o.hidden_dropout), layers = layers,
        final_layer_norm = layer_norm(o),
        forward = function(self, x, ...)
          x = self.emb_dropout(self.embed_in(x))
          for _, layer in ipairs(self.layers) do x = layer(x, ...) end
          return self.final_layer_norm(x)
        end,
      }),
      lm_head = nn.Linear(o.hidden_size, o.vocab_size,
        {bias = false, tied = o.tie_word_embeddings and embed_in or nil}),
      forward = function(self, x, ...) return self.lm_head(self.gpt_neox(x, ...)):flatten(0, 1) end,
    })
  end, {base = "gpt_neox.", names = {{"^embed_out%.", "lm_head."}},
    ignored = {"rotary_emb%.inv_freq$", "%.attention%.bias$", "%.attention%.masked_bias$"}})

  -- ---- OPT

  local function opt_layer(o)
    local act = model.activation(o, "OPT", "activation_function")
    local function linear(from, to) return nn.Linear(from, to, {bias = o.enable_bias}) end
    local function square() return linear(o.hidden_size, o.hidden_size) end
    local function norm()
      return nn.LayerNorm(o.hidden_size, 1e-5, {elementwise_affine = o.layer_norm_elementwise_affine})
    end
    local before, drop = o.do_layer_norm_before, nn.Dropout(o.dropout)
    return nn.Graph{
      self_attn = nn.Graph{
        k_proj = square(), v_proj = square(), q_proj = square(), out_proj = square(),
        order = {"k_proj", "v_proj", "q_proj", "out_proj"},
        forward = function(self, x)
          return self.out_proj(nn.scaled_dot_product_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x),
            {num_heads = o.num_attention_heads, is_causal = true, dropout_p = o.attention_dropout}))
        end,
      },
      self_attn_layer_norm = norm(), fc1 = linear(o.hidden_size, o.ffn_dim), fc2 = linear(o.ffn_dim, o.hidden_size),
      final_layer_norm = norm(),
      order = {"self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm"},
      forward = function(self, x)
        local y = before and self.self_attn_layer_norm(x) or x
        x = x + drop(self.self_attn(y))
        if not before then x = self.self_attn_layer_norm(x) end
        y = before and self.final_layer_norm(x) or x
        x = x + drop(self.fc2(act(self.fc1(y))))
        return before and x or self.final_layer_norm(x)
      end,
    }
  end

  -- The tables of positions begin with 2 rows that no token reads.
  define(models, "OPT", {vocab_size = 50272, hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
    ffn_dim = 3072, max_position_embeddings = 2048, do_layer_norm_before = true, dropout = 0.1, attention_dropout = 0,
    activation_function = "relu", enable_bias = true, layer_norm_elementwise_affine = true, pad_token_id = 1,
    tie_word_embeddings = true}, function(o)
    local embed_tokens = nn.Embedding(o.vocab_size, o.hidden_size, {padding_idx = model.padding(o)})
    local parts = {
      embed_tokens = embed_tokens,
      embed_positions = nn.PositionEmbedding(o.max_position_embeddings + 2, o.hidden_size, {offset = 2}), layers = {},
      order = {"embed_tokens", "embed_positions", "layers"},
      forward = function(self, x)
        x = self.embed_positions(self.embed_tokens(x))
        for _, layer in ipairs(self.layers) do x = layer(x) end
        return o.do_layer_norm_before and self.final_layer_norm(x) or x
      end,
    }
    for i = 1, o.num_hidden_layers do parts.layers[i] = opt_layer(o) end
    if o.do_layer_norm_before then
      parts.final_layer_norm = nn.LayerNorm(o.hidden_size, 1e-5,
        {elementwise_affine = o.layer_norm_elementwise_affine})
      parts.order[4] = "final_layer_norm"
    end
    return nn.Graph{
      model = nn.Graph{decoder = nn.Graph(parts), forward = function(self, x) return self.decoder(x) end},
      lm_head = nn.Linear(o.hidden_size, o.vocab_size,
        {bias = false, tied = o.tie_word_embeddings and embed_tokens or nil}),
      forward = function(self, x) return self.lm_head(self.model(x)):flatten(0, 1) end,
    }
  end, {base = "model."})

  -- ---- GPT-2

  local function gpt2_layer(o)
    local inner, act = o.n_inner > 0 and o.n_inner or 4 * o.n_embd, model.activation(o, "GPT2", "activation_function")
    return graph(o, {
      ln_1 = nn.LayerNorm(o.n_embd, o.layer_norm_epsilon),
      attn = graph(o, {
        c_attn = nn.Conv1D(3 * o.n_embd, o.n_embd), c_proj = nn.Conv1D(o.n_embd, o.n_embd),
        resid_dropout = nn.Dropout(o.resid_pdrop),
        forward = function(self, x, ...)
          local qkv = self.c_attn(x)
          local q, k, v = qkv:narrow(2, 0, o.n_embd), qkv:narrow(2, o.n_embd, o.n_embd),
            qkv:narrow(2, 2 * o.n_embd, o.n_embd)
          local y = attend({num_heads = o.n_head, is_causal = true, dropout_p = o.attn_pdrop,
            scale = not o.scale_attn_weights and 1 or nil, packed = o.packed or nil}, q, k, v, ...)
          return self.resid_dropout(self.c_proj(y))
        end,
      }),
      ln_2 = nn.LayerNorm(o.n_embd, o.layer_norm_epsilon),
      mlp = nn.Graph{
        c_fc = nn.Conv1D(inner, o.n_embd), c_proj = nn.Conv1D(o.n_embd, inner), dropout = nn.Dropout(o.resid_pdrop),
        forward = function(self, x) return self.dropout(self.c_proj(act(self.c_fc(x)))) end,
      },
      forward = function(self, x, ...)
        x = x + self.attn(self.ln_1(x), ...)
        return x + self.mlp(self.ln_2(x))
      end,
    })
  end

  -- n_inner = 0: 4 n_embd
  define(models, "GPT2", {vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12, n_inner = 0,
    activation_function = "gelu_new", resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1,
    layer_norm_epsilon = 1e-5, scale_attn_weights = true, tie_word_embeddings = true, packed = false}, function(o)
    local wte, h = nn.Embedding(o.vocab_size, o.n_embd), {}
    for i = 1, o.n_layer do h[i] = gpt2_layer(o) end
    return graph(o, {
      transformer = graph(o, {
        wte = wte, wpe = model.positions(o, o.n_positions, o.n_embd), drop = nn.Dropout(o.embd_pdrop), h = h,
        ln_f = nn.LayerNorm(o.n_embd, o.layer_norm_epsilon),
        forward = function(self, x, ...)
          x = self.drop(model.placed(self.wpe, self.wte(x), ...))
          for _, layer in ipairs(self.h) do x = layer(x, ...) end
          return self.ln_f(x)
        end,
      }),
      lm_head = nn.Linear(o.n_embd, o.vocab_size, {bias = false, tied = o.tie_word_embeddings and wte or nil}),
      forward = function(self, x, ...) return self.lm_head(self.transformer(x, ...)):flatten(0, 1) end,
    })
  end, {base = "transformer.", ignored = {"%.attn%.bias$", "%.attn%.masked_bias$"}})
end
