#!/usr/bin/env python3
"""The networks of experiments/peers.lua trained by PyTorch, one CSV row of memtide's columns for each setting.

  pytorch.py --like peers.csv --csv pytorch.csv          the rows of a file that memtide wrote, with each engine
  pytorch.py --model mlp --batch 64,128 --csv mlp.csv    every combination of these

What is measured is the strongest plain form: channels_last, fused optimizers, gradients set to None, TF32 on for
convolutions and matrix products alike (tf32) or off for both (all others), one fixed batch of random data that is on
the device already. Each row is a process of its own; step_ms is the median over its steps, by CUDA events without a
synchronisation between steps. peak_bytes is max_memory_allocated, reserved_bytes is max_memory_reserved, both of the
timed steps alone, with the cache emptied before. Rows that are in the file with status ok, oom, diverged or skipped are
not measured again.
"""
import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections import namedtuple
from datetime import datetime, timezone

from networks import NETWORKS
from rows import KEYS, Writer, columns, read

# mode: of torch.compile; graph: the whole step is one CUDA graph; benchmark: cuDNN's plans are tried out
Engine = namedtuple("Engine", "mode graph benchmark")
ENGINES = {
    "eager": Engine(None, False, False),
    "eager_benchmark": Engine(None, False, True),
    "cuda_graph": Engine(None, True, True),
    "compile": Engine("default", False, False),
    "compile_reduce_overhead": Engine("reduce-overhead", False, False),
    "compile_max_autotune": Engine("max-autotune", False, True),
}
# autocast: to this type; weights: of this type
Precision = namedtuple("Precision", "autocast weights tf32 scaler")
PRECISIONS = {
    "fp32": Precision(None, None, False, False),
    "tf32": Precision(None, None, True, False),
    "amp_fp16": Precision("float16", None, False, True),
    "amp_bf16": Precision("bfloat16", None, False, False),
    "fp16": Precision(None, "float16", False, False),
    "bf16": Precision(None, "bfloat16", False, False),
}
DEFAULTS = {"device": "cuda:0", "batch": "64", "accumulate": "1", "precision": "fp32", "checkpoint": "none",
            "inplace": "marked", "mode": "train", "optimizer": "Adam", "allocator": "caching", "workspace_limit": ""}
SETTLED = ("ok", "oom", "diverged", "nan", "skipped")  # nan: diverged, in rows of earlier versions


class Unsupported(Exception):
    """This setting has no counterpart in PyTorch, or in this version of it."""


# ---- one measurement, in its own process

def make_optimizer(torch, parameters, text, capturable):
    """From the text in the column: "Adam", "SGD lr=0.01 momentum=0.9"."""
    kind, *options = text.split()
    values = {"lr": 1e-3} if kind == "SGD" else {}  # required in some versions
    try:
        pairs = (option.split("=") for option in options)
        values.update((name, value == "true" or float(value)) for name, value in pairs)
    except ValueError:
        raise Unsupported(f"optimizer {text}") from None
    if capturable and kind != "SGD":
        values["capturable"] = True
    parameters = list(parameters)
    try:
        return getattr(torch.optim, kind)(parameters, fused=True, **values)
    except (RuntimeError, TypeError):  # not for this device or kind in this version
        return getattr(torch.optim, kind)(parameters, **values)


def make_scaler(torch, device, enabled):
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)


def make_loss(torch, model, precision, device, engine):
    criterion = torch.nn.CrossEntropyLoss()
    low = getattr(torch, precision.autocast or "float32")

    def loss_of(x, y):
        if not precision.autocast:
            return criterion(model(x), y)
        with torch.autocast(device.type, dtype=low):
            return criterion(model(x), y)

    if not engine.mode:
        return loss_of
    if not hasattr(torch, "compile"):
        raise Unsupported(f"PyTorch {torch.__version__} has no torch.compile")
    return torch.compile(loss_of, mode=engine.mode)


def make_step(torch, cell, model, engine, device):
    """One update over `accumulate` micro-batches, or one evaluation; returns the loss, still on the device."""
    precision, accumulate = PRECISIONS[cell["precision"]], int(cell["accumulate"])
    loss_of = make_loss(torch, model, precision, device, engine)
    mark = getattr(getattr(torch, "compiler", None), "cudagraph_mark_step_begin", lambda: None)
    if cell["mode"] == "eval":
        model.eval()

        def evaluate(x, y):
            mark()
            with torch.no_grad():
                return loss_of(x, y)
        return evaluate, None
    optimizer = make_optimizer(torch, model.parameters(), cell["optimizer"], engine.graph)
    scaler = make_scaler(torch, device, precision.scaler)

    def train(x, y):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(accumulate):
            mark()
            loss = loss_of(x, y)
            scaler.scale(loss / accumulate if accumulate > 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()
    return train, optimizer


def captured(torch, step):
    """The step as one CUDA graph, after a few steps that make what is made only once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss
    return replay


def time_cuda(torch, step, steps):
    """Milliseconds from each step's begin to the next one's."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        loss = step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in zip(events, events[1:])], loss.item()


def time_cpu(step, steps):
    """The same; what is read has been computed."""
    begins = [time.perf_counter()]
    for _ in range(steps):
        loss = step().item()
        begins.append(time.perf_counter())
    return [(b - a) * 1e3 for a, b in zip(begins, begins[1:])], loss


def tensor_bytes(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def cpu_peak(torch, step, alive):
    """Highest sum of live tensor bytes during one step: the profiler's events on top of what was alive before."""
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    live = peak = 0
    for event in sorted((e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"),
                        key=lambda e: e.start_us() if hasattr(e, "start_us") else e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return alive + peak


def draw_batch(torch, network, cell):
    shape = (int(cell["batch"]), *network.input)
    x = torch.randint(0, network.tokens, shape) if network.tokens else torch.randn(shape)
    return x, torch.randint(0, network.classes, (shape[0] * network.labels,))


def read_start(model, network, cell):
    """Weights and batches that start.lua has written."""
    import torch
    from weights import read, read_array
    loaded = model.load_state_dict(read(f"{cell['start']}/weights"), strict=False)
    if loaded.unexpected_keys or set(loaded.missing_keys) - {"lm_head.weight"}:  # tied to the embedding
        raise ValueError(f"other weights: {loaded}")
    for i in range(1, 1 + cell["batches"]):
        x = read_array(f"{cell['start']}/x{i}", torch.float32).reshape(int(cell["batch"]), *network.input)
        y = read_array(f"{cell['start']}/y{i}", torch.int32).long()
        yield x.long() if network.tokens else x, y


def set_up(torch, cell, engine):
    device, precision = torch.device(cell["device"]), PRECISIONS[cell["precision"]]
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = engine.benchmark
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision.tf32
    network = NETWORKS[cell["network"]]
    weights = getattr(torch, precision.weights or "float32")
    image = torch.channels_last if len(network.input) == 3 else torch.contiguous_format
    model = network.build(torch.nn)
    batches = list(read_start(model, network, cell)) if "start" in cell else [draw_batch(torch, network, cell)]
    batches = [(x.to(device) if network.tokens else x.to(device, weights).contiguous(memory_format=image), y.to(device))
               for x, y in batches]
    return device, model.to(device, weights).to(memory_format=image), batches


def measure_cuda(torch, step, steps, engine):
    if not engine.graph:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    times, loss = time_cuda(torch, step, steps)
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    return times, loss, {
        "peak_bytes": torch.cuda.max_memory_allocated(), "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(), "device_used_bytes": total - free,
        "untracked_bytes": total - free - reserved, "device_name": torch.cuda.get_device_name(),
        "driver": f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
    }


def measure_cpu(torch, step, steps, model, optimizer, data):
    times, loss = time_cpu(step, steps)
    alive = tensor_bytes(data) + tensor_bytes(model.parameters())
    if optimizer:
        optimizer.zero_grad(set_to_none=True)
        alive += tensor_bytes(t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t))
    return times, loss, {"peak_bytes": cpu_peak(torch, step, alive), "allocated_bytes": alive,
                         "device_name": f"CPU, {torch.get_num_threads()} threads"}


def quantile(values, q):
    values = sorted(values)
    at = q * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def measure(cell, steps, warmup):
    """The measured columns of one cell."""
    import torch
    engine = ENGINES[cell["engine"]]
    if cell["device"] != "cpu" and not torch.cuda.is_available():
        raise Unsupported(f"PyTorch {torch.__version__} finds no CUDA device")
    device, model, batches = set_up(torch, cell, engine)
    if engine.graph and device.type == "cpu":
        raise Unsupported("CUDA graphs on the CPU")
    run, optimizer = make_step(torch, cell, model, engine, device)
    losses = [run(*batch).item() for batch in batches]
    x, y = batches.pop(0)
    batches.clear()
    step = lambda: run(x, y)
    for _ in range(max(warmup - len(losses), 0)):
        step()
    if engine.graph:
        step = captured(torch, step)
    times, last, found = (measure_cuda(torch, step, steps, engine) if device.type == "cuda"
                          else measure_cpu(torch, step, steps, model, optimizer, (x, y)))
    median = statistics.median(times)
    found.update({
        "status": "ok" if math.isfinite(last) else "diverged", "weights_bytes": tensor_bytes(model.parameters()),
        "steps": steps, "step_ms": f"{median:.6g}", "step_ms_min": f"{min(times):.6g}",
        "step_ms_p90": f"{quantile(times, 0.9):.6g}", "seed": 1,
        "samples_per_s": f"{int(cell['batch']) * int(cell['accumulate']) / median * 1e3:.6g}",
        "loss_first": losses[0], "loss_last": last, "losses": losses, "version": f"torch {torch.__version__}",
    })
    return found


def measure_or_say_why(cell, steps, warmup):
    try:
        return measure(cell, steps, warmup)
    except Unsupported as e:
        return {"status": "skipped", "reason": str(e)}
    except Exception as e:  # whatever PyTorch raises is this row's result
        oom = "out of memory" in str(e)
        text = " ".join(str(e).split())[:200]
        return {"status": "oom" if oom else "error", "reason": f"{type(e).__name__}: {text}"}


# ---- which cells

def unsupported(cell):
    """Why a setting cannot be had here, or None."""
    if cell["network"] not in NETWORKS:
        return f"no network {cell['network']} here: {', '.join(NETWORKS)}"
    if cell["precision"] not in PRECISIONS:
        return f"precision {cell['precision']} has no counterpart in PyTorch"
    if cell["checkpoint"] != "none" or cell["inplace"] not in ("marked", "false"):
        return "checkpointing and in-place passes are not done to PyTorch's networks"
    return None


def cells_like(args):
    names = dict(pair.split("=") for pair in args.names.split(",") if pair)
    seen = set()
    for row in read(args.like)[1]:
        key = tuple(row[name] for name in KEYS)
        if key not in seen:
            seen.add(key)
            yield {**DEFAULTS, **{name: row[name] for name in ["experiment", "case"] + KEYS},
                   "network": names.get(row["model"], row["model"])}


def cells_listed(args):
    axes = {name: getattr(args, name).split(",") for name in ("model", "batch", "accumulate", "precision", "mode")}
    for values in itertools.product(*axes.values()):
        cell = {"experiment": "pytorch", **DEFAULTS, "optimizer": args.optimizer, **dict(zip(axes, values))}
        cell.update(network=cell["model"], device=args.device,
                    effective_batch=str(int(cell["batch"]) * int(cell["accumulate"])))
        yield cell


def child(cell, args):
    """measure_or_say_why in another process."""
    command = [sys.executable, __file__, "--one", json.dumps(cell), "--steps", str(args.steps),
               "--warmup", str(args.warmup)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "reason": f"not done after {args.timeout} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1][:200]
        return {"status": "crashed", "reason": f"exit status {done.returncode}: {last}"}
    return json.loads(done.stdout.splitlines()[-1])


def run_all(cells, args):
    engines = args.engines.split(",")
    for engine in engines:
        if engine not in ENGINES:
            raise SystemExit(f"unknown engine {engine}; known: {', '.join(ENGINES)}")
    file = Writer(args.csv, columns("engine"))
    names = KEYS + ["engine", "repeat"]
    settled = {tuple(row[name] for name in names) for row in file.rows if row["status"] in SETTLED}
    # a process of each, then the next round: what drifts meets all alike
    for repeat, cell, engine in itertools.product(range(1, args.processes + 1), cells, engines):
        row = {**cell, "engine": engine, "repeat": str(repeat),
               "graph": str(ENGINES[engine].graph).lower(),
               "started_at": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
        if tuple(row[name] for name in names) in settled:
            continue
        why = unsupported(cell)
        row.update({"status": "skipped", "reason": why} if why else child({**cell, "engine": engine}, args))
        file.append(row)
        print(f"{cell['model']} batch={cell['batch']} accumulate={cell['accumulate']} {cell['precision']} {engine} "
              f"[{repeat}]: {row['status']} {row.get('step_ms') or row.get('reason', '')}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", metavar="CSV", help="take the settings from this file of memtide's")
    parser.add_argument("--names", default="", metavar="A=B,...",
                        help="with --like: the network of rows whose column model says A is B")
    parser.add_argument("--model", default=",".join(NETWORKS))
    for name in "device", "batch", "accumulate", "precision", "mode", "optimizer":
        parser.add_argument("--" + name, default=DEFAULTS[name])
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--csv", default="pytorch.csv")
    parser.add_argument("--steps", type=int, default=50, help="timed, in each process")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--processes", type=int, default=3, help="rows of each setting: column repeat")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one process")
    parser.add_argument("--header", action="store_true", help="print the header and stop")
    parser.add_argument("--one", metavar="JSON", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.header:
        print(",".join(columns("engine")))
    elif args.one:
        print(json.dumps(measure_or_say_why(json.loads(args.one), args.steps, args.warmup)))
    else:
        run_all(list(cells_like(args) if args.like else cells_listed(args)), args)


if __name__ == "__main__":
    main()
