#!/usr/bin/env python3
"""Steps of the networks of `make bench` in fp32 and in bf16 on processors with fewer instructions: `make bench-bf16`.

A step's time is that of the processor, on one thread, which other programs disturb less than a clock does: a run of
many steps less a run of one, each the least of several that take turns. Prints both times, their ratio and both peaks,
which must be those that were predicted.
"""
import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile

STEPS = {"simple_convnet": 8, "resnet18": 8, "gpt": 12, "lstm": 8, "llama": 3, "vit": 4, "vgg16": 1}
BATCH = {"vgg16": 4}  # as `make bench` has it; of others, the script's


def used():
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime + now.ru_stime


def train(program, case, precision, isa, steps, out):
    """Seconds of the processor, and the peak in bytes."""
    if os.path.exists(out):
        os.remove(out)
    begun = used()
    subprocess.run([program, "run", "experiments/peers.lua", "--quiet", "--csv", out, "--case", case, "--steps", str(steps),
                    "--set", f"precision={precision}", "--set", "warmup=1",
                    *(["--set", f"batch={BATCH[case]}"] if case in BATCH else [])], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": isa})
    seconds = used() - begun
    with open(out, newline="") as f:
        row = next(csv.DictReader(f))
    if row["status"] != "ok" or row["peak_bytes"] != row["predicted_peak_bytes"]:
        sys.exit(f"{case} {precision} {isa}: {row['status']} {row['reason']}")
    return seconds, int(row["peak_bytes"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memtide", default="build/memtide")
    parser.add_argument("--precision", default="amp_bf16")
    parser.add_argument("--isas", default="AVX2,AVX512_CORE", help="ONEDNN_MAX_CPU_ISA")
    parser.add_argument("--networks", default=",".join(STEPS))
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    precisions = ["fp32", args.precision]
    print(f"network,instructions,fp32_ms,{args.precision}_ms,ratio,fp32_peak_mb,{args.precision}_peak_mb")
    with tempfile.TemporaryDirectory() as folder:
        for case in args.networks.split(","):
            for isa in args.isas.split(","):
                one, many, peak = {}, {}, {}
                for _ in range(args.rounds):
                    for p in precisions:
                        for least, steps in (one, 1), (many, 1 + STEPS[case]):
                            seconds, peak[p] = train(args.memtide, case, p, isa, steps, os.path.join(folder, "rows.csv"))
                            least[p] = min(seconds, least.get(p, seconds))
                a, b = ((many[p] - one[p]) / STEPS[case] * 1e3 for p in precisions)
                print(f"{case},{isa},{a:.1f},{b:.1f},{b / a:.2f},{peak['fp32'] / 1e6:.1f},{peak[args.precision] / 1e6:.1f}",
                      flush=True)


main()
