#!/usr/bin/env python3
"""The article's step in PyTorch on the CPU, beside memtide in the same run: `make bench`.

Both sides: the same network, batch, optimizer, number of threads, nonzero data. PyTorch in channels_last; bf16 by
torch.autocast. Rounds alternate between the two, each in a process of its own; the medians of the rounds' medians and
their ratio are printed. Peak tensor bytes of PyTorch: its profiler's memory events on top of what was alive before the
step.
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

from pytorch import DEFAULTS

SETTINGS = [(64, "fp32"), (64, "amp_bf16")]


def memtide(program, batch, precision, steps, folder):
    out = os.path.join(folder, "memtide.csv")
    if os.path.exists(out):
        os.remove(out)
    subprocess.run([program, "run", "experiments/batch_by_precision.lua", "--quiet", "--csv", out,
                    "--set", f"batch={batch}", "--set", f"precision={precision}", "--set", "accumulate=1",
                    "--steps", str(steps)],
                   check=True, stdout=subprocess.DEVNULL)
    with open(out, newline="") as f:
        row = next(csv.DictReader(f))
    if row["status"] != "ok" or row["peak_bytes"] != row["predicted_peak_bytes"]:
        sys.exit(f"memtide: {row['status']} {row['reason']}")
    return {"step_ms": float(row["step_ms"]), "peak_bytes": int(row["peak_bytes"]), "version": row["version"]}


def pytorch(python, batch, precision, steps):
    cell = {**DEFAULTS, "device": "cpu", "network": "simple_convnet", "batch": str(batch), "precision": precision,
            "engine": "eager"}
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch.py")
    out = subprocess.run([python, script, "--one", json.dumps(cell), "--steps", str(steps), "--warmup", "3"],
                         check=True, capture_output=True, text=True).stdout
    row = json.loads(out.splitlines()[-1])
    if row["status"] != "ok":
        sys.exit(f"PyTorch: {row['status']} {row['reason']}")
    return {"step_ms": float(row["step_ms"]), "peak_bytes": row["peak_bytes"], "version": row["version"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memtide", default="build/memtide")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    print("batch,precision,threads,memtide_step_ms,pytorch_step_ms,time_ratio,"
          "memtide_peak_bytes,pytorch_peak_bytes,peak_ratio,pytorch")
    with tempfile.TemporaryDirectory() as folder:
        for batch, precision in SETTINGS:
            ours, theirs = [], []
            for _ in range(args.rounds):
                ours.append(memtide(args.memtide, batch, precision, args.steps, folder))
                theirs.append(pytorch(args.python, batch, precision, args.steps))
            a, b = (statistics.median(r["step_ms"] for r in side) for side in (ours, theirs))
            p, q = ours[0]["peak_bytes"], theirs[0]["peak_bytes"]
            print(f"{batch},{precision},{args.threads},{a:.2f},{b:.2f},{a / b:.3f},"
                  f"{p},{q},{p / q:.3f},{theirs[0]['version']}", flush=True)


if __name__ == "__main__":
    main()
