"""Writes tests/oracle/hf.lua: what transformers computes for small models of each family, for tests/lua/t_hf.lua.

    python tests/peers/hf_cases.py > tests/oracle/hf.lua        needs torch and transformers
    python tests/peers/hf_cases.py --write DIR                  writes each model's config.json and model.safetensors

Parameters are no file: both sides fill them by a formula of their names (value_of here, in t_hf.lua the same)."""
import json
import sys
import warnings

import torch
import transformers as T

warnings.filterwarnings("ignore")
T.logging.set_verbosity_error()
SMALL = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4)
TEXT = dict(SMALL, vocab_size=50, max_position_embeddings=64)
WIDE = dict(TEXT, hidden_size=32)  # heads of 8, so that a quarter of each is a pair
DISTIL = dict(dim=16, hidden_dim=24, n_layers=2, n_heads=4, vocab_size=50, max_position_embeddings=64, dropout=0.0,
              attention_dropout=0.0)
SMALL_VIT = dict(SMALL, image_size=16, patch_size=8)
SMALL_T5 = dict(d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, vocab_size=50, dropout_rate=0.0)
SIDES = dict(d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=2,
             encoder_ffn_dim=24, decoder_ffn_dim=32, vocab_size=50, dropout=0.0)
SMALL_TEXT = dict(TEXT, eos_token_id=2, bos_token_id=1, pad_token_id=0)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

CASES = [
    ("llama", "LlamaForCausalLM", T.LlamaConfig(**TEXT, num_key_value_heads=2)),
    ("llama3", "LlamaForCausalLM", T.LlamaConfig(**TEXT, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True,
        attention_bias=True, mlp_bias=True, rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0,
            low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16))),
    ("llama_linear", "LlamaForCausalLM", T.LlamaConfig(**TEXT, rope_parameters=dict(rope_type="linear",
        rope_theta=10000.0, factor=2.0))),
    ("mistral", "MistralForCausalLM", T.MistralConfig(**TEXT, num_key_value_heads=2, sliding_window=None)),
    ("qwen2", "Qwen2ForCausalLM", T.Qwen2Config(**TEXT, num_key_value_heads=2, tie_word_embeddings=True)),
    ("qwen3", "Qwen3ForCausalLM", T.Qwen3Config(**TEXT, num_key_value_heads=2, head_dim=8)),
    ("mistral_window", "MistralForCausalLM", T.MistralConfig(**TEXT, num_key_value_heads=2, sliding_window=5)),
    ("granite", "GraniteForCausalLM", T.GraniteConfig(**TEXT, num_key_value_heads=2, embedding_multiplier=3.0,
        logits_scaling=2.0, residual_multiplier=0.5, attention_multiplier=0.2)),
    ("olmo", "OlmoForCausalLM", T.OlmoConfig(**TEXT, num_key_value_heads=2)),
    ("olmo2", "Olmo2ForCausalLM", T.Olmo2Config(**TEXT, num_key_value_heads=2)),
    ("starcoder2", "Starcoder2ForCausalLM", T.Starcoder2Config(**TEXT, num_key_value_heads=2, sliding_window=5,
        bos_token_id=None, eos_token_id=None)),
    ("phi", "PhiForCausalLM", T.PhiConfig(**TEXT)),
    ("stablelm", "StableLmForCausalLM", T.StableLmConfig(**WIDE, num_key_value_heads=2, use_qkv_bias=True)),
    ("stablelm_parallel", "StableLmForCausalLM", T.StableLmConfig(**WIDE, num_key_value_heads=2,
        use_parallel_residual=True)),
    ("cohere", "CohereForCausalLM", T.CohereConfig(**TEXT, num_key_value_heads=2, bos_token_id=None,
        eos_token_id=None)),
    ("phi3", "Phi3ForCausalLM", T.Phi3Config(**TEXT, num_key_value_heads=2, sliding_window=5, pad_token_id=None,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    ("gemma", "GemmaForCausalLM", T.GemmaConfig(**TEXT, num_key_value_heads=1, head_dim=8)),
    ("gemma2", "Gemma2ForCausalLM", T.Gemma2Config(**TEXT, num_key_value_heads=2, head_dim=8, sliding_window=5,
        query_pre_attn_scalar=24, attn_logit_softcapping=2.0, final_logit_softcapping=1.5)),
    ("gpt_neox", "GPTNeoXForCausalLM", T.GPTNeoXConfig(**WIDE)),
    ("gpt_neox_serial", "GPTNeoXForCausalLM", T.GPTNeoXConfig(**WIDE, use_parallel_residual=False)),
    ("opt", "OPTForCausalLM", T.OPTConfig(hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=50, max_position_embeddings=64, dropout=0.0)),
    ("opt_after", "OPTForCausalLM", T.OPTConfig(hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=50, max_position_embeddings=64, dropout=0.0, do_layer_norm_before=False)),
    ("gpt2", "GPT2LMHeadModel", T.GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=50, n_positions=64,
        bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    ("bert", "BertForMaskedLM", T.BertConfig(**TEXT, **NO_DROPOUT)),
    ("bert_classifier", "BertForSequenceClassification", T.BertConfig(**TEXT, **NO_DROPOUT, num_labels=3)),
    ("roberta", "RobertaForMaskedLM", T.RobertaConfig(**TEXT, **NO_DROPOUT)),
    ("roberta_classifier", "RobertaForSequenceClassification", T.RobertaConfig(**TEXT, **NO_DROPOUT, num_labels=3)),
    ("xlm_roberta", "XLMRobertaForMaskedLM", T.XLMRobertaConfig(**TEXT, **NO_DROPOUT)),
    ("camembert", "CamembertForMaskedLM", T.CamembertConfig(**TEXT, **NO_DROPOUT)),
    ("electra", "ElectraForMaskedLM", T.ElectraConfig(**TEXT, **NO_DROPOUT, embedding_size=12)),
    ("electra_classifier", "ElectraForSequenceClassification", T.ElectraConfig(**TEXT, **NO_DROPOUT, num_labels=3,
        embedding_size=16)),
    ("distilbert", "DistilBertForMaskedLM", T.DistilBertConfig(**DISTIL)),
    ("distilbert_classifier", "DistilBertForSequenceClassification", T.DistilBertConfig(**DISTIL, num_labels=3,
        seq_classif_dropout=0.0)),
    ("deit", "DeiTForImageClassification", T.DeiTConfig(**SMALL_VIT, num_labels=5)),
    ("vit", "ViTForImageClassification", T.ViTConfig(**SMALL_VIT, num_labels=5)),
    ("t5", "T5ForConditionalGeneration", T.T5Config(**SMALL_T5, num_decoder_layers=1)),
    ("t5_gated", "T5ForConditionalGeneration", T.T5Config(**SMALL_T5, feed_forward_proj="gated-gelu",
        scale_decoder_outputs=False, relative_attention_num_buckets=8, relative_attention_max_distance=7)),
    ("bart", "BartForConditionalGeneration", T.BartConfig(**SIDES, max_position_embeddings=64)),
    ("bart_scaled", "BartForConditionalGeneration", T.BartConfig(**SIDES, max_position_embeddings=64,
        scale_embedding=True, activation_function="relu")),
    ("whisper", "WhisperForConditionalGeneration", T.WhisperConfig(**SIDES, num_mel_bins=8, max_source_positions=10,
        max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2)),
    ("clip", "CLIPModel", T.CLIPConfig(text_config=SMALL_TEXT, vision_config=dict(SMALL_VIT, hidden_size=32),
        projection_dim=8, logit_scale_init_value=1.5)),
    ("clip_eos", "CLIPModel", T.CLIPConfig(text_config=dict(SMALL_TEXT, eos_token_id=26, hidden_act="gelu"),
        vision_config=SMALL_VIT, projection_dim=8)),
]
STEPS, DECODER_STEPS, SAMPLES, SHOWN = 12, 8, 2, 24


def mixed(i, h):
    """A fixed whole number below 2^32 for element i of the tensor h; both int64."""
    x = (i * 0x9E3779B1 + h * 0x85EBCA77) & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x2C1B3C6D & 0xFFFFFFFF
    return x ^ (x >> 12)


def numbers(shape, name):
    h = sum((k + 1) * byte for k, byte in enumerate(name.encode()))
    count = 1
    for d in shape:
        count *= d
    x = mixed(torch.arange(count, dtype=torch.int64), torch.tensor(h, dtype=torch.int64))
    return (x.double() / 2**31 - 1).reshape(shape)


def value_of(name, shape):
    if len(shape) == 1 and name.endswith("weight"):
        return 1 + 0.1 * numbers(shape, name)
    return (0.1 if len(shape) < 2 else 0.3) * numbers(shape, name)


def fill(model):
    """Fills each parameter once, under the name that memtide has for it: the first one, unless another is its layer's."""
    names = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if id(p) not in names or name.endswith(("decoder.bias", "word_embeddings.weight")):
            names[id(p)] = name
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(value_of(names[id(p)], tuple(p.shape)).float())


def tokens(steps):
    ids = 3 + mixed(torch.arange(SAMPLES * steps), torch.tensor(1)) % 40
    return ids.reshape(SAMPLES, steps)


def inputs(config):
    images = getattr(config, "vision_config", config)
    if hasattr(images, "image_size"):
        shape = (SAMPLES, images.num_channels, images.image_size, images.image_size)
        x = {"pixel_values": numbers(shape, "input").float()}
        return x if images is config else dict(x, input_ids=tokens(STEPS))
    if hasattr(config, "num_mel_bins"):
        shape = (SAMPLES, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": numbers(shape, "input").float(), "decoder_input_ids": tokens(DECODER_STEPS)}
    if config.is_encoder_decoder:
        return {"input_ids": tokens(STEPS), "decoder_input_ids": tokens(DECODER_STEPS)}
    return {"input_ids": tokens(STEPS)}


def lua(value):
    if isinstance(value, (list, tuple)):
        return "{" + ", ".join(lua(v) for v in value) + "}"
    if isinstance(value, float):
        return "%.9g" % value
    return str(value)


def case(name, architecture, config):
    model = getattr(T, architecture)(config).float().eval()
    fill(model)
    config.architectures = [architecture]
    if architecture == "CLIPModel":
        found = model(**inputs(config), return_loss=True)
        logits, loss = found.logits_per_text, found.loss
    else:
        logits = model(**inputs(config)).logits
        logits = logits.reshape(-1, logits.shape[-1])
        labels = mixed(torch.arange(logits.shape[0]), torch.tensor(2)) % logits.shape[1]
        loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    norm = sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None) ** 0.5
    flat = logits.flatten()
    step = max(1, flat.numel() // SHOWN)
    print("  {name = \"%s\", config = [==[%s]==]," % (name, json.dumps(config.to_diff_dict(), sort_keys=True)))
    print("    parameters = %d, loss = %s, norm = %s, step = %d," % (
        sum(p.numel() for p in model.parameters()), lua(loss.item()), lua(norm.item()), step))
    print("    logits = %s}," % lua(flat[::step].tolist()))


def write(folder):
    for name, architecture, config in CASES:
        model = getattr(T, architecture)(config).float()
        fill(model)
        model.save_pretrained("%s/%s" % (folder, name))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--write":
        write(sys.argv[2])
    else:
        print("-- What transformers %s computes, by tests/peers/hf_cases.py." % T.__version__)
        print("return {")
        for one in CASES:
            case(*one)
        print("}")
