#!/usr/bin/env python3
"""What PyTorch says to listings of the articles that contradict themselves: name,result lines.

  article_listings.py --csv experiments/results/article-listings-pytorch.csv
"""
import argparse
import csv

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from article_cpu import BASE, Loop


def refusal(call):
    """The error that it raises, in its first line"""
    try:
        call()
    except (RuntimeError, ValueError, ImportError) as e:
        return f"{type(e).__name__}: {str(e).splitlines()[0]}"
    return "no error"


def features():
    conv = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Flatten())
    return refusal(lambda: nn.Linear(25088, 10)(conv(torch.randn(64, 3, 32, 32))))


def view():
    """A SimpleCNN of 28 x 28 images with one pooling, read as if there were two"""
    conv = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    out = nn.Linear(16 * 7 * 7, 10)(conv(torch.randn(32, 1, 28, 28)).view(-1, 16 * 7 * 7))
    return refusal(lambda: nn.CrossEntropyLoss()(out, torch.randint(0, 10, (32,))))


def batches(drop_last):
    loader = DataLoader(TensorDataset(torch.zeros(256)), batch_size=100, drop_last=drop_last)
    return " ".join(str(len(x)) for x, in loader)


def import_apex():
    from apex import amp  # noqa: F401


def steps():
    """The loss of the first and the second epoch over the listing's one batch, and what is alive between two"""
    loop, losses = Loop(BASE), []
    for _ in range(2):
        loop.step()
        losses.append(f"{loop.loss.item():.4f}")
    return " ".join(losses), loop.alive()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", default="article-listings-pytorch.csv")
    args = parser.parse_args()
    losses, alive = steps()
    found = {"version": f"torch {torch.__version__}", "in_features": features(), "view": view(), "batches": batches(False),
             "batches with drop_last": batches(True), "apex": refusal(import_apex), "losses": losses, "allocated": alive}
    with open(args.csv, "w", newline="") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(["name", "result"])
        writer.writerows(found.items())
    for name, result in found.items():
        print(f"{name}: {result}")


if __name__ == "__main__":
    main()
