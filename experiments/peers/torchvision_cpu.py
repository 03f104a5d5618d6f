#!/usr/bin/env python3
"""Steps of torchvision's models on the CPU, as `memtide import` writes them, beside PyTorch's own: a table in Markdown.

    python3 experiments/peers/torchvision_cpu.py --memtide build/memtide [--models NAME,NAME] [--batch 8] [--rounds 3]

needs torchvision beside PyTorch. Both: fp32, SGD with momentum, random images of the size that the model is for: memtide
makes a batch for each step, PyTorch keeps one. PyTorch in channels_last, as `make bench` has it. Before a model is timed,
one step is made in both from equal weights, and losses, outputs and gradients are compared (memtide import --check). Then
rounds alternate between the two, each in a process of its own; printed are the medians of the rounds' medians and their
ratio. of the roof: the least time of memtide's ops on this machine, as a part of its step's time (memtide profile)."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

MODELS = ["alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "mnasnet1_0", "mobilenet_v2",
          "mobilenet_v3_large", "regnet_y_800mf", "resnet18", "resnet50", "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_1",
          "swin_t", "vgg11", "vit_b_16"]
WARMUP, STEPS = 1, 4
# How far a step may be from PyTorch's: the loss, of about 7; the norm of all gradients, as a part of it. Inception v3 is 3e-5 and 2.4e-4.
APART = {"loss": 1e-4, "gradients": 1e-3}
ONE_OUTPUT = {"aux_logits": False, "init_weights": False}
PLAIN = {"googlenet": ONE_OUTPUT, "inception_v3": ONE_OUTPUT}  # options


def size_of(name):
    return 299 if name == "inception_v3" else 224


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done


def memtide(args, script):
    """Milliseconds of a step, and the part of them that its ops need at the roof"""
    found = json.loads(run([args.memtide, "profile", script, "--set", f"batch={args.batch}", "--set", "precision=fp32",
                            "--steps", str(STEPS), "--json"]).stdout.splitlines()[-1])
    return found["step_seconds"] * 1e3, found["roof_seconds"] / found["step_seconds"]


def pytorch(name, batch, threads):
    """Milliseconds of a step, in this process"""
    import torch
    import torchvision.models
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    model = torchvision.models.get_model(name, **PLAIN.get(name, {})).train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(batch, 3, size_of(name), size_of(name)).to(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,))
    times = []
    for _ in range(WARMUP + STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARMUP:]) * 1e3


def write(args, name, script):
    """Imports the model; ends the program where its step is not PyTorch's."""
    said = run([args.memtide, "import", f"torchvision.models:{name}", "-o", script, "--python", args.python, "--input",
                f"3,{size_of(name)},{size_of(name)}", "--check",
                *(["--args", ",".join(f"{k}={v}" for k, v in PLAIN[name].items())] if name in PLAIN else [])]).stderr
    for what, most in APART.items():
        found = re.search(rf"\b{what}: .*difference ([0-9.e+-]+)", said)
        if not found or not float(found[1]) <= most:
            sys.exit(f"{name}: {what} more than {most} apart:\n{said}")


def compare(args, name, folder):
    script = os.path.join(folder, f"{name}.lua")
    write(args, name, script)
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(memtide(args, script))
        theirs.append(float(run([args.python, os.path.abspath(__file__), "--one", name, "--batch", str(args.batch),
                                 "--threads", str(args.threads)]).stdout))
    a, b = statistics.median(x[0] for x in ours), statistics.median(theirs)
    return f"| {name} | {a:.0f} | {b:.0f} | {a / b:.2f} | {100 * statistics.median(x[1] for x in ours):.0f} % | {os.getloadavg()[0]:.1f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memtide", default="build/memtide")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torchvision")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.one:
        print(pytorch(args.one, args.batch, args.threads))
        return
    print("| model | memtide, ms | PyTorch, ms | ratio | of the roof | load |\n| :-- | --: | --: | --: | --: | --: |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models.split(","):
            print(compare(args, name, folder), flush=True)


if __name__ == "__main__":
    main()
