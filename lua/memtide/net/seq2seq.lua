-- mt.models: Hugging Face's models of an encoder and a decoder. Options, defaults and names of parameters are those of
-- transformers: of its configuration classes and of the model's state_dict. Each takes the encoder's input and
-- decoder_input_ids, (N, T) tokens, and gives (N T, vocab_size), the logits of each of these. transformers makes
-- decoder_input_ids of the labels: moved by one to the right, after decoder_start_token_id. Here data has both.
local model = require "memtide.net.model"
local nn = require "memtide.net.nn".nn
local util = require "memtide.base.util"

local define, merged = model.define, model.merged

-- ---- T5: biases by relative position in place of positions, normalised sums of squares, products without biases

local T5 = {vocab_size = 32128, d_model = 512, d_kv = 64, d_ff = 2048, num_layers = 6, num_decoder_layers = 0,
  num_heads = 8, relative_attention_num_buckets = 32, relative_attention_max_distance = 128, dropout_rate = 0.1,
  layer_norm_epsilon = 1e-6, feed_forward_proj = "relu", scale_decoder_outputs = true, tie_word_embeddings = true}

-- T5LayerNorm writes what LlamaRMSNorm does.
local function t5_norm(o) return nn.RMSNorm(o.d_model, {eps = o.layer_norm_epsilon, listing = "LlamaRMSNorm"}) end

local T5_ORDER = {"q", "k", "v", "o"}

-- Attention to `memory`, with a bias for each head, query and key where the sequence attends to itself
local function t5_attention(o, is_causal, has_bias)
  local inner = o.num_heads * o.d_kv
  local how = {num_heads = o.num_heads, scale = 1, is_causal = is_causal, dropout_p = o.dropout_rate}
  local function linear(from, to) return nn.Linear(from, to, {bias = false}) end
  return nn.Graph{
    q = linear(o.d_model, inner), k = linear(o.d_model, inner), v = linear(o.d_model, inner),
    o = linear(inner, o.d_model), order = T5_ORDER,
    forward = has_bias and function(self, x, bias)
      return self.o(nn.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), bias, how))
    end or function(self, x, memory)
      return self.o(nn.scaled_dot_product_attention(self.q(x), self.k(memory), self.v(memory), how))
    end,
  }
end

-- x + dropout(block(norm(x), ...)), where `name` is the block's
local function t5_part(o, name, block)
  return nn.Graph{
    [name] = block, layer_norm = t5_norm(o), dropout = nn.Dropout(o.dropout_rate),
    order = {name, "layer_norm", "dropout"},
    forward = block.takes[2] and function(self, x, other)
      return x + self.dropout(self[name](self.layer_norm(x), other))
    end or function(self, x) return x + self.dropout(self[name](self.layer_norm(x))) end,
  }
end

-- feed_forward_proj: the name of an activation, or gated- and that name; gated-gelu means gelu_new.
local function t5_feed_forward(o)
  local gated = o.feed_forward_proj:match "^gated%-(.*)$"
  local word = gated == "gelu" and "gelu_new" or gated or o.feed_forward_proj
  local act = model.activations[word] or util.fail('models.T5: feed_forward_proj: "%s" is none of the activations %s, ' ..
    'nor gated- before one of them', o.feed_forward_proj, table.concat(util.sorted_keys(model.activations), ", "))
  local function linear(from, to) return nn.Linear(from, to, {bias = false}) end
  local wo, dropout = linear(o.d_ff, o.d_model), nn.Dropout(o.dropout_rate)
  if not gated then
    return nn.Graph{
      wi = linear(o.d_model, o.d_ff), wo = wo, dropout = dropout, order = {"wi", "wo", "dropout"},
      forward = function(self, x) return self.wo(self.dropout(act(self.wi(x)))) end,
    }
  end
  return nn.Graph{
    wi_0 = linear(o.d_model, o.d_ff), wi_1 = linear(o.d_model, o.d_ff), wo = wo, dropout = dropout,
    order = {"wi_0", "wi_1", "wo", "dropout"},
    forward = function(self, x) return self.wo(self.dropout(act(self.wi_0(x)) * self.wi_1(x))) end,
  }
end

local function t5_block(o, is_decoder)
  local layer = {t5_part(o, "SelfAttention", t5_attention(o, is_decoder, true))}
  if is_decoder then layer[2] = t5_part(o, "EncDecAttention", t5_attention(o, false, false)) end
  layer[#layer + 1] = t5_part(o, "DenseReluDense", t5_feed_forward(o))
  return nn.Graph{
    layer = layer,
    forward = is_decoder and function(self, x, bias, memory)
      return self.layer[3](self.layer[2](self.layer[1](x, bias), memory))
    end or function(self, x, bias) return self.layer[2](self.layer[1](x, bias)) end,
  }
end

-- Biases (heads, T, T) of the keys for the queries of a sequence of T steps
local function t5_bias(o, bidirectional)
  return nn.Graph{
    weight = nn.Parameter({o.relative_attention_num_buckets, o.num_heads}, {init = "normal", std = o.d_model ^ -0.5}),
    forward = function(self, x)
      local buckets = nn.relative_position_buckets(x, {num_buckets = o.relative_attention_num_buckets,
        max_distance = o.relative_attention_max_distance, bidirectional = bidirectional})
      return self.weight[buckets]:permute(2, 0, 1)
    end,
  }
end

-- The first block's attention owns the biases, which all blocks read.
local T5_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias"

local function t5_stack(o, layers, is_decoder)
  local block = {}
  for i = 1, layers do block[i] = t5_block(o, is_decoder) end
  local function run(self, x, ...)
    local bias = self[T5_BIAS](x)
    x = self.dropout(x)
    for _, one in ipairs(self.block) do x = one(x, bias, ...) end
    return self.dropout(self.final_layer_norm(x))
  end
  return nn.Graph{
    block = block, [T5_BIAS] = t5_bias(o, not is_decoder), final_layer_norm = t5_norm(o),
    dropout = nn.Dropout(o.dropout_rate), order = {"block", "final_layer_norm", "dropout"},
    forward = is_decoder and function(self, x, memory) return run(self, x, memory) end or
      function(self, x) return run(self, x) end,
  }
end

-- ---- BART and Whisper: layers that are normalised after each sum, or before each part

-- before: normalised before each part; k_bias: keys have a bias
local BART_KIND, WHISPER_KIND = {before = false, k_bias = true}, {before = true, k_bias = false}
local PROJECTIONS = {"k_proj", "v_proj", "q_proj", "out_proj"}

-- Attention of x to memory
local function attention(o, kind, heads, is_causal)
  local how = {num_heads = heads, is_causal = is_causal, dropout_p = o.attention_dropout}
  local function linear(bias) return nn.Linear(o.d_model, o.d_model, {bias = bias}) end
  return nn.Graph{
    k_proj = linear(kind.k_bias), v_proj = linear(true), q_proj = linear(true), out_proj = linear(true),
    order = PROJECTIONS,
    forward = function(self, x, memory)
      return self.out_proj(nn.scaled_dot_product_attention(self.q_proj(x), self.k_proj(memory), self.v_proj(memory), how))
    end,
  }
end

-- side: "encoder" or "decoder", with which the names of its options begin
local function layer_of(name, o, kind, side)
  local heads, width = o[side .. "_attention_heads"], o[side .. "_ffn_dim"]
  local act, is_decoder = model.activation(o, name, "activation_function"), side == "decoder"
  local drop, drop_inside = nn.Dropout(o.dropout), nn.Dropout(o.activation_dropout)
  local function norm() return nn.LayerNorm(o.d_model) end
  local function part(x, normalised, block)
    if kind.before then return x + drop(block(normalised(x))) end
    return normalised(x + drop(block(x)))
  end
  local function run(self, x, memory)
    x = part(x, self.self_attn_layer_norm, function(y) return self.self_attn(y, y) end)
    if is_decoder then x = part(x, self.encoder_attn_layer_norm, function(y) return self.encoder_attn(y, memory) end) end
    return part(x, self.final_layer_norm, function(y) return self.fc2(drop_inside(act(self.fc1(y)))) end)
  end
  return nn.Graph{
    self_attn = attention(o, kind, heads, is_decoder), self_attn_layer_norm = norm(),
    encoder_attn = is_decoder and attention(o, kind, heads, false), encoder_attn_layer_norm = is_decoder and norm(),
    fc1 = nn.Linear(o.d_model, width), fc2 = nn.Linear(width, o.d_model), final_layer_norm = norm(),
    order = {"self_attn", "self_attn_layer_norm", "encoder_attn", "encoder_attn_layer_norm", "fc1", "fc2",
      "final_layer_norm"},
    forward = is_decoder and function(self, x, memory) return run(self, x, memory) end or
      function(self, x) return run(self, x) end,
  }
end

local function layers_of(name, o, kind, side)
  local layers = {}
  for i = 1, o[side .. "_layers"] do layers[i] = layer_of(name, o, kind, side) end
  return layers
end

-- Options of both; the layers, heads and widths differ
local COMMON = {encoder_layers = 12, decoder_layers = 12, activation_function = "gelu", attention_dropout = 0,
  activation_dropout = 0, tie_word_embeddings = true}

-- The tables of positions begin with 2 rows that no token reads.
local function bart_stack(o, side)
  local drop = nn.Dropout(o.dropout)
  local function run(self, x, ...)
    x = drop(self.layernorm_embedding(self.embed_positions(x)))
    for _, layer in ipairs(self.layers) do x = layer(x, ...) end
    return x
  end
  return nn.Graph{
    embed_positions = nn.PositionEmbedding(o.max_position_embeddings + 2, o.d_model, {offset = 2}),
    layers = layers_of("Bart", o, BART_KIND, side), layernorm_embedding = nn.LayerNorm(o.d_model),
    order = {"embed_positions", "layers", "layernorm_embedding"},
    forward = side == "decoder" and function(self, x, memory) return run(self, x, memory) end or
      function(self, x) return run(self, x) end,
  }
end

-- (N, num_mel_bins, T) -> (N, T / 2, d_model); the table of positions stays as it is.
local function whisper_encoder(o)
  local drop = nn.Dropout(o.dropout)
  return nn.Graph{
    conv1 = nn.Conv1d(o.num_mel_bins, o.d_model, 3, {padding = 1}),
    conv2 = nn.Conv1d(o.d_model, o.d_model, 3, {stride = 2, padding = 1}),
    embed_positions = nn.Frozen(nn.PositionEmbedding(o.max_source_positions, o.d_model)),
    layers = layers_of("Whisper", o, WHISPER_KIND, "encoder"), layer_norm = nn.LayerNorm(o.d_model),
    order = {"conv1", "conv2", "embed_positions", "layers", "layer_norm"},
    forward = function(self, x)
      x = nn.gelu(self.conv2(nn.gelu(self.conv1(x)))):permute(0, 2, 1)
      x = drop(self.embed_positions(x))
      for _, layer in ipairs(self.layers) do x = layer(x) end
      return self.layer_norm(x)
    end,
  }
end

local function whisper_decoder(o, embed_tokens)
  local drop = nn.Dropout(o.dropout)
  return nn.Graph{
    embed_tokens = embed_tokens, embed_positions = nn.PositionEmbedding(o.max_target_positions, o.d_model),
    layers = layers_of("Whisper", o, WHISPER_KIND, "decoder"), layer_norm = nn.LayerNorm(o.d_model),
    order = {"embed_tokens", "embed_positions", "layers", "layer_norm"},
    forward = function(self, x, memory)
      x = drop(self.embed_positions(self.embed_tokens(x)))
      for _, layer in ipairs(self.layers) do x = layer(x, memory) end
      return self.layer_norm(x)
    end,
  }
end

return function(models)
  -- num_decoder_layers = 0: as many as num_layers
  define(models, "T5", T5, function(o)
    local shared = nn.Embedding(o.vocab_size, o.d_model)
    return nn.Graph{
      shared = shared, encoder = t5_stack(o, o.num_layers, false),
      decoder = t5_stack(o, o.num_decoder_layers > 0 and o.num_decoder_layers or o.num_layers, true),
      lm_head = nn.Linear(o.d_model, o.vocab_size, {bias = false, tied = o.tie_word_embeddings and shared or nil}),
      order = {"shared", "encoder", "decoder", "lm_head"},
      forward = function(self, input_ids, decoder_input_ids)
        local memory = self.encoder(self.shared(input_ids))
        local x = self.decoder(self.shared(decoder_input_ids), memory)
        if o.scale_decoder_outputs then x = o.d_model ^ -0.5 * x end
        return self.lm_head(x):flatten(0, 1)
      end,
    }
  end, {ignored = {"^encoder%.embed_tokens%.", "^decoder%.embed_tokens%.", "EncDecAttention%.relative_attention_bias"}})

  define(models, "Bart", merged(COMMON, {vocab_size = 50265, d_model = 1024, encoder_ffn_dim = 4096,
    decoder_ffn_dim = 4096, encoder_attention_heads = 16, decoder_attention_heads = 16, max_position_embeddings = 1024,
    dropout = 0.1, scale_embedding = false, pad_token_id = 1}), function(o)
    local shared, zeros = nn.Embedding(o.vocab_size, o.d_model, {padding_idx = model.padding(o)}), {}
    for i = 1, o.vocab_size do zeros[i] = 0 end
    return nn.Graph{
      model = nn.Graph{
        shared = shared, encoder = bart_stack(o, "encoder"), decoder = bart_stack(o, "decoder"),
        order = {"shared", "encoder", "decoder"},
        forward = function(self, input_ids, decoder_input_ids)
          local function embedded(ids)
            local x = self.shared(ids)
            return o.scale_embedding and o.d_model ^ 0.5 * x or x
          end
          return self.decoder(embedded(decoder_input_ids), self.encoder(embedded(input_ids)))
        end,
      },
      lm_head = nn.Linear(o.d_model, o.vocab_size, {bias = false, tied = o.tie_word_embeddings and shared or nil}),
      final_logits_bias = nn.Buffer(zeros, {shape = {1, o.vocab_size}}),
      order = {"model", "lm_head", "final_logits_bias"},
      forward = function(self, input_ids, decoder_input_ids)
        return self.lm_head(self.model(input_ids, decoder_input_ids)):flatten(0, 1) + self.final_logits_bias
      end,
    }
  end, {base = "model.", ignored = {"coder%.embed_tokens%.", "coder%.version$"}})

  -- input_features: (num_mel_bins, 2 max_source_positions)
  define(models, "Whisper", merged(COMMON, {vocab_size = 51865, num_mel_bins = 80, d_model = 384, encoder_layers = 4,
    decoder_layers = 4, encoder_ffn_dim = 1536, decoder_ffn_dim = 1536, encoder_attention_heads = 6,
    decoder_attention_heads = 6, max_source_positions = 1500, max_target_positions = 448, dropout = 0,
    pad_token_id = 50256}), function(o)
    local embed_tokens = nn.Embedding(o.vocab_size, o.d_model, {padding_idx = model.padding(o)})
    return nn.Graph{
      model = nn.Graph{
        encoder = whisper_encoder(o), decoder = whisper_decoder(o, embed_tokens), order = {"encoder", "decoder"},
        forward = function(self, input_features, decoder_input_ids)
          return self.decoder(decoder_input_ids, self.encoder(input_features))
        end,
      },
      proj_out = nn.Linear(o.d_model, o.vocab_size,
        {bias = false, tied = o.tie_word_embeddings and embed_tokens or nil}),
      order = {"model", "proj_out"},
      forward = function(self, input_features, decoder_input_ids)
        return self.proj_out(self.model(input_features, decoder_input_ids)):flatten(0, 1)
      end,
    }
  end, {base = "model."})
end
