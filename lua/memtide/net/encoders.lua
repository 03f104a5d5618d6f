-- mt.models: Hugging Face's encoders of text and images. Options, defaults and names of parameters are those of
-- transformers: of its configuration classes and of the model's state_dict. ForMaskedLM gives (N, T) tokens -> (N T,
-- vocab_size), the logits of each token; what classifies gives (N, num_labels).
local model = require "memtide.net.model"
local nn = require "memtide.net.nn".nn

local define = model.define

local function merged(...)
  local all = {}
  for _, options in ipairs{...} do
    for key, value in pairs(options) do all[key] = value end
  end
  return all
end

-- ---- BERT

local BERT = {vocab_size = 30522, hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
  intermediate_size = 3072, hidden_act = "gelu", hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1,
  max_position_embeddings = 512, type_vocab_size = 2, layer_norm_eps = 1e-12, pad_token_id = 0}
-- Files from before transformers 2 call a normalisation's weight gamma and its bias beta.
local BERT_NAMES = {{"%.gamma$", ".weight"}, {"%.beta$", ".bias"}}
local BERT_IGNORED = {"position_ids$", "token_type_ids$", "^cls%.seq_relationship%."}

-- All tokens are of the first type, as where transformers is not told otherwise.
local function token_types(o)
  return nn.Graph{
    weight = nn.Parameter({o.type_vocab_size, o.hidden_size}, {init = "normal", std = 0.02}),
    forward = function(self, x) return x + self.weight:narrow(0, 0, 1) end,
  }
end

-- first: the position of the first token, of a table that begins earlier
local function positions(o)
  return nn.PositionEmbedding(o.max_position_embeddings, o.hidden_size)
end

local function bert_embeddings(o)
  return nn.Graph{
    word_embeddings = nn.Embedding(o.vocab_size, o.hidden_size, {padding_idx = o.pad_token_id}),
    position_embeddings = positions(o), token_type_embeddings = token_types(o),
    LayerNorm = nn.LayerNorm(o.hidden_size, o.layer_norm_eps), dropout = nn.Dropout(o.hidden_dropout_prob),
    order = {"word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm", "dropout"},
    forward = function(self, x)
      x = self.position_embeddings(self.token_type_embeddings(self.word_embeddings(x)))
      return self.dropout(self.LayerNorm(x))
    end,
  }
end

-- dense, dropout, and the normalised sum with what came before
local function bert_output(o, from)
  return nn.Graph{
    dense = nn.Linear(from, o.hidden_size), dropout = nn.Dropout(o.hidden_dropout_prob),
    LayerNorm = nn.LayerNorm(o.hidden_size, o.layer_norm_eps),
    forward = function(self, x, before) return self.LayerNorm(self.dropout(self.dense(x)) + before) end,
  }
end

local function bert_layer(name, o)
  local act = model.activation(o, name, "hidden_act")
  local function linear() return nn.Linear(o.hidden_size, o.hidden_size) end
  return nn.Graph{
    attention = nn.Graph{
      self = nn.Graph{
        query = linear(), key = linear(), value = linear(),
        forward = function(self, x)
          return nn.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x),
            {num_heads = o.num_attention_heads, dropout_p = o.attention_probs_dropout_prob})
        end,
      },
      output = bert_output(o, o.hidden_size),
      forward = function(self, x) return self.output(self.self(x), x) end,
    },
    intermediate = nn.Graph{
      dense = nn.Linear(o.hidden_size, o.intermediate_size),
      forward = function(self, x) return act(self.dense(x)) end,
    },
    output = bert_output(o, o.intermediate_size),
    forward = function(self, x)
      x = self.attention(x)
      return self.output(self.intermediate(x), x)
    end,
  }
end

local function bert_encoder(name, o)
  local layers = {}
  for i = 1, o.num_hidden_layers do layers[i] = bert_layer(name, o) end
  return nn.Graph{
    layer = layers,
    forward = function(self, x)
      for _, layer in ipairs(self.layer) do x = layer(x) end
      return x
    end,
  }
end

-- The first token's features through a dense layer and tanh
local function bert_pooler(o)
  return nn.Graph{
    dense = nn.Linear(o.hidden_size, o.hidden_size),
    forward = function(self, x) return nn.tanh(self.dense(x:select(1, 0))) end,
  }
end

local function bert(name, o, pooled)
  local parts = {
    embeddings = bert_embeddings(o), encoder = bert_encoder(name, o),
    forward = function(self, x)
      x = self.encoder(self.embeddings(x))
      return pooled and self.pooler(x) or x
    end,
  }
  if pooled then parts.pooler = bert_pooler(o) end
  return nn.Graph(parts)
end

local function tied(o, embedding) return {tied = o.tie_word_embeddings and embedding or nil} end

-- ---- ViT

local VIT = {hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12, intermediate_size = 3072,
  hidden_act = "gelu", hidden_dropout_prob = 0, attention_probs_dropout_prob = 0, layer_norm_eps = 1e-12,
  image_size = 224, patch_size = 16, num_channels = 3, qkv_bias = true, num_labels = 2}
-- Names of transformers 4, which the files on its hub have
local VIT_NAMES = {
  {"^vit%.encoder%.layer%.", "vit.layers."}, {"%.attention%.attention%.query%.", ".attention.q_proj."},
  {"%.attention%.attention%.key%.", ".attention.k_proj."}, {"%.attention%.attention%.value%.", ".attention.v_proj."},
  {"%.attention%.output%.dense%.", ".attention.o_proj."}, {"%.intermediate%.dense%.", ".mlp.fc1."},
  {"^(vit%.layers%.%d+)%.output%.dense%.", "%1.mlp.fc2."},
}

local function vit_layer(name, o)
  local act = model.activation(o, name, "hidden_act")
  local function linear(bias) return nn.Linear(o.hidden_size, o.hidden_size, {bias = bias}) end
  return nn.Graph{
    attention = nn.Graph{
      q_proj = linear(o.qkv_bias), k_proj = linear(o.qkv_bias), v_proj = linear(o.qkv_bias), o_proj = linear(true),
      dropout = nn.Dropout(o.hidden_dropout_prob),
      forward = function(self, x)
        local y = nn.scaled_dot_product_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x),
          {num_heads = o.num_attention_heads, dropout_p = o.attention_probs_dropout_prob})
        return self.dropout(self.o_proj(y))
      end,
    },
    layernorm_before = nn.LayerNorm(o.hidden_size, o.layer_norm_eps),
    layernorm_after = nn.LayerNorm(o.hidden_size, o.layer_norm_eps),
    mlp = nn.Graph{
      fc1 = nn.Linear(o.hidden_size, o.intermediate_size), fc2 = nn.Linear(o.intermediate_size, o.hidden_size),
      dropout = nn.Dropout(o.hidden_dropout_prob),
      forward = function(self, x) return self.dropout(self.fc2(act(self.fc1(x)))) end,
    },
    order = {"attention", "layernorm_before", "layernorm_after", "mlp"},
    forward = function(self, x)
      x = x + self.attention(self.layernorm_before(x))
      return x + self.mlp(self.layernorm_after(x))
    end,
  }
end

local function vit_embeddings(o)
  local patches = (o.image_size // o.patch_size) ^ 2 // 1 | 0
  return nn.Graph{
    cls_token = nn.Parameter({1, 1, o.hidden_size}, {init = "normal", std = 0.02}),
    position_embeddings = nn.Parameter({1, patches + 1, o.hidden_size}, {init = "normal", std = 0.02}),
    patch_embeddings = nn.Graph{
      projection = nn.Conv2d(o.num_channels, o.hidden_size, o.patch_size, {stride = o.patch_size}),
      forward = function(self, x) return self.projection(x):flatten(2):transpose(1, 2) end,
    },
    dropout = nn.Dropout(o.hidden_dropout_prob),
    order = {"cls_token", "position_embeddings", "patch_embeddings", "dropout"},
    forward = function(self, x)
      x = self.patch_embeddings(x)
      local cls = 0 * x:narrow(1, 0, 1) + self.cls_token -- one for each sample
      return self.dropout(nn.cat({cls, x}, 1) + self.position_embeddings)
    end,
  }
end

return function(models)
  local FILES = {base = "bert.", names = BERT_NAMES, ignored = BERT_IGNORED}

  define(models, "BertForMaskedLM", merged(BERT, {tie_word_embeddings = true}), function(o)
    local base, act = bert("BertForMaskedLM", o, false), model.activation(o, "BertForMaskedLM", "hidden_act")
    return nn.Graph{
      bert = base,
      cls = nn.Graph{
        predictions = nn.Graph{
          transform = nn.Graph{
            dense = nn.Linear(o.hidden_size, o.hidden_size), LayerNorm = nn.LayerNorm(o.hidden_size, o.layer_norm_eps),
            forward = function(self, x) return self.LayerNorm(act(self.dense(x))) end,
          },
          decoder = nn.Linear(o.hidden_size, o.vocab_size, tied(o, base.embeddings.word_embeddings)),
          forward = function(self, x) return self.decoder(self.transform(x)) end,
        },
        forward = function(self, x) return self.predictions(x) end,
      },
      forward = function(self, x) return self.cls(self.bert(x)):flatten(0, 1) end,
    }
  end, merged(FILES, {
    names = table.move(BERT_NAMES, 1, 2, 2, {{"^cls%.predictions%.bias$", "cls.predictions.decoder.bias"}}),
    ignored = table.move(BERT_IGNORED, 1, 3, 2, {"^bert%.pooler%."}),
  }))

  -- classifier_dropout below 0: hidden_dropout_prob
  define(models, "BertForSequenceClassification", merged(BERT, {num_labels = 2, classifier_dropout = -1}),
    function(o)
      local drop = o.classifier_dropout >= 0 and o.classifier_dropout or o.hidden_dropout_prob
      return nn.Graph{
        bert = bert("BertForSequenceClassification", o, true), dropout = nn.Dropout(drop),
        classifier = nn.Linear(o.hidden_size, o.num_labels),
        forward = function(self, x) return self.classifier(self.dropout(self.bert(x))) end,
      }
    end, merged(FILES, {ignored = table.move(BERT_IGNORED, 1, 3, 2, {"^cls%.predictions%."})}))

  define(models, "ViTForImageClassification", VIT, function(o)
    local layers = {}
    for i = 1, o.num_hidden_layers do layers[i] = vit_layer("ViTForImageClassification", o) end
    return nn.Graph{
      vit = nn.Graph{
        embeddings = vit_embeddings(o), layers = layers, layernorm = nn.LayerNorm(o.hidden_size, o.layer_norm_eps),
        forward = function(self, x)
          x = self.embeddings(x)
          for _, layer in ipairs(self.layers) do x = layer(x) end
          return self.layernorm(x)
        end,
      },
      classifier = nn.Linear(o.hidden_size, o.num_labels),
      forward = function(self, x) return self.classifier(self.vit(x):select(1, 0)) end,
    }
  end, {base = "vit.", names = VIT_NAMES, ignored = {"mask_token$", "^vit%.pooler%."}})
end
