-- mt.models: Hugging Face's encoders of text and images. Options, defaults and names of parameters are those of
-- transformers: of its configuration classes and of the model's state_dict. ForMaskedLM gives (N, T) tokens -> (N T,
-- vocab_size), the logits of each token; what classifies gives (N, num_labels).
local model = require "memtide.net.model"
local nn = require "memtide.net.nn".nn

local define, merged = model.define, model.merged

-- ---- BERT

local BERT = {vocab_size = 30522, hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
  intermediate_size = 3072, hidden_act = "gelu", hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1,
  max_position_embeddings = 512, type_vocab_size = 2, layer_norm_eps = 1e-12, pad_token_id = 0}
-- Files from before transformers 2 call a normalisation's weight gamma and its bias beta.
local BERT_NAMES = {{"%.gamma$", ".weight"}, {"%.beta$", ".bias"}}
local BERT_IGNORED = {"position_ids$", "token_type_ids$", "^cls%.seq_relationship%."}

-- All tokens are of the first type, as where transformers is not told otherwise.
local function token_types(o, width)
  return nn.Graph{
    weight = nn.Parameter({o.type_vocab_size, width}, {init = "normal", std = 0.02}),
    forward = function(self, x) return x + self.weight:narrow(0, 0, 1) end,
  }
end

-- first: the row of the table of positions that the first token reads; width: of embeddings
local function bert_embeddings(o, first, width)
  return nn.Graph{
    word_embeddings = nn.Embedding(o.vocab_size, width, {padding_idx = model.padding(o)}),
    position_embeddings = nn.PositionEmbedding(o.max_position_embeddings, width, {offset = first}),
    token_type_embeddings = token_types(o, width),
    LayerNorm = nn.LayerNorm(width, o.layer_norm_eps), dropout = nn.Dropout(o.hidden_dropout_prob),
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

-- pooled: the result is of the first token alone
local function bert(name, o, pooled, first)
  local parts = {
    embeddings = bert_embeddings(o, first or 0, o.hidden_size), encoder = bert_encoder(name, o),
    forward = function(self, x)
      x = self.encoder(self.embeddings(x))
      return pooled and self.pooler(x) or x
    end,
  }
  if pooled then parts.pooler = bert_pooler(o) end
  return nn.Graph(parts)
end

local function tied(o, embedding) return {tied = o.tie_word_embeddings and embedding or nil} end

-- classifier_dropout below 0: hidden_dropout_prob
local function classifier_dropout(o)
  return nn.Dropout(o.classifier_dropout >= 0 and o.classifier_dropout or o.hidden_dropout_prob)
end

-- What classifies by the first token's features: dropout, dense, activation, dropout, out_proj
local function classification_head(o, act)
  return nn.Graph{
    dense = nn.Linear(o.hidden_size, o.hidden_size), dropout = classifier_dropout(o),
    out_proj = nn.Linear(o.hidden_size, o.num_labels), order = {"dense", "dropout", "out_proj"},
    forward = function(self, x)
      x = act(self.dense(self.dropout(x:select(1, 0))))
      return self.out_proj(self.dropout(x))
    end,
  }
end

-- ---- DistilBERT: BERT's layers under other names, and no types of tokens

local function distilbert_layer(name, o)
  local act = model.activation(o, name, "activation")
  local function linear() return nn.Linear(o.dim, o.dim) end
  return nn.Graph{
    attention = nn.Graph{
      q_lin = linear(), k_lin = linear(), v_lin = linear(), out_lin = linear(),
      order = {"q_lin", "k_lin", "v_lin", "out_lin"},
      forward = function(self, x)
        return self.out_lin(nn.scaled_dot_product_attention(self.q_lin(x), self.k_lin(x), self.v_lin(x),
          {num_heads = o.n_heads, dropout_p = o.attention_dropout}))
      end,
    },
    sa_layer_norm = nn.LayerNorm(o.dim, 1e-12),
    ffn = nn.Graph{
      dropout = nn.Dropout(o.dropout), lin1 = nn.Linear(o.dim, o.hidden_dim), lin2 = nn.Linear(o.hidden_dim, o.dim),
      forward = function(self, x) return self.dropout(self.lin2(act(self.lin1(x)))) end,
    },
    output_layer_norm = nn.LayerNorm(o.dim, 1e-12),
    order = {"attention", "sa_layer_norm", "ffn", "output_layer_norm"},
    forward = function(self, x)
      x = self.sa_layer_norm(self.attention(x) + x)
      return self.output_layer_norm(self.ffn(x) + x)
    end,
  }
end

local function distilbert(name, o)
  local layers = {}
  for i = 1, o.n_layers do layers[i] = distilbert_layer(name, o) end
  return nn.Graph{
    embeddings = nn.Graph{
      word_embeddings = nn.Embedding(o.vocab_size, o.dim, {padding_idx = model.padding(o)}),
      position_embeddings = nn.PositionEmbedding(o.max_position_embeddings, o.dim),
      LayerNorm = nn.LayerNorm(o.dim, 1e-12), dropout = nn.Dropout(o.dropout),
      order = {"word_embeddings", "position_embeddings", "LayerNorm", "dropout"},
      forward = function(self, x)
        return self.dropout(self.LayerNorm(self.position_embeddings(self.word_embeddings(x))))
      end,
    },
    transformer = nn.Graph{
      layer = layers,
      forward = function(self, x)
        for _, layer in ipairs(self.layer) do x = layer(x) end
        return x
      end,
    },
    forward = function(self, x) return self.transformer(self.embeddings(x)) end,
  }
end

-- ---- ViT and DeiT

local VIT = {hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12, intermediate_size = 3072,
  hidden_act = "gelu", hidden_dropout_prob = 0, attention_probs_dropout_prob = 0, layer_norm_eps = 1e-12,
  image_size = 224, patch_size = 16, num_channels = 3, qkv_bias = true, num_labels = 2}
-- Names of transformers 4, which the files on its hub have
local VIT_NAMES = {
  {"^(%w+)%.encoder%.layer%.", "%1.layers."}, {"%.attention%.attention%.query%.", ".attention.q_proj."},
  {"%.attention%.attention%.key%.", ".attention.k_proj."}, {"%.attention%.attention%.value%.", ".attention.v_proj."},
  {"%.attention%.output%.dense%.", ".attention.o_proj."}, {"%.intermediate%.dense%.", ".mlp.fc1."},
  {"^(%w+%.layers%.%d+)%.output%.dense%.", "%1.mlp.fc2."},
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

-- tokens: the names of those that come before the patches
local function vit_embeddings(o, tokens)
  local patches = (o.image_size // o.patch_size) ^ 2 // 1 | 0
  local parts = {
    position_embeddings = nn.Parameter({1, patches + #tokens, o.hidden_size}, {init = "normal", std = 0.02}),
    patch_embeddings = nn.Graph{
      projection = nn.Conv2d(o.num_channels, o.hidden_size, o.patch_size, {stride = o.patch_size}),
      forward = function(self, x) return self.projection(x):flatten(2):transpose(1, 2) end,
    },
    dropout = nn.Dropout(o.hidden_dropout_prob),
    order = {table.unpack(tokens)},
    forward = function(self, x)
      x = self.patch_embeddings(x)
      local sequence = {}
      for i, token in ipairs(tokens) do sequence[i] = 0 * x:narrow(1, 0, 1) + self[token] end -- one for each sample
      sequence[#tokens + 1] = x
      return self.dropout(nn.cat(sequence, 1) + self.position_embeddings)
    end,
  }
  for _, token in ipairs(tokens) do
    parts[token] = nn.Parameter({1, 1, o.hidden_size}, {init = "normal", std = 0.02})
  end
  table.move({"position_embeddings", "patch_embeddings", "dropout"}, 1, 3, #tokens + 1, parts.order)
  return nn.Graph(parts)
end

-- The whole model, whose part without the classifier is called `base`
local function vit(name, base, o, tokens)
  local layers = {}
  for i = 1, o.num_hidden_layers do layers[i] = vit_layer(name, o) end
  return nn.Graph{
    [base] = nn.Graph{
      embeddings = vit_embeddings(o, tokens), layers = layers,
      layernorm = nn.LayerNorm(o.hidden_size, o.layer_norm_eps),
      forward = function(self, x)
        x = self.embeddings(x)
        for _, layer in ipairs(self.layers) do x = layer(x) end
        return self.layernorm(x)
      end,
    },
    classifier = nn.Linear(o.hidden_size, o.num_labels), order = {base, "classifier"},
    forward = function(self, x) return self.classifier(self[base](x):select(1, 0)) end,
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

  define(models, "BertForSequenceClassification", merged(BERT, {num_labels = 2, classifier_dropout = -1}),
    function(o)
      return nn.Graph{
        bert = bert("BertForSequenceClassification", o, true), dropout = classifier_dropout(o),
        classifier = nn.Linear(o.hidden_size, o.num_labels),
        forward = function(self, x) return self.classifier(self.dropout(self.bert(x))) end,
      }
    end, merged(FILES, {ignored = table.move(BERT_IGNORED, 1, 3, 2, {"^cls%.predictions%."})}))

  -- ---- RoBERTa, XLM-RoBERTa, CamemBERT: BERT whose positions count from pad_token_id + 1, and other heads

  local ROBERTA = merged(BERT, {vocab_size = 50265, pad_token_id = 1})
  local ROBERTA_FILES = {base = "roberta.", names = {{"^lm_head%.bias$", "lm_head.decoder.bias"}},
    ignored = {"position_ids$", "token_type_ids$", "^roberta%.pooler%."}}

  define(models, "RobertaForMaskedLM", merged(ROBERTA, {tie_word_embeddings = true}), function(o)
    local base = bert("RobertaForMaskedLM", o, false, o.pad_token_id + 1)
    return nn.Graph{
      roberta = base,
      lm_head = nn.Graph{
        dense = nn.Linear(o.hidden_size, o.hidden_size), layer_norm = nn.LayerNorm(o.hidden_size, o.layer_norm_eps),
        decoder = nn.Linear(o.hidden_size, o.vocab_size, tied(o, base.embeddings.word_embeddings)),
        order = {"dense", "layer_norm", "decoder"},
        forward = function(self, x) return self.decoder(self.layer_norm(nn.gelu(self.dense(x)))) end,
      },
      order = {"roberta", "lm_head"},
      forward = function(self, x) return self.lm_head(self.roberta(x)):flatten(0, 1) end,
    }
  end, merged(ROBERTA_FILES, {ignored = table.move(ROBERTA_FILES.ignored, 1, 3, 2, {"^classifier%."})}))

  define(models, "RobertaForSequenceClassification", merged(ROBERTA, {num_labels = 2, classifier_dropout = -1}),
    function(o)
      return nn.Graph{
        roberta = bert("RobertaForSequenceClassification", o, false, o.pad_token_id + 1),
        classifier = classification_head(o, nn.tanh), order = {"roberta", "classifier"},
        forward = function(self, x) return self.classifier(self.roberta(x)) end,
      }
    end, merged(ROBERTA_FILES, {ignored = table.move(ROBERTA_FILES.ignored, 1, 3, 2, {"^lm_head%."})}))

  -- ---- ELECTRA: BERT with narrower embeddings

  local ELECTRA = merged(BERT, {embedding_size = 128, hidden_size = 256, num_attention_heads = 4,
    intermediate_size = 1024})
  local ELECTRA_HEADS = {generator = {"^generator_predictions%.", "^generator_lm_head%."},
    classifier = {"^classifier%."}}

  local function electra(name, o)
    local parts = {
      embeddings = bert_embeddings(o, 0, o.embedding_size), encoder = bert_encoder(name, o),
      order = {"embeddings", "encoder"},
      forward = function(self, x)
        x = self.embeddings(x)
        if o.embedding_size ~= o.hidden_size then x = self.embeddings_project(x) end
        return self.encoder(x)
      end,
    }
    if o.embedding_size ~= o.hidden_size then
      parts.embeddings_project = nn.Linear(o.embedding_size, o.hidden_size)
      parts.order = {"embeddings", "embeddings_project", "encoder"}
    end
    return nn.Graph(parts)
  end

  local function electra_files(other)
    return {base = "electra.", ignored = {"position_ids$", "token_type_ids$", "^discriminator_predictions%.",
      table.unpack(ELECTRA_HEADS[other])}}
  end

  define(models, "ElectraForMaskedLM", merged(ELECTRA, {tie_word_embeddings = true}), function(o)
    local base = electra("ElectraForMaskedLM", o)
    return nn.Graph{
      electra = base,
      generator_predictions = nn.Graph{
        LayerNorm = nn.LayerNorm(o.embedding_size, o.layer_norm_eps),
        dense = nn.Linear(o.hidden_size, o.embedding_size),
        forward = function(self, x) return self.LayerNorm(nn.gelu(self.dense(x))) end,
      },
      generator_lm_head = nn.Linear(o.embedding_size, o.vocab_size, tied(o, base.embeddings.word_embeddings)),
      order = {"electra", "generator_predictions", "generator_lm_head"},
      forward = function(self, x)
        return self.generator_lm_head(self.generator_predictions(self.electra(x))):flatten(0, 1)
      end,
    }
  end, electra_files "classifier")

  define(models, "ElectraForSequenceClassification", merged(ELECTRA, {num_labels = 2, classifier_dropout = -1}),
    function(o)
      return nn.Graph{
        electra = electra("ElectraForSequenceClassification", o), classifier = classification_head(o, nn.gelu),
        order = {"electra", "classifier"},
        forward = function(self, x) return self.classifier(self.electra(x)) end,
      }
    end, electra_files "generator")

  -- ---- DistilBERT

  local DISTILBERT = {vocab_size = 30522, dim = 768, n_layers = 6, n_heads = 12, hidden_dim = 3072,
    activation = "gelu", dropout = 0.1, attention_dropout = 0.1, max_position_embeddings = 512, pad_token_id = 0}

  define(models, "DistilBertForMaskedLM", merged(DISTILBERT, {tie_word_embeddings = true}), function(o)
    local base, act = distilbert("DistilBertForMaskedLM", o), model.activation(o, "DistilBertForMaskedLM", "activation")
    return nn.Graph{
      distilbert = base, vocab_transform = nn.Linear(o.dim, o.dim), vocab_layer_norm = nn.LayerNorm(o.dim, 1e-12),
      vocab_projector = nn.Linear(o.dim, o.vocab_size, tied(o, base.embeddings.word_embeddings)),
      order = {"distilbert", "vocab_transform", "vocab_layer_norm", "vocab_projector"},
      forward = function(self, x)
        x = act(self.vocab_transform(self.distilbert(x)))
        return self.vocab_projector(self.vocab_layer_norm(x)):flatten(0, 1)
      end,
    }
  end, {base = "distilbert.", ignored = {"position_ids$", "^pre_classifier%.", "^classifier%."}})

  define(models, "DistilBertForSequenceClassification", merged(DISTILBERT, {num_labels = 2, seq_classif_dropout = 0.2}),
    function(o)
      return nn.Graph{
        distilbert = distilbert("DistilBertForSequenceClassification", o), pre_classifier = nn.Linear(o.dim, o.dim),
        classifier = nn.Linear(o.dim, o.num_labels), dropout = nn.Dropout(o.seq_classif_dropout),
        order = {"distilbert", "pre_classifier", "classifier", "dropout"},
        forward = function(self, x)
          x = nn.relu(self.pre_classifier(self.distilbert(x):select(1, 0)))
          return self.classifier(self.dropout(x))
        end,
      }
    end, {base = "distilbert.", ignored = {"position_ids$", "^vocab_"}})

  -- ---- ViT and DeiT

  define(models, "ViTForImageClassification", VIT, function(o)
    return vit("ViTForImageClassification", "vit", o, {"cls_token"})
  end, {base = "vit.", names = VIT_NAMES, ignored = {"mask_token$", "^vit%.pooler%."}})

  define(models, "DeiTForImageClassification", VIT, function(o)
    return vit("DeiTForImageClassification", "deit", o, {"cls_token", "distillation_token"})
  end, {base = "deit.", names = VIT_NAMES, ignored = {"mask_token$", "^deit%.pooler%."}})
end
