"""Python's side of fakegpu.cpp, whose library FAKEGPU names: tensors live on `fakegpu.device`. Import it after torch."""
import ctypes
import gc
import os
import types

import torch

LIBRARY = os.environ.get("FAKEGPU", "build/fakegpu.so")
torch.ops.load_library(LIBRARY)


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
    manual_seed_all = staticmethod(lambda seed: None)
    get_rng_state = staticmethod(lambda device=0: torch.zeros(16, dtype=torch.uint8))
    set_rng_state = staticmethod(lambda state, device=0: None)


torch.utils.rename_privateuse1_backend("fakegpu")
torch._register_device_module("fakegpu", _Module("torch.fakegpu"))
device = torch.device("fakegpu:0")
_library = ctypes.CDLL(LIBRARY)
_library.fg_count.restype = ctypes.c_int64
_library.fg_ops.restype = _library.fg_layer.restype = ctypes.c_char_p
_library.fg_start()
_marks = []  # (number of events before it, text)
_names = {}  # of modules, by their id
_gpu = [0, 0]  # multiprocessors, threads of each


def gpu(sms, threads, workspace):
    """What ops take inside themselves depends on the GPU: its multiprocessors, threads of each, and cuBLAS's workspace
    in bytes (32 MiB on Hopper)."""
    _gpu[:] = sms, threads
    _library.fg_gpu(*map(ctypes.c_int64, (sms, threads, workspace)))


def clear():
    """Forgets all events and marks; what is alive is not seen to go."""
    gc.collect()
    _marks.clear()
    _names.clear()
    _states.clear()
    _library.fg_clear()


def mark(text):
    _marks.append((_library.fg_count(), text))


def name_layers(model):
    """Events of the model's modules carry their names from now on."""
    _names.update((id(module), name.encode()) for name, module in model.named_modules() if name)


# On a device that is not CUDA PyTorch takes its own cells; what _cudnn_impl of ATen/native/cudnn/RNN.cpp does:

_states = []  # of dropout's random numbers, one for a process


def _dropout_state():
    if not _states:
        torch.empty((), dtype=torch.int64, device=device)  # the seed
        _states.append(torch.empty(48 * _gpu[0] * _gpu[1], dtype=torch.uint8, device=device))
    return _states[0]


def _cudnn(kind):
    own = getattr(torch._VF, kind)
    mode = ["rnn_relu", "rnn_tanh", "lstm", "gru"].index(kind)

    def call(x, hidden, weights, bias, layers, dropout, training, bidirectional, batch_first):
        if x.device.type != device.type:
            return own(x, hidden, weights, bias, layers, dropout, training, bidirectional, batch_first)
        hx, cx = hidden if isinstance(hidden, tuple) else (hidden, None)
        state = _dropout_state() if training and dropout > 0 else None
        first = weights[0].detach()
        buffer = first.as_strided((first.untyped_storage().nbytes() // first.element_size(),), (1,))
        y, hy, cy, _, _ = torch._cudnn_rnn(x, weights, 4 if bias else 2, buffer, hx, cx, mode, hx.size(2), 0, layers, batch_first,
                                           dropout, training, bidirectional, [], state)
        return (y, hy, cy) if cx is not None else (y, hy)

    return call


for _kind in "rnn_relu", "rnn_tanh", "lstm", "gru":
    setattr(torch._VF, _kind, _cudnn(_kind))


def flatten_parameters(rnn):
    """nn.RNNBase.flatten_parameters, which wants CUDA; where each weight begins makes no difference."""
    weights = [getattr(rnn, name) for name in rnn._flat_weights_names]
    gates = {"LSTM": 4, "GRU": 3}.get(rnn.mode, 1)
    both = rnn.hidden_size * (2 if rnn.bidirectional else 1)
    total = sum((both if layer else rnn.input_size) + rnn.hidden_size + 2 for layer in range(rnn.num_layers)) * gates * both
    buffer = torch.zeros(total, dtype=weights[0].dtype, device=weights[0].device)
    for weight in weights:
        weight.data = buffer[:weight.numel()].view(weight.shape)


_call = torch.nn.Module.__call__


def _named_call(self, *args, **options):
    name = _names.get(id(self))
    if name is None:
        return _call(self, *args, **options)
    _library.fg_enter(name)
    try:
        return _call(self, *args, **options)
    finally:
        _library.fg_leave()


torch.nn.Module.__call__ = _named_call


def events():
    """[("alloc", id, bytes, ops outermost first, layer) | ("free", id) | ("mark", text)]; ids count from 1"""
    found, marks = [], list(_marks)
    number, size = ctypes.c_int64(), ctypes.c_int64()
    for i in range(_library.fg_count()):
        while marks and marks[0][0] == i:
            found.append(("mark", marks.pop(0)[1]))
        at = ctypes.c_int64(i)
        _library.fg_event(at, ctypes.byref(number), ctypes.byref(size))
        found.append(("free", number.value) if size.value < 0 else (
            "alloc", number.value, size.value, _library.fg_ops(at).decode(), _library.fg_layer(at).decode()))
    return found + [("mark", text) for _, text in marks]
