"""bitsandbytes on the fake device: what its CUDA operators allocate (bitsandbytes/backends/cuda/ops.py), nothing computed. Import it
after fakegpu. gemm_4bit is the form that dequantises the weight: bitsandbytes' own kernel, which some cards use for few rows, does
not."""
import bitsandbytes
import torch

OPS = torch.library.Library("bitsandbytes", "FRAGMENT")


def on_device(name):
    def register(function):
        OPS.impl(name, function, "PrivateUse1")
        return function
    return register


@on_device("dequantize_blockwise")
def dequantize_blockwise(A, absmax, code, blocksize, dtype):
    return torch.empty_like(A, dtype=dtype)


@on_device("dequantize_4bit")
def dequantize_4bit(A, absmax, blocksize, quant_type, shape, dtype):
    return torch.empty(shape, dtype=dtype, device=A.device)


@on_device("gemm_4bit")
def gemm_4bit(A, B, shapeB, absmax, blocksize, quant_type, bias=None, absmax_8bit=None, absmax_code=None, absmax_offset=None):
    if absmax_8bit is not None:
        codes = torch.empty_like(absmax_8bit, dtype=torch.float32)
        absmax = codes + absmax_offset
    weight = torch.empty(shapeB, dtype=A.dtype, device=A.device)
    return torch.nn.functional.linear(A, weight, bias)


@on_device("int8_vectorwise_quant")
def int8_vectorwise_quant(A, threshold=0.0):
    scales = torch.empty(A.numel() // A.shape[-1], device=A.device, dtype=torch.float32)
    rows = torch.empty(A.shape, device=A.device, dtype=torch.int8)
    if threshold > 0.0:
        outliers = A.abs() >= threshold
        outliers.any()
        return rows, scales, torch.empty(0, device=A.device, dtype=torch.int64)
    return rows, scales, None


@on_device("int8_linear_matmul")
def int8_linear_matmul(A, B):
    return torch.empty((*A.shape[:-1], B.shape[0]), device=A.device, dtype=torch.int32)


@on_device("int8_mm_dequant")
def int8_mm_dequant(A, row_stats, col_stats, dtype=None, bias=None):
    return torch.empty_like(A, dtype=torch.float16).to(dtype or torch.float16)


@on_device("optimizer_update_32bit")
@on_device("optimizer_update_8bit_blockwise")
def optimizer_update(*arguments, **options):
    return None


def get_paged(*shape, dtype=torch.float32, device=None):
    """cudaMallocManaged, which the device's allocator knows nothing of"""
    paged = torch.empty(shape, dtype=dtype)
    paged.is_paged = True
    return paged


functional = bitsandbytes.functional
functional.get_paged = get_paged
functional.fill = functional.prefetch_tensor = lambda *arguments, **options: None


def plain(tensor):
    return tensor.detach().as_subclass(torch.Tensor)


class Linear4bit(bitsandbytes.nn.Linear4bit):
    """eager.move() makes new parameters on the fake device, which would lose bitsandbytes' class; this moves them as theirs does."""

    def moved_to(self, device):
        old = self.weight
        old.quant_state.to(device)
        self._parameters["weight"] = bitsandbytes.nn.Params4bit(
            plain(old).to(device), requires_grad=False, quant_state=old.quant_state, blocksize=old.blocksize, module=self,
            compress_statistics=old.compress_statistics, quant_type=old.quant_type, bnb_quantized=True)


class Linear8bitLt(bitsandbytes.nn.Linear8bitLt):
    def moved_to(self, device):
        old = self.weight
        codes = plain(old).to(device)
        self._parameters["weight"] = bitsandbytes.nn.Int8Params(codes, requires_grad=False, has_fp16_weights=False, CB=codes,
                                                                SCB=old.SCB.to(device))


def quantised(model, bits, nested=True, low=torch.bfloat16, skip=("lm_head",)):
    """Its linear layers as transformers makes them of BitsAndBytesConfig, with weights that are quantised before they come to the
    device. A model that is there already only tells shapes, and stays as it is."""
    if next(model.parameters()).device.type != "cpu":
        return model
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not torch.nn.Linear or name in skip:
                continue
            bias = child.bias is not None
            if bits == 4:
                made = Linear4bit(child.in_features, child.out_features, bias, compute_dtype=low, compress_statistics=nested,
                                     quant_type="nf4")
                made.weight = bitsandbytes.nn.Params4bit(child.weight.data, requires_grad=False, compress_statistics=nested, quant_type="nf4",
                                            module=made)._quantize("cpu")
            else:
                made = Linear8bitLt(child.in_features, child.out_features, bias, has_fp16_weights=False, threshold=6.0)
                made.weight = bitsandbytes.nn.Int8Params(child.weight.data, requires_grad=False, has_fp16_weights=False)._quantize("cpu")
            made.bias = child.bias
            setattr(parent, name, made)
    setattr(model, "is_loaded_in_%dbit" % bits, True)  # so PEFT takes its layers for bitsandbytes
    return model
