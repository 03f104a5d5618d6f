"""Writes tests/oracle/quantized.lua: what bitsandbytes makes of weights, for tests/lua/t_quantized.lua.

    python tests/peers/quantized_cases.py > tests/oracle/quantized.lua        needs torch and bitsandbytes

Parts are given as the CRC-32 of their bytes. One thread: torch.mean of many numbers depends on the threads."""
import json
import zlib

import bitsandbytes
import bitsandbytes.functional as F
import numpy
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


def main():
    print(f"-- by bitsandbytes {bitsandbytes.__version__}, PyTorch {torch.__version__} and tests/peers/quantized_cases.py")
    print("return {")
    for rows, columns in SHAPES:
        w = numbers(rows * columns, 0.02).reshape(rows, columns)
        for kind, nested in (("nf4", True), ("nf4", False), ("fp4", True), ("fp4", False), ("int8", False)):
            parts, values = eight(w) if kind == "int8" else four(w, kind, nested)
            sums = ", ".join(f"[{json.dumps(name)}] = \"{crc(part)}\"" for name, part in parts.items())
            print(f"  {{rows = {rows}, columns = {columns}, kind = \"{kind}\", nested = {str(nested).lower()}, "
                  f"values = \"{crc(values)}\",\n   parts = {{{sums}}}}},")
    print("}")


if __name__ == "__main__":
    main()
