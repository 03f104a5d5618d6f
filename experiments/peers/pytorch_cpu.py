#!/usr/bin/env python3
"""Steps of known networks in PyTorch on the CPU, beside memtide in the same run: `make bench`.

Both sides: the rows of experiments/peers.lua, the same optimizer and number of threads. PyTorch in channels_last; bf16
by torch.autocast. First both train from the same weights on the same batches, and their losses are compared. Then
rounds alternate between the two, each in a process of its own; the medians of the rounds' medians and their ratio are
printed. Peak tensor bytes of PyTorch: its profiler's memory events on top of what was alive before the step. roof_share:
the least time of memtide's ops on this machine, by `memtide profile` before the rounds, as a part of memtide_step_ms.
"""
import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import namedtuple

from pytorch import DEFAULTS
from rows import KEYS

FOLDER = os.path.dirname(os.path.abspath(__file__))
# batch: in place of the case's own; steps: timed ones of a round; dropout: the two sides draw other numbers
Bench = namedtuple("Bench", "batch steps dropout", defaults=(None, 10, False))
NETWORKS = {"simple_convnet": Bench(), "resnet18": Bench(), "lstm": Bench(), "gpt": Bench(), "llama": Bench(),
            "vit": Bench(), "vgg16": Bench(batch=4, steps=4, dropout=True)}
# How far losses may be apart, relative: of the first step, and of the later ones, in which Adam, whose updates have the
# size of the learning rate where a gradient is all but 0, too, has made much of little.
PRECISIONS = {"fp32": (1e-5, 0.01), "amp_bf16": (0.01, 0.05)}
WITH_DROPOUT = (0.01, 0.3)
WARMUP = 3  # steps, which are also those whose losses are compared


def run(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def words_of(case, precision, checkpoint):
    """The options of a command of memtide for this setting."""
    settings = {"precision": precision, "checkpoint": checkpoint, "warmup": WARMUP}
    if NETWORKS[case].batch:
        settings["batch"] = NETWORKS[case].batch
    return ["experiments/peers.lua", "--quiet", "--case", case, "--steps", str(NETWORKS[case].steps),
            *(word for name, value in settings.items() for word in ("--set", f"{name}={value}"))]


def memtide(program, words, folder):
    """A row of the results."""
    out = os.path.join(folder, "memtide.csv")
    if os.path.exists(out):
        os.remove(out)
    run([program, "run", *words, "--csv", out])
    with open(out, newline="") as f:
        row = next(csv.DictReader(f))
    if row["status"] != "ok" or row["peak_bytes"] != row["predicted_peak_bytes"]:
        sys.exit(f"memtide: {row['status']} {row['reason']}")
    return row


def pytorch(python, row, folder):
    cell = {**DEFAULTS, **{name: row[name] for name in KEYS}, "checkpoint": "none", "network": row["model"],
            "engine": "eager", "start": folder, "batches": WARMUP}
    found = json.loads(run([python, os.path.join(FOLDER, "pytorch.py"), "--one", json.dumps(cell),
                            "--steps", str(NETWORKS[row["case"]].steps), "--warmup", str(WARMUP)])[-1])
    if found["status"] != "ok":
        sys.exit(f"PyTorch: {found['status']} {found['reason']}")
    return found


def compare(args, case, precision, folder):
    words = words_of(case, precision, args.checkpoint)
    least = json.loads(run([args.memtide, "profile", *words, "--json"])[-1])["roof_seconds"] * 1e3
    ours, theirs = [memtide(args.memtide, words, folder)], []
    losses = run([args.memtide, os.path.join(FOLDER, "start.lua"), case, precision, ours[0]["batch"], str(WARMUP), folder])
    while len(theirs) < args.rounds:
        if theirs:
            ours.append(memtide(args.memtide, words, folder))
        theirs.append(pytorch(args.python, ours[0], folder))
    first, *later = (abs(float(a) / b - 1) for a, b in zip(losses, theirs[0]["losses"]))
    within, later_within = WITH_DROPOUT if NETWORKS[case].dropout else PRECISIONS[precision]
    if first > within or max(later) > later_within or losses[0] != f"{float(ours[0]['loss_first']):.9g}":
        sys.exit(f"{case} {precision}: other losses: {losses}, {ours[0]['loss_first']}, {theirs[0]['losses']}")
    a, b = (statistics.median(float(row["step_ms"]) for row in side) for side in (ours, theirs))
    p, q = int(ours[0]["peak_bytes"]), theirs[0]["peak_bytes"]
    return (f"{case},{ours[0]['batch']},{precision},{args.threads},{args.checkpoint},{a:.2f},{b:.2f},{a / b:.3f},"
            f"{least / a:.2f},{p},{q},{p / q:.3f},{first:.1e},{max(later):.1e},{os.getloadavg()[0]:.1f},{theirs[0]['version']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memtide", default="build/memtide")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--checkpoint", default="none",
                        help="memtide computes activations again, as by its setting; PyTorch does not")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    for case in args.networks.split(","):
        if case not in NETWORKS:
            parser.error(f"no network {case}: {', '.join(NETWORKS)}")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    print("network,batch,precision,threads,checkpoint,memtide_step_ms,pytorch_step_ms,time_ratio,"
          "roof_share,memtide_peak_bytes,pytorch_peak_bytes,peak_ratio,loss_apart,later_losses_apart,load,pytorch")
    with tempfile.TemporaryDirectory() as folder:
        for case, precision in itertools.product(args.networks.split(","), args.precisions.split(",")):
            print(compare(args, case, precision, folder), flush=True)


if __name__ == "__main__":
    main()
