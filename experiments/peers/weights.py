"""Weights and batches from files, into PyTorch; without a package but torch."""
import json
import struct

import torch

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
         "I64": torch.int64}


def read(path):
    """The tensors of a safetensors file, by name."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = bytearray(f.read())
    tensors = {}
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            tensors[name] = torch.frombuffer(data[begin:end], dtype=TYPES[t["dtype"]]).reshape(t["shape"])
    return tensors


def read_array(path, dtype):
    with open(path, "rb") as f:
        return torch.frombuffer(bytearray(f.read()), dtype=dtype)
