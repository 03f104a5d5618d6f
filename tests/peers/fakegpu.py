"""fakegpu.py: Python's side of fakegpu.cpp. import after torch; tensors live on device "fakegpu:0"."""
import ctypes
import gc
import os
import types

import torch

LIB = os.environ.get("FAKEGPU", "build/fakegpu.so")
torch.ops.load_library(LIB)


class _Module(types.ModuleType):
    """What PyTorch asks a device's module."""
    _lazy_init = staticmethod(lambda: None)
    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])
    is_bf16_supported = staticmethod(lambda: True)
    manual_seed_all = staticmethod(lambda s: None)
    get_rng_state = staticmethod(lambda d=0: torch.zeros(16, dtype=torch.uint8))
    set_rng_state = staticmethod(lambda s, d=0: None)


torch.utils.rename_privateuse1_backend("fakegpu")
torch._register_device_module("fakegpu", _Module("torch.fakegpu"))
_l = ctypes.CDLL(LIB)
_l.fg_count.restype = ctypes.c_int64
_l.fg_alloc.restype = ctypes.c_int64
_l.fg_op.restype = ctypes.c_char_p
_l.fg_record()
device = torch.device("fakegpu:0")
marks = []


def gpu(sms=132, threads=2048, workspace=8519680, lt=0):
    """What ops take inside themselves depends on the GPU: multiprocessors, threads of each, cuBLAS's workspace (32 MiB on Hopper)."""
    _l.fg_gpu(*(ctypes.c_int64(x) for x in (sms, threads, workspace, lt)))


def clear():
    """Forgets all events and marks; what is alive is not seen to go."""
    gc.collect()
    marks.clear()
    _l.fg_clear()


def mark(text): marks.append((_l.fg_count(), text))
def on(yes): _l.fg_on(int(yes))
def alloc(n): return _l.fg_alloc(ctypes.c_int64(n))
def free(i): _l.fg_free(ctypes.c_int64(i))


def events():
    """[("alloc", id, bytes, ops outermost first) | ("free", id) | ("mark", text)]"""
    out, m = [], list(marks)
    a, b = ctypes.c_int64(), ctypes.c_int64()
    for i in range(_l.fg_count()):
        while m and m[0][0] == i: out.append(("mark", m.pop(0)[1]))
        _l.fg_get(ctypes.c_int64(i), ctypes.byref(a), ctypes.byref(b))
        out.append(("free", a.value) if b.value < 0 else ("alloc", a.value, b.value, _l.fg_op(ctypes.c_int64(i)).decode(), ""))
    return out + [("mark", t) for _, t in m]


def events_between(start, end):
    out = []
    a, b = ctypes.c_int64(), ctypes.c_int64()
    for i in range(start, end):
        _l.fg_get(ctypes.c_int64(i), ctypes.byref(a), ctypes.byref(b))
        out.append(("free", a.value) if b.value < 0 else ("alloc", a.value, b.value, _l.fg_op(ctypes.c_int64(i)).decode()))
    return out
