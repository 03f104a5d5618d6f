"""Writes tests/oracle/peft.lua: what PEFT makes of small models and computes, for tests/lua/t_peft.lua.

    python tests/peers/peft_cases.py > tests/oracle/peft.lua    needs torch, transformers and peft
    python tests/peers/peft_cases.py --read DIR                 reads the adapters that memtide wrote below DIR, by case

Parameters are no file: both sides fill them by a formula of their names (hf_cases.py). Steps are AdamW's."""
import copy
import json
import os
import sys
import tempfile
import warnings

import peft
import torch
import transformers as T
from safetensors import safe_open

from hf_cases import NO_DROPOUT, TEXT, fill, inputs, lua, mixed, value_of

warnings.filterwarnings("ignore")
T.logging.set_verbosity_error()
STEPS, PREFIX, MAGNITUDE = 3, "base_model.model.", "lora_magnitude_vector"
LLAMA = ("LlamaForCausalLM", T.LlamaConfig(**TEXT, num_key_value_heads=2))
GPT2 = ("GPT2LMHeadModel", T.GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=50, n_positions=64, bos_token_id=None,
        eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
BERT = ("BertForSequenceClassification", T.BertConfig(**TEXT, **NO_DROPOUT, num_labels=3))

CASES = [
    ("usual", *LLAMA, dict(target_modules=["q_proj", "v_proj"])),
    ("rslora", *LLAMA, dict(r=4, lora_alpha=6, use_rslora=True, target_modules=["k_proj", "o_proj", "down_proj"])),
    ("all_linear", *LLAMA, dict(r=3, lora_alpha=16, target_modules="all-linear")),
    ("patterns", *LLAMA, dict(r=4, lora_alpha=8, target_modules=["q_proj", "up_proj"], rank_pattern={"up_proj": 2},
        alpha_pattern={"up_proj": 16}, layers_to_transform=[1])),
    ("conv1d", *GPT2, dict(r=2, lora_alpha=4, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True)),
    ("dora", *LLAMA, dict(r=4, lora_alpha=6, use_dora=True, target_modules=["q_proj", "v_proj", "down_proj"])),
    ("dora_rslora", *LLAMA, dict(r=4, use_dora=True, use_rslora=True, rank_pattern={"o_proj": 2}, target_modules="all-linear")),
    ("dora_conv1d", *GPT2, dict(r=2, lora_alpha=4, use_dora=True, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True)),
    ("dora_bias", *BERT, dict(r=2, use_dora=True, target_modules=["query", "value"])),
    ("bert", *BERT, dict(r=2, target_modules=["query", "value"], exclude_modules=["layer.0.attention.self.query"])),
]


def adapted(architecture, config, options):
    model = getattr(T, architecture)(copy.deepcopy(config)).double().eval()
    fill(model)
    model = peft.get_peft_model(model, peft.LoraConfig(**options), autocast_adapter_dtype=False)
    first = norm(p.detach() for name, p in model.named_parameters() if MAGNITUDE in name)
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.data = value_of(name[len(PREFIX):], tuple(p.shape)).float().double()
    return model, first


def gradients_of(model):
    """By kind of adapter, the norm of the gradients of all that are of it"""
    norms = {}
    for kind in "lora_A", "lora_B", MAGNITUDE:
        of_kind = [p.grad for name, p in model.named_parameters() if kind in name]
        if of_kind:
            norms[kind] = norm(of_kind)
    return ", ".join("%s = %s" % (kind, lua(x)) for kind, x in norms.items())


def loss_of(model, config):
    logits = model(**inputs(config)).logits
    logits = logits.reshape(-1, logits.shape[-1])
    labels = mixed(torch.arange(logits.shape[0]), torch.tensor(2)) % logits.shape[1]
    return torch.nn.functional.cross_entropy(logits, labels)


def norm(tensors):
    return sum((t.double() ** 2).sum().item() for t in tensors) ** 0.5


def case(name, architecture, config, options):
    config.architectures = [architecture]
    model, first = adapted(architecture, config, options)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=0.01), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, config)
        losses.append(loss.item())
        loss.backward()
        gradients = gradients if step else gradients_of(model)
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(folder + "/adapter_model.safetensors", "pt") as file:
            shapes = [(key, list(file.get_slice(key).get_shape())) for key in sorted(file.keys())]
    count, every = model.get_nb_trainable_parameters()
    after, last = norm(trained), loss_of(model, config).item()
    merged = model.merge_and_unload()
    print("  {name = \"%s\", config = [==[%s]==]," % (name, json.dumps(config.to_diff_dict(), sort_keys=True)))
    print("    options = %s," % table(options))
    print("    trained = %d, parameters = %d, losses = %s, after = %s, norm = %s, merged = %s," % (
        count, every, lua(losses), lua(last), lua(after), lua(norm(merged.parameters()))))
    print("    gradients = {%s}, magnitudes = %s," % (gradients, lua(first)))
    print("    tensors = {%s}}," % ", ".join('["%s"] = %s' % (key, lua(shape)) for key, shape in shapes))


def table(value):
    if isinstance(value, dict):
        return "{" + ", ".join('["%s"] = %s' % (k, table(v)) for k, v in value.items() if k != "fan_in_fan_out") + "}"
    if isinstance(value, list):
        return "{" + ", ".join(table(v) for v in value) + "}"
    return '"%s"' % value if isinstance(value, str) else str(value).lower()


def read(folder):
    for name, architecture, config, options in CASES:
        if not os.path.isdir("%s/%s" % (folder, name)):
            continue
        model = getattr(T, architecture)(copy.deepcopy(config)).double().eval()
        fill(model)
        model = peft.PeftModel.from_pretrained(model, "%s/%s" % (folder, name), autocast_adapter_dtype=False)
        print("%s: PEFT's loss with memtide's adapter: %.9g" % (name, loss_of(model.double(), config).item()))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--read":
        read(sys.argv[2])
    else:
        print("-- What PEFT %s with transformers %s computes, by tests/peers/peft_cases.py." % (peft.__version__, T.__version__))
        print("return {")
        for one in CASES:
            case(*one)
        print("}")
