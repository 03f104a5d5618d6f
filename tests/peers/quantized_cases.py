"""Writes tests/oracle/quantized.lua and .safetensors: what bitsandbytes makes of weights, a file of a model that has such
layers, and its losses when the others are trained, for tests/lua/t_quantized.lua.

    cd tests/oracle && python ../peers/quantized_cases.py > quantized.lua        needs torch, bitsandbytes, safetensors

Parts are given as the CRC-32 of their bytes. One thread: torch.mean of many numbers depends on the threads."""
import json
import zlib

import bitsandbytes
import bitsandbytes.functional as F
import numpy
import safetensors.torch
import torch

torch.set_num_threads(1)

# rows, columns: whole blocks of 64, a rest, an odd number of weights, one weight, several nested blocks, many
SHAPES = [(1, 1), (5, 7), (10, 13), (64, 64), (3, 4099), (192, 385), (1024, 1024)]


def numbers(count, scale):
    """The twin of t_quantized.lua's: exact in float64, near to normal, some blocks larger than others."""
    state, out = 12345, numpy.empty(count)
    for i in range(count):
        total = 0
        for _ in range(4):
            state = (state * 1103515245 + 12345) % 2**31
            total += state
        out[i] = (total / 2**31 - 2) * scale * (1 + i // 64 % 7)
    return torch.tensor(out.astype(numpy.float32))


def crc(tensor):
    return f"{zlib.crc32(tensor.contiguous().numpy().tobytes()):08x}"


def four(w, kind, nested):
    codes, state = F.quantize_4bit(w, quant_type=kind, compress_statistics=nested)
    parts = {"weight": codes, "weight.absmax": state.absmax, "weight.quant_map": state.code}
    if nested:
        parts["weight.nested_absmax"] = state.state2.absmax
        parts["weight.nested_quant_map"] = state.state2.code
        parts["weight.nested_offset"] = state.offset.reshape(1)
    return parts, F.dequantize_4bit(codes, state)


def eight(w):
    codes, scale, _ = F.int8_vectorwise_quant(w.half())
    return {"weight": codes, "SCB": scale}, F.int8_vectorwise_dequant(codes, scale)


def trained():
    """A model whose base is quantised, its file, its losses in five steps of SGD. Rows of its weights have a multiple of 64
    numbers, or none of 16: of others bitsandbytes' function for the CPU (0.50.2) makes numbers with scales of other blocks."""
    linear = torch.nn.Linear
    net = torch.nn.Sequential(linear(24, 64), torch.nn.ReLU(),
                              bitsandbytes.nn.Linear4bit(64, 40, quant_type="nf4"), torch.nn.ReLU(),
                              bitsandbytes.nn.Linear4bit(40, 16, quant_type="fp4", compress_statistics=False,
                                                         bias=False),
                              linear(16, 5))
    for i, param in enumerate(net.parameters()):
        param.data = numbers(param.numel(), 0.1 + 0.01 * i).reshape(param.shape)
    net = net.to("cpu")  # quantises
    net[2].bias.requires_grad = False
    safetensors.torch.save_file({key: value.contiguous() for key, value in net.state_dict().items()},
                                "quantized.safetensors")
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    x, losses = numbers(8 * 24, 0.3).reshape(8, 24), []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(net(x), torch.arange(8) % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    print(f"-- by bitsandbytes {bitsandbytes.__version__}, PyTorch {torch.__version__} and tests/peers/quantized_cases.py")
    losses = ", ".join(repr(loss) for loss in trained())
    print(f"return {{losses = {{{losses}}}, cases = {{")
    for rows, columns in SHAPES:
        w = numbers(rows * columns, 0.02).reshape(rows, columns)
        for kind, nested in (("nf4", True), ("nf4", False), ("fp4", True), ("fp4", False), ("int8", False)):
            parts, values = eight(w) if kind == "int8" else four(w, kind, nested)
            sums = ", ".join(f"[{json.dumps(name)}] = \"{crc(part)}\"" for name, part in parts.items())
            print(f"  {{rows = {rows}, columns = {columns}, kind = \"{kind}\", nested = {str(nested).lower()}, "
                  f"values = \"{crc(values)}\",\n   parts = {{{sums}}}}},")
    print("}}")


if __name__ == "__main__":
    main()
