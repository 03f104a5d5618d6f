#!/usr/bin/env python3
"""What the articles list, in PyTorch on the CPU: a row for each technique, under the names of experiments/article.lua.

  article_cpu.py --csv experiments/results/article-pytorch-cpu.csv

Everything as the articles write it: contiguous tensors, the default optimizer, autocast to fp16 with GradScaler, both
convolutions wrapped in a checkpoint, in the form that is not reentrant and in the one that is. peak_bytes: the most bytes
in tensors during the third step on the same batch, by the profiler's memory events on top of what was alive before it.
allocated_bytes: what that step leaves behind, output and loss in their variables. trained: the layers whose weights
a step has changed. loss_first, loss_last: of the first and the second step.
"""
import argparse
import gc
import hashlib
import os
import platform
from datetime import datetime, timezone

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from pytorch import cpu_peak, tensor_bytes
from rows import Writer, columns

BASE = {"batch": 64, "accumulate": 1, "precision": "fp32", "checkpoint": "none", "inplace": False, "mode": "train",
        "optimizer": "Adam", "width": 64, "size": 32, "kernel": 3, "convolutions": 2, "pool": False}
FLOAT16 = "float16 throughout"
CASES = {
    "baseline, batch 64": {},
    "batch 32": {"batch": 32},
    "half the channels": {"width": 32},
    "mixed precision": {"precision": "amp_bf16"},
    "fp16 and GradScaler, as listed": {"precision": "amp_fp16"},
    FLOAT16: {"precision": "fp16"},
    "accumulation 16 x 4": {"batch": 16, "accumulate": 4},
    "evaluation, no gradients": {"mode": "eval"},
    "checkpointing": {"checkpoint": "sqrt"},
    "checkpoint of both convolutions, as listed": {"checkpoint": "wrapped"},
    "checkpoint of both convolutions, as listed, reentrant": {"checkpoint": "reentrant"},
    "in-place": {"inplace": True},
    "SGD with momentum": {"optimizer": "SGD momentum=0.9"},
    "half the image's side": {"size": 16},
    "pooling after each convolution": {"pool": True},
    "one convolution": {"convolutions": 1},
    "kernels of 1 x 1": {"kernel": 1},
}
AUTOCAST = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}


class ConvNet(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.checkpoint, channels, size, blocks = case["checkpoint"], 3, case["size"], []
        for i in range(1, 1 + case["convolutions"]):
            after = [nn.ReLU(inplace=case["inplace"])] + ([nn.MaxPool2d(2)] if case["pool"] else [])
            blocks.append(nn.Sequential(nn.Conv2d(channels, i * case["width"], case["kernel"]), *after))
            channels, size = i * case["width"], (size - case["kernel"] + 1) // (2 if case["pool"] else 1)
        self.blocks, self.fc = nn.ModuleList(blocks), nn.Linear(channels * size * size, 10)

    def convolutions(self, x):
        for conv, *after in self.blocks:
            if self.checkpoint in ("wrapped", "reentrant"):
                x = checkpoint(conv, x, use_reentrant=self.checkpoint == "reentrant")
            else:
                x = conv(x)
            for layer in after:
                x = layer(x)
        return x

    def forward(self, x):
        if self.checkpoint == "sqrt":  # two segments, as the root of six layers
            layers = [layer for block in self.blocks for layer in block] + [nn.Flatten(), self.fc]
            return checkpoint_sequential(layers, 2, x, use_reentrant=False)
        return self.fc(self.convolutions(x).flatten(1))

    def layers(self):
        return {**{f"conv{i + 1}": block[0] for i, block in enumerate(self.blocks)}, "fc": self.fc}


class Loop:
    """A training step as the articles write it; output and loss are the loop's variables."""

    def __init__(self, case):
        torch.manual_seed(1)
        self.case = case
        low = torch.float16 if case["precision"] == "fp16" else torch.float32
        self.model = ConvNet(case).to(low)
        self.criterion = nn.CrossEntropyLoss()
        self.x = torch.randn(case["batch"], 3, case["size"], case["size"]).to(low)
        self.y = torch.randint(0, 10, (case["batch"],))
        self.scaler = torch.amp.GradScaler("cpu", enabled=case["precision"] == "amp_fp16")
        parameters = list(self.model.parameters())
        if case["optimizer"] == "Adam":  # 1e-8, Adam's own, is 0 in fp16
            self.optimizer = torch.optim.Adam(parameters, lr=1e-3, eps=1e-4 if low == torch.float16 else 1e-8)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
        self.output = self.loss = None

    def forward(self):
        low = AUTOCAST.get(self.case["precision"])
        with torch.autocast("cpu", dtype=low or torch.bfloat16, enabled=low is not None):
            self.output = self.model(self.x)
            self.loss = self.criterion(self.output, self.y)

    def step(self):
        if self.case["mode"] == "eval":
            self.model.eval()
            with torch.no_grad():
                return self.forward()
        self.optimizer.zero_grad()
        for _ in range(self.case["accumulate"]):
            self.forward()
            self.scaler.scale(self.loss / self.case["accumulate"]).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def alive(self):
        """Bytes of the storages that the loop keeps from one step to the next."""
        kept = [self.x, self.y, self.output, self.loss, *self.model.parameters()]
        kept += [p.grad for p in self.model.parameters()]
        kept += [t for state in self.optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
        gc.collect()
        return tensor_bytes({t.data_ptr(): t for t in kept if t is not None}.values())


def measured(settings):
    case = {**BASE, **settings}
    loop = Loop(case)
    before = {name: layer.weight.detach().clone() for name, layer in loop.model.layers().items()}
    losses = []
    for _ in range(2):
        loop.step()
        losses.append(loop.loss.item())
    trained = [name for name, layer in loop.model.layers().items() if not torch.equal(layer.weight, before[name])]
    del before
    # The profiler does not see what was made before it go: so what a step frees first is freed here.
    loop.optimizer.zero_grad()
    loop.output = loop.loss = None
    peak = cpu_peak(torch, loop.step, loop.alive())
    return {"status": "ok", "model": "ConvNet", "batch": case["batch"], "accumulate": case["accumulate"],
            "effective_batch": case["batch"] * case["accumulate"], "precision": case["precision"],
            "checkpoint": case["checkpoint"], "inplace": str(case["inplace"]).lower(), "mode": case["mode"],
            "optimizer": case["optimizer"], "peak_bytes": peak, "allocated_bytes": loop.alive(),
            "weights_bytes": tensor_bytes(loop.model.parameters()), "loss_first": losses[0], "loss_last": losses[1],
            "seed": 1, "trained": " ".join(trained)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", default="article-pytorch-cpu.csv", help="a new file")
    args = parser.parse_args()
    if os.path.exists(args.csv):
        parser.error(f"{args.csv} is there already")
    torch.set_num_threads(1)  # each thread has buffers of its own
    file = Writer(args.csv, columns("trained"))
    for name, settings in CASES.items():
        digest = hashlib.sha256(f"{name} {settings}".encode()).hexdigest()
        row = {"experiment": "article", "case": name, "cell": f"{digest[:12]}-{digest[12:18]}-{digest[18:24]}",
               "repeat": 1, "device": "cpu", "device_name": cpu_name(),
               "version": f"torch {torch.__version__}",
               "started_at": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), **measured(settings)}
        file.append(row)
        print(f"{name}: {row['peak_bytes']} bytes, losses {row['loss_first']:.4f} and {row['loss_last']:.4f}, "
              f"trained: {row['trained']}", flush=True)


def cpu_name():
    """As memtide names it, without the library"""
    with open("/proc/cpuinfo") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()
