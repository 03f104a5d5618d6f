"""Writes core/eager/conv_table.def: the workspaces that cuDNN wants for the convolutions of common networks, on the cards of
core/eager/cards.def, none of which need be here. Needs the planning library, built with the cuDNN of PyTorch's version:

    make build/memtide_plan.so BUILD=... CUDNN=.../nvidia/cudnn/include CUDNN_LIB=.../nvidia/cudnn/lib
    LD_LIBRARY_PATH=.../nvidia/cudnn/lib python tests/peers/conv_table.py build/memtide_plan.so > core/eager/conv_table.def
"""
import ctypes
import re
import sys

BATCHES = 16, 32, 64, 128
TYPES = {"f32": 0, "f16": 2, "bf16": 1}  # DType
PASSES = "forward", "data", "weights"    # ConvPass

# (channels in, channels out, side of the input, kernel, stride, padding) of each network's convolutions
ARTICLE = [(3, 64, 32, 3, 1, 0), (64, 128, 30, 3, 1, 0), (3, 32, 32, 3, 1, 0), (32, 64, 30, 3, 1, 0)]
LENET = [(1, 6, 28, 5, 1, 2), (6, 16, 14, 5, 1, 0)]
SIMPLE = [(1, 16, 28, 3, 1, 1)]
VGG = [(3, 64, 224, 3, 1, 1), (64, 64, 224, 3, 1, 1)] + [
    convolution for width, side in ((64, 112), (128, 56), (256, 28)) for convolution in
    ((width, 2 * width, side, 3, 1, 1), (2 * width, 2 * width, side, 3, 1, 1))] + [(512, 512, 14, 3, 1, 1)]
STEM = [(3, 64, 224, 7, 2, 3)]
BASIC = [(64, 64, 56, 3, 1, 1)] + [  # ResNet-18 and 34
    convolution for width, side in ((64, 56), (128, 28), (256, 14)) for convolution in
    ((width, 2 * width, side, 3, 2, 1), (width, 2 * width, side, 1, 2, 0), (2 * width, 2 * width, side // 2, 3, 1, 1))]
BOTTLENECK = [(64, 64, 56, 1, 1, 0), (64, 256, 56, 1, 1, 0), (256, 64, 56, 1, 1, 0)] + [  # ResNet-50, 101 and 152
    convolution for width, side in ((256, 56), (512, 28), (1024, 14)) for convolution in
    ((width, width // 2, side, 1, 1, 0), (width // 2, width // 2, side, 3, 2, 1), (width, 2 * width, side, 1, 2, 0),
     (width // 2, 2 * width, side // 2, 1, 1, 0), (2 * width, width // 2, side // 2, 1, 1, 0),
     (width // 2, width // 2, side // 2, 3, 1, 1))]
CONVOLUTIONS = sorted({*ARTICLE, *LENET, *SIMPLE, *VGG, *STEM, *BASIC, *BOTTLENECK})


class Card(ctypes.Structure):  # PlanCard
    _fields_ = [("name", ctypes.c_char * 96), ("capability", ctypes.c_int)] + [
        (name, ctypes.c_int64) for name in ("multiprocessors", "threads", "memory", "clock", "memory_clock")]


class Steps(ctypes.Structure):  # ConvSteps
    _fields_ = [(name, ctypes.c_int32 * 2) for name in ("stride", "pad", "dilation")] + [("groups", ctypes.c_int32)]


class Query(ctypes.Structure):  # ConvQuery
    _fields_ = [("which", ctypes.c_int), ("type", ctypes.c_int), ("channels_last", ctypes.c_bool)] + [
        (name, ctypes.c_int64 * 4) for name in "xwy"] + [("steps", Steps)]


class Answer(ctypes.Structure):  # ConvAnswer
    _fields_ = [(name, ctypes.c_size_t) for name in ("first", "most", "version")]


def cards():
    """The first card of each column of the table, in the order of CARD_PLANS"""
    columns = re.search(r"define CARD_PLANS\(X\)(.*)", open("core/eager/card.h").read())[1]
    found = {}
    row = re.compile(r'CARD\("[^"]*",\s*"([^"]*)",\s*(\d+), "[^"]*",\s*' + r"(\d+), " * 5 + r"(\w+),")
    for title, mib, processors, threads, capability, mhz, memory_mhz, column in row.findall(open("core/eager/cards.def").read()):
        found.setdefault(column, Card(title.encode(), int(capability), int(processors), int(threads), int(mib) << 20,
                                      int(mhz) * 1000, int(memory_mhz) * 1000))
    return [found[column] for column in re.findall(r"X\((\w+)\)", columns)]


def query(convolution, batch, which, type_name):
    channels, out, side, kernel, stride, pad = convolution
    after = (side + 2 * pad - kernel) // stride + 1
    steps = Steps((stride, stride), (pad, pad), (1, 1), 1)
    sizes = (batch, channels, side, side), (out, channels, kernel, kernel), (batch, out, after, after)
    text = " ".join([PASSES[which], type_name, *("x".join(map(str, size)) for size in sizes), f"s{stride}x{stride}",
                     f"p{pad}x{pad}", "d1x1"])
    return text, Query(which, TYPES[type_name], False, *((ctypes.c_int64 * 4)(*size) for size in sizes), steps)


def main():
    library = ctypes.CDLL(sys.argv[1])
    abi = ctypes.sizeof(Card) << 32 | ctypes.sizeof(Query) << 16 | 5
    if ctypes.c_uint64.in_dll(library, "memtide_plan_abi").value != abi:
        sys.exit("conv_table.py: the library has other structures than this script")
    rows, answer = {}, Answer()
    for convolution in CONVOLUTIONS:
        for batch in BATCHES:
            for which in range(len(PASSES)):
                for type_name in TYPES:
                    text, asked = query(convolution, batch, which, type_name)
                    rows[text] = [-1 if library.memtide_plan_conv(ctypes.byref(card), ctypes.byref(asked), False,
                                                                  ctypes.byref(answer), None) else answer.first
                                  for card in cards()]
    print(f"/* Written by tests/peers/conv_table.py: bytes by card (CARD_PLANS), -1: cuDNN has no engine. */\n"
          f"enum {{ TABLE_VERSION = {answer.version} }};\nstatic const Row rows[] = {{")
    for text in sorted(rows, key=str.encode):
        print(f'{{"{text}", {{{", ".join(map(str, rows[text]))}}}}},')
    print("};")


if __name__ == "__main__":
    main()
