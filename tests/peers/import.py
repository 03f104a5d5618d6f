"""torchvision's classification models, and models beyond classification, imported:

    FAKEGPU=build/fakegpu.so python3 tests/peers/import.py --memtide build/memtide [--only NAME,NAME] [--check MILLIONS]

needs torchvision beside PyTorch. For each model: is it imported; has the script as many parameters; what peak has memtide's
step, and what PyTorch's, as memtide predicts it from the imported script; and is that every allocation and every free of
the original model on fakegpu.cpp's device? Of a model of at most so many million parameters a step is also run in both, on
the CPU, from the same weights (memtide import --check). The table is Markdown.

Status 1, with the names at the end: a model is not imported, its parameters are not as many, its step in memtide is not
predicted, it is not PyTorch's step within APART, or PyTorch's peak is predicted more than PEAK off."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn

import eager
import fakegpu
import more_models

BATCH = 2
# How far a step may be from PyTorch's: the loss, and the norm of all gradients as a part of it. The most are 3e-5 and 9e-4.
APART = {"loss": 1e-4, "gradients": 2e-3}
PEAK = 5e-4  # as a part of it; Swin V2's is 2e-4 off


@dataclass
class Entry:
    source: str            # of memtide import
    make: object           # a function that makes the module
    inputs: list           # the shape of a sample of each
    args: str = ""         # of memtide import
    outputs: int = 1
    classes: bool = True   # the loss is CrossEntropyLoss, else MSELoss
    words: int = 0         # what it reads is tokens below this


class Out(nn.Module):
    """Of a segmentation model the tensor in its dict"""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)["out"]


def segmentation(name):
    def make():
        import torchvision.models.segmentation
        return Out(getattr(torchvision.models.segmentation, name)(weights_backbone=None))
    return Entry(f"torchvision.models.segmentation:{name}", make, [[3, 224, 224]], "weights_backbone=None")


# the loss is that of the imported script, to which an output of images is one of classes
def more(name, *inputs, classes=True):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "more_models.py")
    return Entry(f"{path}:{name}", getattr(more_models, name), [*inputs], classes=classes)


# A transformer of tests/cli/import/hand_written.py. of: its class
def written(of, inputs, **options):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli", "import")
    sys.path.insert(0, path)
    import hand_written
    args = ",".join(f"{name}={value!r}" for name, value in options.items())
    return Entry(f"{os.path.join(path, 'hand_written.py')}:{of}", lambda: Flat(getattr(hand_written, of)(**options)), [inputs], args, words=options.get("words", 0))


class Flat(nn.Module):
    """Of logits of tokens, those of all samples below each other, as the imported script's loss reads them"""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        output = self.model(x)
        output = output[0] if isinstance(output, tuple) else output
        return output.flatten(0, 1) if output.dim() == 3 else output


GPT = {"words": 300, "width": 96, "heads": 4, "depth": 3, "context": 40}
VIT = {"size": 32, "patch": 4, "width": 64, "heads": 4}
LLAMA = {"words": 300, "width": 96, "heads": 4, "keys": 2, "context": 40}
WRITTEN = {
    **{f"gpt_{how}": written("GPT", [40], **GPT, how=how) for how in ("flash", "buffer", "made", "booleans")},
    "gpt_short": written("GPT", [30], **GPT, how="buffer"),
    "gpt_untied": written("GPT", [40], **GPT, tied=False),
    **{f"vit_{how}_{pool}": written("ViT", [3, 32, 32], **VIT, how=how, pool=pool) for how in ("flash", "products") for pool in ("token", "mean", "last")},
    **{f"llama_{how}": written("Llama", [40], **LLAMA, how=how) for how in ("grouped", "repeated", "interleaved")},
    "llama_short": written("Llama", [30], **LLAMA),
}

BEYOND = {**WRITTEN, "fcn_resnet50": segmentation("fcn_resnet50"), "deeplabv3_resnet50": segmentation("deeplabv3_resnet50"),
          "dcgan_generator": more("dcgan_generator", [100]), "DiffusionUNet": more("DiffusionUNet", [3, 32, 32], [64]),
          "Speech": more("Speech", [1, 64, 160], classes=False)}


def all_models():
    import torchvision.models
    return [*torchvision.models.list_models(module=torchvision.models), *BEYOND]


def entry(name):
    if name in BEYOND:
        return BEYOND[name]
    import torchvision.models
    size = [3, 299, 299] if name == "inception_v3" else [3, 224, 224]
    outputs = {"googlenet": 3, "inception_v3": 2}.get(name, 1)
    return Entry(f"torchvision.models:{name}", torchvision.models.get_model_builder(name), [size], outputs=outputs)


def parameters(name):
    with eager.without_initialisation():
        return sum(p.numel() for p in entry(name).make().parameters())


def imported(name, count, args, folder):
    """(path of the script, its parameters, {what of APART: how far apart, as text} of a step in both, seconds), or (None,
    what the command says)"""
    path = os.path.join(folder, name + ".lua")
    start = time.time()
    one = entry(name)
    command = [args.memtide, "import", one.source, "-o", path, "--python", sys.executable]
    for shape in one.inputs:
        command += ["--input", ",".join(map(str, shape)) + (f":int64:{one.words}" if one.words else "")]
    if one.args:
        command += ["--args", one.args]
    check = count <= args.check * 1e6
    if check:
        command.append("--check")
    found = subprocess.run(command, capture_output=True, text=True)
    said = found.stderr + found.stdout
    if found.returncode:
        lines = said.strip().splitlines()
        return None, lines[1 if len(lines) > 1 else 0].strip() if lines else f"status {found.returncode}"
    apart = {what: re.search(rf"\b{what}: .*difference (\S+)", said).group(1) for what in APART} if check else {}
    return path, int(re.search(r"(\d+) parameters", said).group(1)), apart, time.time() - start


def grouped(value):
    return f"{value:,}" if isinstance(value, int) else value


def predicted(path, args, *settings):
    """The row of one cell"""
    command = [args.memtide, "predict", path, "-q", "--json", "--set", f"batch={BATCH}", "--set", "precision=fp32"]
    for setting in settings:
        command += ["--set", setting]
    found = subprocess.run(command, capture_output=True, text=True)
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    return rows[0] if rows else {"reason": found.stderr.strip()}


def made(name):
    """The model on the default device; constructors such as RegNet's compute with numbers, which the fake one lacks"""
    device = torch.get_default_device()
    with torch.device("cpu"):
        model = entry(name).make()
    if device.type != "cpu":
        eager.move(model, device, torch.preserve_format)
    return model


def case_of(name):
    one = entry(name)
    loss = nn.CrossEntropyLoss() if one.classes else nn.MSELoss()
    return SimpleNamespace(
        name=name, module=lambda: made(name), inputs=lambda: [(shape, torch.int64 if one.words else torch.float32) for shape in one.inputs], batch=BATCH,
        precision="fp32", accumulate=1, mode="train", world=1, rank=0, pytorch={}, settings={},
        optimizer=SimpleNamespace(kind="SGD", options={"lr": 0.01, "momentum": 0.9}),
        of_classes=lambda: one.classes, criteria=lambda: [(1, loss)] * one.outputs)


def original(name):
    return eager.parse(eager.pytorch_text(case_of(name)))


def predicted_events(path, args):
    found = subprocess.run([args.memtide, "dump", path, "--set", "framework=pytorch", "--set", f"batch={BATCH}",
                            "--set", "precision=fp32"], capture_output=True, text=True)
    return eager.parse(found.stdout) if found.returncode == 0 else None


def compared(name, path, args):
    """(peak of the original, peak that is predicted, what is equal); a model that the fake device cannot run has no peak"""
    try:
        expected = original(name)
    except RuntimeError as error:
        return None, None, f"not on the fake device: {str(error).splitlines()[0]}"
    found = predicted_events(path, args)
    if not found:
        return eager.peak(expected), None, "not predicted"
    place = eager.first_difference(expected, found)
    if place and args.show:
        eager.show(expected, found, place[0])
    what = "every event" if not place else f"{place[1]} at {place[0]} of {len(expected)}"
    return eager.peak(expected), eager.peak(found), what


def faults(as_many, apart, ours, theirs, there):
    """What is wrong with an imported model: its row, both peaks of PyTorch's step; a model that the fake device cannot run has
    no peak there"""
    if not as_many:
        yield "other parameters"
    for what, most in APART.items():
        if what in apart and not float(apart[what]) <= most:
            yield f"{what} {apart[what]} apart"
    if "predicted_peak_bytes" not in ours:
        yield "not predicted"
    if theirs is None and there is not None or theirs and abs(theirs - there) > PEAK * there:
        yield f"PyTorch's peak {theirs}, on fakegpu {there}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memtide", default="build/memtide")
    parser.add_argument("--only", help="names of models")
    parser.add_argument("--check", type=float, default=0, help="million parameters of a model of which a step is run in both")
    parser.add_argument("--show", action="store_true", help="the first difference of events")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else all_models()
    torch.set_num_threads(1)
    fakegpu.gpu(sms=108, threads=2048, workspace=8519680)
    print("| model | parameters | loss apart | gradients apart | memtide's peak | PyTorch's peak, predicted | on fakegpu | "
          "equal | s |")
    print("| :-- | --: | --: | --: | --: | --: | --: | :-- | --: |")
    counts = {"imported": 0, "parameters equal": 0, "run in both": 0, "peaks equal": 0, "every event": 0}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            expected = parameters(name)
            path, count, *rest = imported(name, expected, args, folder)
            if not path:
                print(f"| {name} | {count} | | | | | | | |", flush=True)
                wrong.append(f"{name}: not imported")
                continue
            apart, seconds = rest
            counts["imported"] += 1
            counts["parameters equal"] += count == expected
            counts["run in both"] += bool(apart)
            ours, (there, theirs, what) = predicted(path, args), compared(name, path, args)
            counts["peaks equal"] += there is not None and there == theirs
            counts["every event"] += what == "every event"
            told = grouped(count) if count == expected else f"{count}, expected {expected}"
            peaks = [grouped(peak) for peak in (ours.get("predicted_peak_bytes", ours.get("reason")), theirs, there)]
            print(f"| {name} | {told} | {' | '.join(apart.get(one, '') for one in APART)} | {' | '.join(map(str, peaks))} | {what} | "
                  f"{seconds:.0f} |", flush=True)
            wrong += [f"{name}: {fault}" for fault in faults(count == expected, apart, ours, theirs, there)]
    print(f"\n{len(names)} models: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    if wrong:
        sys.exit("import.py: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
