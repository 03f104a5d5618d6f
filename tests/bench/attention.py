"""PyTorch's scaled_dot_product_attention beside the rows of tests/bench/attention, case by case.

  python tests/bench/attention.py PROGRAM [its arguments]

Adds GFLOP/s of PyTorch, forward and backward, counted the same way. Without PyTorch the rows stay as they are.
"""
import os
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    torch = None

ROUNDS, ROUND_SECONDS = 5, 0.05
TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def best(run):
    seconds = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        while time.perf_counter() - begin < ROUND_SECONDS:
            start = time.perf_counter()
            run()
            seconds = min(seconds, time.perf_counter() - start)
    return seconds


def peer(row):
    kind, group = getattr(torch, TYPES[row["type"]]), int(row["group"])
    samples, tokens, heads, width = (int(row[k]) for k in ("samples", "tokens", "heads", "width"))
    causal, dropout = row["kind"] == "causal", float(row["dropout"])
    q = torch.randn(samples, heads, tokens, width, dtype=kind, requires_grad=True)
    k, v = (torch.randn(samples, heads // group, tokens, width, dtype=kind, requires_grad=True) for _ in range(2))

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout,
                                                                enable_gqa=group > 1)
    y = forward()
    dy = torch.randn_like(y)
    pairs = tokens * (tokens + 1) if causal else 2 * tokens * tokens
    work = 2e-9 * pairs * width * heads * samples
    return work / best(forward), 2.5 * work / best(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))


def main():
    names = None
    if torch:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    program = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)  # it is over before the peer begins
    for line in program.stdout.splitlines():
        cells = line.split(",")
        if torch and names:
            line += ",%.0f,%.0f" % peer(dict(zip(names, cells)))
        elif torch and cells[0] == "type":
            names, line = cells, line + ",torch_forward,torch_backward"
        print(line, flush=True)
    return program.returncode


sys.exit(main())
