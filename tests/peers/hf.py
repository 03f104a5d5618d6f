"""Hugging Face's architectures, imported from a config.json:

    python3 tests/peers/hf.py --memtide build/memtide [--only NAME,NAME]        needs torch and transformers

For each architecture, by the configuration that its class has by default: is it imported; has the script as many
parameters as transformers' model; how long does import take, prediction included; what peak has memtide's step of one
sample, and what PyTorch's. How far logits, loss and gradient norms are from transformers' is what tests/lua/t_hf.lua
says of small models (hf_cases.py). The table is Markdown."""
import argparse
import json
import os
import re
import subprocess
import tempfile
import time
import warnings

import torch
import transformers as T

warnings.filterwarnings("ignore")
T.logging.set_verbosity_error()

# Architecture, its configuration's class, and the small model of hf_cases.py, if there is one
MODELS = [
    ("LlamaForCausalLM", T.LlamaConfig, "llama"), ("MistralForCausalLM", T.MistralConfig, "mistral"),
    ("Qwen2ForCausalLM", T.Qwen2Config, "qwen2"), ("Qwen3ForCausalLM", T.Qwen3Config, "qwen3"),
    ("GPT2LMHeadModel", T.GPT2Config, "gpt2"), ("GPTNeoXForCausalLM", T.GPTNeoXConfig, "gpt_neox"),
    ("OPTForCausalLM", T.OPTConfig, "opt"), ("GraniteForCausalLM", T.GraniteConfig, "granite"),
    ("OlmoForCausalLM", T.OlmoConfig, "olmo"), ("Olmo2ForCausalLM", T.Olmo2Config, "olmo2"),
    ("Starcoder2ForCausalLM", T.Starcoder2Config, "starcoder2"), ("PhiForCausalLM", T.PhiConfig, "phi"),
    ("Phi3ForCausalLM", T.Phi3Config, "phi3"), ("StableLmForCausalLM", T.StableLmConfig, "stablelm"),
    ("CohereForCausalLM", T.CohereConfig, "cohere"), ("GemmaForCausalLM", T.GemmaConfig, "gemma"),
    ("Gemma2ForCausalLM", T.Gemma2Config, "gemma2"), ("BertForMaskedLM", T.BertConfig, "bert"),
    ("RobertaForMaskedLM", T.RobertaConfig, "roberta"), ("XLMRobertaForMaskedLM", T.XLMRobertaConfig, "xlm_roberta"),
    ("CamembertForMaskedLM", T.CamembertConfig, "camembert"), ("ElectraForMaskedLM", T.ElectraConfig, "electra"),
    ("DistilBertForMaskedLM", T.DistilBertConfig, "distilbert"), ("ViTForImageClassification", T.ViTConfig, "vit"),
    ("DeiTForImageClassification", T.DeiTConfig, "deit"), ("T5ForConditionalGeneration", T.T5Config, "t5"),
    ("BartForConditionalGeneration", T.BartConfig, "bart"), ("CLIPModel", T.CLIPConfig, "clip"),
    ("WhisperForConditionalGeneration", T.WhisperConfig, "whisper"), ("MixtralForCausalLM", T.MixtralConfig, None),
    ("MambaForCausalLM", T.MambaConfig, None), ("FalconForCausalLM", T.FalconConfig, None),
    ("BloomForCausalLM", T.BloomConfig, None), ("GPTJForCausalLM", T.GPTJConfig, None),
]


def parameters(architecture, config):
    with torch.device("meta"):
        return sum(p.numel() for p in getattr(T, architecture)(config).parameters())


def differences(args):
    """{small model: largest differences of logits, of loss and of gradient norms}, as t_hf.lua prints them"""
    found = subprocess.run(["tests/run", "tests/lua/t_hf.lua"], capture_output=True, text=True,
                           env=dict(os.environ, MEMTIDE=args.memtide)).stdout
    apart = {}
    for good, name, what, by in re.findall(r"^(not ok|ok) \d+ - (\w+): (logits|loss|gradients) \((\S+) apart\)", found,
                                           re.M):
        apart.setdefault(name, []).append(("" if good == "ok" else "**wrong** ") + by)
    return apart


def peak(script, args, *settings):
    command = [args.memtide, "predict", script, "-q", "--json", "--set", "batch=1", "--set", "precision=fp32",
               "--set", "checkpoint=none"]
    for setting in settings:
        command += ["--set", setting]
    found = subprocess.run(command, capture_output=True, text=True)
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    said = rows[0].get("reason", "") if rows else found.stderr.strip().splitlines()[-1]
    needs = rows and rows[0].get("predicted_peak_bytes") or re.search(r"needs (\d+) bytes", said)
    if not needs:
        return said.split("pytorch\": ")[-1]
    return "%.2f GiB" % (int(needs if isinstance(needs, int) else needs.group(1)) / 2**30)


def row(architecture, kind, small, apart, args):
    config = kind()
    config.architectures = [architecture]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config.to_diff_dict(), file)
        script = os.path.join(folder, "model.lua")
        start = time.time()
        found = subprocess.run([args.memtide, "import", folder, "-o", script], capture_output=True, text=True)
        seconds = time.time() - start
        said = (found.stderr + found.stdout).strip()
        if found.returncode:
            return [architecture, "no: " + said.split("config.json: ")[-1]] + [""] * 6
        count, here = parameters(architecture, config), int(re.search(r"(\d+) parameters", said).group(1))
        return [architecture, "yes, %.1f s" % seconds,
                f"{here:,}" if here == count else "**%d**, not %d" % (here, count), *apart.get(small, [""] * 3),
                peak(script, args), peak(script, args, "framework=pytorch")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memtide", default="build/memtide")
    parser.add_argument("--only", help="architectures")
    args = parser.parse_args()
    apart = differences(args)
    print("| architecture | imported | parameters | logits apart | loss apart | gradients apart | memtide's peak | "
          "PyTorch's peak, predicted |")
    print("| :-- | :-- | --: | --: | --: | --: | --: | --: |")
    for architecture, kind, small in MODELS:
        if not args.only or architecture in args.only.split(","):
            print("| " + " | ".join(row(architecture, kind, small, apart, args)) + " |", flush=True)


if __name__ == "__main__":
    main()
