"""The network of tests/lua/t_weights.lua in PyTorch: loads FOLDER/weights with load_state_dict, and writes weights of
its own in several types; the outputs of each in evaluation mode go into text files. The format is written
here, so that it takes no package but torch."""
import json
import math
import os
import struct
import sys

import torch
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../experiments/peers"))
from weights import TYPES, read


def write(path, tensors):
    names = {dtype: name for name, dtype in TYPES.items()}
    header, data = {}, b""
    for name, t in tensors.items():
        raw = bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist())
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


class Residual(nn.Module):
    def __init__(self, body, shortcut):
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x):
        return self.body(x) + self.shortcut(x)


def network():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), Residual(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()), nn.Conv2d(4, 4, 1)),
        nn.Sequential(nn.Conv2d(4, 3, 2, bias=False), nn.ReLU()), nn.Flatten(),
        nn.Dropout(0.3), nn.Sequential(nn.Linear(3 * 5 * 4, 7), nn.Tanh()), nn.Linear(7, 3)).eval()


def save_outputs(net, path):
    x = torch.tensor([math.sin(i) for i in range(1, 4 * 60 + 1)]).reshape(4, 2, 6, 5)
    with torch.no_grad(), open(path, "w") as f:
        f.writelines(f"{y:.9g}\n" for y in net(x).flatten().tolist())


def main(folder):
    net = network()
    print("#", net.load_state_dict(read(f"{folder}/weights")))
    save_outputs(net, f"{folder}/ours.txt")
    for name in ("f32", "f16", "bf16", "f64"):
        torch.manual_seed(1)
        net = network().to(TYPES[name.upper()])
        write(f"{folder}/torch_{name}", net.state_dict())
        save_outputs(net.float(), f"{folder}/torch_{name}.txt")


if __name__ == "__main__":
    main(sys.argv[1])
