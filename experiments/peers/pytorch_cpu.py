#!/usr/bin/env python3
"""The article's step in PyTorch on the CPU, beside memtide in the same run: `make bench`.

Both sides: the same network, batch, optimizer, number of threads, nonzero data. PyTorch in channels_last; bf16 by
torch.autocast. Rounds alternate between the two, each in a process of its own; the medians of the rounds' medians and
their ratio are printed. Peak tensor bytes of PyTorch: its profiler's memory events on top of what was alive before the
step.
"""
import argparse, csv, json, os, statistics, subprocess, sys, tempfile, time

SETTINGS = [(64, "fp32"), (64, "amp_bf16")]


def network(torch):
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Flatten(),
                         nn.Linear(128 * 28 * 28, 10))


def peak_bytes(torch, step, alive):
    """Highest sum of live tensor bytes during one step."""
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    live = peak = 0
    for event in sorted((e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"),
                        key=lambda e: e.start_us() if hasattr(e, "start_us") else e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return alive + peak


def measure(batch, precision, steps, threads):
    import torch
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = network(torch).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = torch.nn.CrossEntropyLoss()
    x = torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,))

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "amp_bf16"):
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(3):
        step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    optimizer.zero_grad(set_to_none=True)
    state = sum(t.nbytes if hasattr(t, "nbytes") else t.numel() * t.element_size()
                for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    alive = weights + state + x.numel() * x.element_size() + y.numel() * y.element_size()
    return {"step_ms": statistics.median(times) * 1e3, "peak_bytes": peak_bytes(torch, step, alive),
            "version": torch.__version__}


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


def pytorch(python, batch, precision, steps, threads):
    out = subprocess.run([python, __file__, "--one", str(batch), precision, "--steps", str(steps),
                          "--threads", str(threads)],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memtide", default="build/memtide")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--one", nargs=2, metavar=("BATCH", "PRECISION"), help="one PyTorch measurement, as JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(int(args.one[0]), args.one[1], args.steps, args.threads)))
        return
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    print("batch,precision,threads,memtide_step_ms,pytorch_step_ms,time_ratio,"
          "memtide_peak_bytes,pytorch_peak_bytes,peak_ratio,pytorch")
    with tempfile.TemporaryDirectory() as folder:
        for batch, precision in SETTINGS:
            ours, theirs = [], []
            for _ in range(args.rounds):
                ours.append(memtide(args.memtide, batch, precision, args.steps, folder))
                theirs.append(pytorch(args.python, batch, precision, args.steps, args.threads))
            a, b = (statistics.median(r["step_ms"] for r in side) for side in (ours, theirs))
            p, q = ours[0]["peak_bytes"], theirs[0]["peak_bytes"]
            print(f"{batch},{precision},{args.threads},{a:.2f},{b:.2f},{a / b:.3f},"
                  f"{p},{q},{p / q:.3f},{theirs[0]['version']}", flush=True)


if __name__ == "__main__":
    main()
