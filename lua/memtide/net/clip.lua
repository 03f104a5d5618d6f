-- mt.models.CLIP: Hugging Face's CLIPModel, a tower of text and a tower of images. Options, defaults and names of
-- parameters are transformers': of CLIPConfig, with those of CLIPTextConfig and CLIPVisionConfig as tables, and of the
-- model's state_dict. It takes input_ids (N, T) and pixel_values and gives logits_per_text (N, N), of each text the
-- likeness to each image of the batch, and logits_per_image, the same turned. CLIP's loss is the mean of both cross
-- entropies, where text i belongs to image i: loss = 0.5 * ce + 0.5 * ce, and the targets of a batch are 0 to N - 1.
local model = require "memtide.net.model"
local nn = require "memtide.net.nn".nn
local util = require "memtide.base.util"

local COMMON = {hidden_act = "quick_gelu", layer_norm_eps = 1e-5, attention_dropout = 0, num_hidden_layers = 12}
local TEXT = model.merged(COMMON, {vocab_size = 49408, hidden_size = 512, intermediate_size = 2048,
  num_attention_heads = 8, max_position_embeddings = 77, eos_token_id = 49407})
local VISION = model.merged(COMMON, {hidden_size = 768, intermediate_size = 3072, num_attention_heads = 12,
  num_channels = 3, image_size = 224, patch_size = 32})

local function norm(o) return nn.LayerNorm(o.hidden_size, o.layer_norm_eps) end

local function layer_of(o, is_causal)
  local act = model.activation(o, "CLIP", "hidden_act")
  local how = {num_heads = o.num_attention_heads, is_causal = is_causal, dropout_p = o.attention_dropout}
  local function linear() return nn.Linear(o.hidden_size, o.hidden_size) end
  return nn.Graph{
    self_attn = nn.Graph{
      k_proj = linear(), v_proj = linear(), q_proj = linear(), out_proj = linear(),
      order = {"k_proj", "v_proj", "q_proj", "out_proj"},
      forward = function(self, x)
        return self.out_proj(nn.scaled_dot_product_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x), how))
      end,
    },
    layer_norm1 = norm(o),
    mlp = nn.Graph{
      fc1 = nn.Linear(o.hidden_size, o.intermediate_size), fc2 = nn.Linear(o.intermediate_size, o.hidden_size),
      forward = function(self, x) return self.fc2(act(self.fc1(x))) end,
    },
    layer_norm2 = norm(o), order = {"self_attn", "layer_norm1", "mlp", "layer_norm2"},
    forward = function(self, x)
      x = x + self.self_attn(self.layer_norm1(x))
      return x + self.mlp(self.layer_norm2(x))
    end,
  }
end

local function encoder(o, is_causal)
  local layers = {}
  for i = 1, o.num_hidden_layers do layers[i] = layer_of(o, is_causal) end
  return nn.Graph{
    layers = layers,
    forward = function(self, x)
      for _, layer in ipairs(self.layers) do x = layer(x) end
      return x
    end,
  }
end

-- The features where the text ends: at its first eos_token_id, or, where that is 2, as in old files, at its largest token
local function text_model(o)
  return nn.Graph{
    embeddings = nn.Graph{
      token_embedding = nn.Embedding(o.vocab_size, o.hidden_size),
      position_embedding = nn.PositionEmbedding(o.max_position_embeddings, o.hidden_size),
      forward = function(self, x) return self.position_embedding(self.token_embedding(x)) end,
    },
    encoder = encoder(o, true), final_layer_norm = norm(o), order = {"embeddings", "encoder", "final_layer_norm"},
    forward = function(self, input_ids)
      local x = self.final_layer_norm(self.encoder(self.embeddings(input_ids)))
      return nn.select_token(x, input_ids, {token = o.eos_token_id == 2 and "max" or o.eos_token_id})
    end,
  }
end

-- The features of the class token, which stands before the patches
local function vision_model(o)
  local patches = (o.image_size // o.patch_size) ^ 2 // 1 | 0
  return nn.Graph{
    embeddings = nn.Graph{
      class_embedding = nn.Parameter({o.hidden_size}, {init = "normal"}),
      patch_embedding = nn.Conv2d(o.num_channels, o.hidden_size, o.patch_size, {stride = o.patch_size, bias = false}),
      position_embedding = nn.PositionEmbedding(patches + 1, o.hidden_size),
      order = {"class_embedding", "patch_embedding", "position_embedding"},
      forward = function(self, x)
        x = self.patch_embedding(x):flatten(2):transpose(1, 2)
        local class = 0 * x:narrow(1, 0, 1) + self.class_embedding -- one for each sample
        return self.position_embedding(nn.cat({class, x}, 1))
      end,
    },
    pre_layrnorm = norm(o), encoder = encoder(o, false), post_layernorm = norm(o),
    order = {"embeddings", "pre_layrnorm", "encoder", "post_layernorm"},
    forward = function(self, x)
      return self.post_layernorm(self.encoder(self.pre_layrnorm(self.embeddings(x))):select(1, 0))
    end,
  }
end

-- The options of a tower, with their defaults
local function tower_options(name, given, defaults)
  util.check_keys("models.CLIP: " .. name, given, util.sorted_keys(defaults))
  return model.merged(defaults, given)
end

return function(models)
  model.define(models, "CLIP", {text_config = TEXT, vision_config = VISION, projection_dim = 512,
    logit_scale_init_value = 2.6592}, function(o)
    local text, vision = tower_options("text_config", o.text_config, TEXT), tower_options("vision_config", o.vision_config,
      VISION)
    return nn.Graph{
      logit_scale = nn.Parameter({1}, {init = o.logit_scale_init_value}),
      text_model = text_model(text), vision_model = vision_model(vision),
      visual_projection = nn.Linear(vision.hidden_size, o.projection_dim, {bias = false}),
      text_projection = nn.Linear(text.hidden_size, o.projection_dim, {bias = false}),
      order = {"logit_scale", "text_model", "vision_model", "visual_projection", "text_projection"},
      forward = function(self, input_ids, pixel_values)
        local image = self.visual_projection(self.vision_model(pixel_values))
        local words = self.text_projection(self.text_model(input_ids))
        image, words = image / image:norm(2, -1, true), words / words:norm(2, -1, true)
        local logits_per_text = nn.linear(words, image) * nn.exp(self.logit_scale)
        return logits_per_text, logits_per_text:permute(1, 0)
      end,
    }
  end, {ignored = {"position_ids$"}})
end
