"""torchvision's classification models, imported (make peer-import):

    FAKEGPU=build/fakegpu.so python3 tests/peers/import.py --memtide build/memtide [--only NAME,NAME] [--check MILLIONS]

needs torchvision beside PyTorch. For each model: is it imported; has the script as many parameters; what peak has memtide's
step, and what PyTorch's, as memtide predicts it from the imported script; and is that every allocation and every free of
the original model on fakegpu.cpp's device? Of a model of at most so many million parameters a step is also run in both, on
the CPU, from the same weights (memtide import --check). The table is Markdown."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import torch
from torch import nn

import eager
import fakegpu

BATCH = 2


def all_models():
    import torchvision.models
    return torchvision.models.list_models(module=torchvision.models)


def builder(name):
    import torchvision.models
    return torchvision.models.get_model_builder(name)


def size_of(name):
    return [3, 299, 299] if name == "inception_v3" else [3, 224, 224]


def parameters(name):
    with eager.without_initialisation():
        return sum(p.numel() for p in builder(name)().parameters())


def imported(name, count, args, folder):
    """(path of the script, its parameters, how far loss and gradient norm are apart, seconds), or (None, what the command
    says)"""
    path = os.path.join(folder, name + ".lua")
    start = time.time()
    command = [args.memtide, "import", f"torchvision.models:{name}", "-o", path, "--python", sys.executable,
               "--input", ",".join(map(str, size_of(name)))]
    if count <= args.check * 1e6:
        command.append("--check")
    found = subprocess.run(command, capture_output=True, text=True)
    said = found.stderr + found.stdout
    if found.returncode:
        lines = said.strip().splitlines()
        return None, lines[1 if len(lines) > 1 else 0].strip() if lines else f"status {found.returncode}"
    apart = [re.search(pattern, said) for pattern in (r"loss: .*difference (\S+)", r"gradients: norm .*difference (\S+)")]
    return path, int(re.search(r"(\d+) parameters", said).group(1)), [one and one.group(1) for one in apart], \
        time.time() - start


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
        model = builder(name)()
    if device.type != "cpu":
        eager.move(model, device)
    return model


def case_of(name):
    outputs = {"googlenet": 3, "inception_v3": 2}.get(name, 1)
    return SimpleNamespace(
        name=name, module=lambda: made(name), input=size_of(name), batch=BATCH, tokens=False, precision="fp32", accumulate=1,
        mode="train", pytorch={}, optimizer=SimpleNamespace(kind="SGD", options={"lr": 0.01, "momentum": 0.9}),
        of_classes=lambda: True, criteria=lambda: [(1, nn.CrossEntropyLoss())] * outputs)


def original(name):
    return eager.parse(eager.pytorch_text(case_of(name)))


def predicted_events(path, args):
    found = subprocess.run([args.memtide, "dump", path, "--set", "framework=pytorch", "--set", f"batch={BATCH}",
                            "--set", "precision=fp32"], capture_output=True, text=True)
    return eager.parse(found.stdout) if found.returncode == 0 else None


def compared(name, path, args):
    expected, found = original(name), predicted_events(path, args)
    if not found:
        return eager.peak(expected), None, "not predicted"
    place = eager.first_difference(expected, found)
    if place and args.show:
        eager.show(expected, found, place[0])
    what = "every event" if not place else f"{place[1]} at {place[0]} of {len(expected)}"
    return eager.peak(expected), eager.peak(found), what


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
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            expected = parameters(name)
            path, count, *rest = imported(name, expected, args, folder)
            if not path:
                print(f"| {name} | {count} | | | | | | | |", flush=True)
                continue
            (loss, gradients), seconds = rest
            counts["imported"] += 1
            counts["parameters equal"] += count == expected
            counts["run in both"] += loss is not None
            ours, (there, theirs, what) = predicted(path, args), compared(name, path, args)
            counts["peaks equal"] += there == theirs
            counts["every event"] += what == "every event"
            told = str(count) if count == expected else f"{count}, expected {expected}"
            peak = ours.get("predicted_peak_bytes", ours.get("reason"))
            print(f"| {name} | {told} | {loss or ''} | {gradients or ''} | {peak} | {theirs} | {there} | {what} | {seconds:.0f} |",
                  flush=True)
    print(f"\n{len(names)} models: " + ", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
