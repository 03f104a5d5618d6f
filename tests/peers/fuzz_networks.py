"""Random networks for fuzz.py: drawn layer by layer, as PyTorch's modules and as a script for memtide."""
import inspect
import math
from dataclasses import dataclass, field

import torch
from torch import nn


# ---- memtide's layers that PyTorch has not, or has in another form

class Sum(nn.Sequential):
    def forward(self, x):
        y = self[0](x)
        for child in self[1:]:
            y = y + child(x)
        return y


class Product(nn.Sequential):
    def forward(self, x):
        y = self[0](x)
        for child in self[1:]:
            y = y * child(x)
        return y


class Concat(nn.Sequential):
    def __init__(self, *branches, dim=1):
        super().__init__(*branches)
        self.dim = dim

    def forward(self, x):
        return torch.cat([child(x) for child in self], self.dim)


class Residual(nn.Module):
    def __init__(self, body, shortcut=None):
        super().__init__()
        self.body = body
        if shortcut:
            self.shortcut = shortcut

    def forward(self, x):
        return self.body(x) + (self.shortcut(x) if hasattr(self, "shortcut") else x)


class Graph(nn.Module):
    """steps: (child's name or "add", "mul", "square", "cat", places of the values that it reads); results: places of
    what it gives, of which only the first counts in evaluation; none: the last value"""

    def __init__(self, children, steps, results):
        super().__init__()
        self.steps, self.results = steps, results
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x):
        values = [x]
        for what, read in self.steps:
            given = [values[i] for i in read]
            values.append(given[0] + given[1] if what == "add" else given[0] * given[1] if what == "mul"
                          else given[0].pow(2) if what == "square" else torch.cat(given, 1) if what == "cat"
                          else getattr(self, what)(*given))
        if not self.results:
            return values[-1]
        return tuple(values[i] for i in self.results) if self.training else values[self.results[0]]


class Select(nn.Module):
    def __init__(self, dim, index):
        super().__init__()
        self.dim, self.index = dim, index

    def forward(self, x):
        return x.select(self.dim, self.index)


class Narrow(nn.Module):
    def __init__(self, dim, start, length):
        super().__init__()
        self.place = dim, start, length

    def forward(self, x):
        return x.narrow(*self.place)


class Reshape(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def forward(self, x):
        return x.reshape([size or x.shape[i] for i, size in enumerate(self.shape)])


def of_tensor(name):
    """A module that calls this method with its own arguments"""
    def init(self, *args):
        nn.Module.__init__(self)
        self.args = args
    return type(name.capitalize(), (nn.Module,), {
        "__init__": init, "forward": lambda self, x: getattr(x, name)(*self.args)})


class Scale(nn.Module):
    def __init__(self, factor, offset=0.):
        super().__init__()
        self.factor, self.offset = factor, offset

    def forward(self, x):
        if self.factor == -1:
            return self.offset - x if self.offset else -x
        y = x if self.factor == 1 else x * self.factor
        return y + self.offset if self.offset or self.factor == 1 else y


class PositionEmbedding(nn.Embedding):
    def forward(self, x):
        return x + self.weight[:x.shape[1]]


def without_state(kind):
    return type(kind.__name__, (kind,), {"forward": lambda self, x: kind.forward(self, x)[0]})


RNN, LSTM, GRU = without_state(nn.RNN), without_state(nn.LSTM), without_state(nn.GRU)


class MultiheadAttention(nn.MultiheadAttention):
    """weights_held: beside the output the weights have a variable, until forward returns"""

    def __init__(self, *args, is_causal=False, need_weights=False, average_attn_weights=True, weights_held=False, **options):
        super().__init__(*args, **options)
        self.is_causal, self.weights_held = is_causal, weights_held
        self.weights = {"need_weights": need_weights, "average_attn_weights": average_attn_weights}

    def forward(self, x):
        steps = x.shape[1 if self.batch_first else 0]
        mask = None
        if self.is_causal and self.weights["need_weights"]:
            mask = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
        elif self.is_causal:
            mask = torch.full((steps, steps), -torch.inf, dtype=x.dtype).triu(1)
        return super().forward(x, x, x, attn_mask=mask, **self.weights)[0]


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, dropout=0., bias=True):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd, bias=bias), nn.Linear(n_embd, n_embd, bias=bias)
        self.n_head = n_head

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.n_head, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class RotaryPositionalEmbeddings(nn.Module):
    """torchtune's, over heads side by side; interleaved=False: Hugging Face's rotate_half"""

    def __init__(self, dim, max_seq_len=4096, base=10_000, *, interleaved=True):
        super().__init__()
        angle = torch.outer(torch.arange(max_seq_len).float(), 1.0 / base ** (torch.arange(0, dim, 2).float() / dim))
        self.angle, self.interleaved = angle, interleaved

    def forward(self, x):
        pairs = (-1, self.angle.shape[1], 2) if self.interleaved else (-1, 2, self.angle.shape[1])
        heads, at = x.unflatten(2, pairs), 4 if self.interleaved else 3
        angle = self.angle[:x.shape[1], None].to(x.dtype)
        cosine, sine, (a, b) = angle.cos(), angle.sin(), heads.unbind(at)
        return torch.stack((a * cosine - b * sine, b * cosine + a * sine), at).flatten(2)


class ScaledDotProductAttention(nn.Module):
    def __init__(self, num_heads, **options):
        super().__init__()
        self.num_heads, self.options = num_heads, options

    def forward(self, query, key, value):
        width = query.shape[2] // self.num_heads
        y = nn.functional.scaled_dot_product_attention(
            *(part.unflatten(2, (-1, width)).transpose(1, 2) for part in (query, key, value)), **self.options)
        return y.transpose(1, 2).flatten(2)


CLASSES = {"Add": Sum, "Mul": Product, **{c.__name__: c for c in (
    Concat, Residual, Select, Narrow, PositionEmbedding, RNN, LSTM, GRU, MultiheadAttention, CausalSelfAttention,
    RotaryPositionalEmbeddings, ScaledDotProductAttention, Reshape, Scale,
    *map(of_tensor, ["transpose", "squeeze", "unsqueeze", "abs", "exp"]))}}


def class_of(kind):
    return CLASSES.get(kind) or getattr(nn, kind)


# ---- a network as data

@dataclass(eq=False)
class Spec:
    kind: str
    args: list = field(default_factory=list)
    options: dict = field(default_factory=dict)
    children: list = field(default_factory=list)  # of a Graph: {name: child}
    steps: list = None
    results: list = None
    frozen: bool = False


def lua(value):
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "{" + ", ".join(map(lua, value)) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {lua(item)}" for key, item in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def forward_of(spec):
    lines = []
    for i, (what, read) in enumerate(spec.steps, 1):
        a = ["v%d" % k for k in read]
        call = {"add": " + ".join(a), "mul": " * ".join(a), "square": a[0] + " ^ 2",
                "cat": "nn.cat({%s}, 1)" % ", ".join(a)}.get(what, f"self.{what}({', '.join(a)})")
        lines.append(f"local v{i} = {call}")
    results = ", ".join("v%d" % k for k in spec.results or [len(lines)])
    return "forward = function(self, v0) %s return %s end" % (" ".join(lines), results)


def script(spec, shared):
    """The layer as Lua; shared: name of each layer that stands in several places, filled as they are met"""
    if spec in shared:
        return shared[spec]
    if spec.kind == "Graph":
        children = [f"{name} = {script(child, shared)}" for name, child in spec.children.items()]
        text = "nn.Graph{%s, order = %s, %s}" % (", ".join(children), lua(list(spec.children)), forward_of(spec))
    elif spec.children:
        children = [script(child, shared) for child in spec.children]
        text = "nn.%s{%s}" % (spec.kind, ", ".join(children + [f"{k} = {lua(v)}" for k, v in spec.options.items()]))
    else:
        args = list(map(lua, spec.args)) + ([lua(spec.options)] if spec.options else [])
        text = "nn.%s(%s)" % (spec.kind, ", ".join(args))
    return f"nn.Frozen({text})" if spec.frozen else text


def build(spec, built=None, own=None):
    """The module. own: {kind: what makes it of its children or arguments}, in place of the classes above; with it, what
    PyTorch overwrites is overwritten"""
    built = {} if built is None else built
    if spec not in built:
        if spec.kind == "Graph":
            module = Graph({name: build(child, built, own) for name, child in spec.children.items()}, spec.steps,
                           spec.results)
        elif spec.kind == "Checkpoint" and not own:
            module = build(spec.children[0], built)
        else:  # what PyTorch overwrites, memtide keeps where it is read again
            make = (own or {}).get(spec.kind) or class_of(spec.kind)
            options = {name: value for name, value in spec.options.items() if own or name != "inplace"}
            module = make(*(spec.args or (build(child, built, own) for child in spec.children)), **options)
        built[spec] = module.requires_grad_(False) if spec.frozen else module
    return built[spec]


# ---- layers drawn for an input's shape (batch first)

def some(r, **options):
    """About half of the options"""
    return {name: value for name, value in options.items() if r.random() < 0.5}


def pair(r, low, high):
    return r.randint(low, high) if r.random() < 0.6 else (r.randint(low, high), r.randint(low, high))


def convolution(r, s):
    groups = r.choice([g for g in range(1, s[1] + 1) if s[1] % g == 0])
    out = groups * r.randint(1, 4)
    same = r.random() < 0.15
    options = some(r, stride=1 if same else pair(r, 1, 3), padding="same" if same else pair(r, 0, 3),
                   dilation=pair(r, 1, 2), groups=groups, bias=r.random() < 0.5)
    if "groups" not in options:
        out = r.randint(1, 6)
    return Spec("Conv2d", [s[1], out, pair(r, 1, 4)], options)


def transposed(r, s):
    groups = r.choice([g for g in range(1, s[1] + 1) if s[1] % g == 0])
    options = some(r, stride=pair(r, 1, 3), padding=pair(r, 0, 2), groups=groups, dilation=pair(r, 1, 2),
                   bias=r.random() < 0.5)
    if "stride" in options and r.random() < 0.6:
        strides = options["stride"] if isinstance(options["stride"], tuple) else (options["stride"],) * 2
        options["output_padding"] = tuple(r.randint(0, stride - 1) for stride in strides)
    return Spec("ConvTranspose2d", [s[1], options.get("groups", 1) * r.randint(1, 3), pair(r, 1, 4)], options)


def line_convolution(r, s):
    groups = r.choice([g for g in range(1, s[1] + 1) if s[1] % g == 0])
    same, turned = r.random() < 0.15, r.random() < 0.3
    stride = 1 if same else r.randint(1, 3)
    options = {"stride": stride, "groups": groups, **some(r, dilation=r.randint(1, 2), bias=r.random() < 0.5)}
    if turned:
        options.update(some(r, padding=r.randint(0, 2), output_padding=r.randint(0, stride - 1)))
    else:
        options.update(some(r, padding="same" if same else r.randint(0, 3)))
    return Spec("ConvTranspose1d" if turned else "Conv1d", [s[1], groups * r.randint(1, 4), r.randint(1, 4)], options)


def line_pool(r, s):
    if r.random() < 0.3:
        return Spec("AdaptiveAvgPool1d", [r.randint(1, 7)])
    kernel, kind = r.randint(1, 4), r.choice(["MaxPool1d", "AvgPool1d"])
    options = some(r, stride=r.randint(1, 4), padding=r.randint(0, kernel // 2), ceil_mode=True)
    if kind == "AvgPool1d":
        options.update(some(r, count_include_pad=False))
    elif s[2] > 1:
        options.update(some(r, dilation=r.randint(1, 2)))
    return Spec(kind, [kernel], options)


def pool(r, s):
    kernel, kind = pair(r, 1, 4), r.choice(["MaxPool2d", "AvgPool2d"])
    most = min(kernel if isinstance(kernel, tuple) else (kernel,)) // 2
    options = some(r, stride=pair(r, 1, 4), padding=pair(r, 0, most), ceil_mode=True)
    if kind == "MaxPool2d":
        if min(s[2:]) > 1:  # PyTorch writes out of bounds where a window holds padding only
            options.update(some(r, dilation=pair(r, 1, 2)))
    else:
        options.update(some(r, count_include_pad=False))
        if r.random() < 0.15:
            options["divisor_override"] = r.randint(1, 7)
    return Spec(kind, [kernel], options)


def upsample(r, s):
    options = {"size": pair(r, 1, 12)} if r.random() < 0.5 else {
        "scale_factor": r.choice([2, 3, 8, 0.5, 1.5, 0.7, 2.3, round(r.uniform(0.3, 3.5), 3)])}
    if r.random() < 0.6:
        options["mode"] = "bilinear"
        options.update(some(r, align_corners=True))
    return Spec("Upsample", [], options)


def batchnorm(r, s):
    options = some(r, eps=r.choice([1e-3, 0.1]), momentum=r.choice([None, 0.3, 1.0, 0.0]), affine=False)
    if r.random() < 0.2:
        options["track_running_stats"] = False
    return Spec("BatchNorm2d" if len(s) == 4 else "BatchNorm1d", [s[1]], options)


def groupnorm(r, s):
    groups = r.choice([g for g in range(1, s[1] + 1) if s[1] % g == 0])
    return Spec("GroupNorm", [groups, s[1]], some(r, eps=1e-3, affine=False))


def layernorm(r, s):
    return Spec("LayerNorm", [s[-1]], some(r, eps=1e-3, elementwise_affine=False) if r.random() < 0.5 else
                some(r, bias=False))


def rmsnorm(r, s):
    return Spec("RMSNorm", [s[-1]], some(r, eps=1e-3, elementwise_affine=False))


def instancenorm(r, s):
    return Spec("InstanceNorm%dd" % (len(s) - 2), [s[1]], some(r, eps=r.choice([1e-3, 0.1]), affine=True))


def activation(r, s):
    kind = r.choice(("ReLU LeakyReLU Sigmoid Tanh SiLU ELU CELU Softplus Hardswish GELU PReLU Softmax LogSoftmax ReLU6 "
                    "Hardtanh Hardsigmoid Mish LogSigmoid Softsign SELU Abs Exp Scale").split())
    if kind == "Scale":
        return Spec(kind, [r.choice([-1, 0.5, 2.0, -0.25])], some(r, offset=r.choice([-1, 0.75])))
    options = {
        "LeakyReLU": dict(negative_slope=r.choice([0.2, -0.3, 0.0])), "ELU": dict(alpha=r.choice([0.5, 2.0, -0.7])),
        "CELU": dict(alpha=r.choice([0.5, 2.0])),
        "Softplus": dict(beta=r.choice([0.5, 3.0])), "Hardtanh": dict(min_val=-0.3, max_val=r.choice([0.7, 2.0])),
        "GELU": dict(approximate="tanh")}.get(kind, {})
    if kind == "PReLU":
        options = r.choice([dict(num_parameters=s[1]), dict(init=-0.1)])
    options = some(r, **options)
    if kind in ("ReLU", "LeakyReLU", "SiLU", "ELU", "CELU", "Hardswish", "ReLU6", "Hardtanh", "Hardsigmoid", "Mish", "SELU"):
        options.update(some(r, inplace=True))
    if kind in ("Softmax", "LogSoftmax"):
        return Spec(kind, [], {"dim": r.choice([d for d in range(-len(s), len(s)) if d])})
    return Spec(kind, [], options)


def cut(r, s):
    dim = r.randint(1, len(s) - 1)
    size = s[dim]
    if r.random() < 0.3 and len(s) > 2:
        return Spec("Select", [r.choice([dim, dim - len(s)]), r.randint(-size, size - 1)])
    if size % 2 == 0 and r.random() < 0.3:
        return Spec("GLU", [r.choice([dim, dim - len(s)])])
    start = r.randint(0, size - 1)
    return Spec("Narrow", [r.choice([dim, dim - len(s)]), start, r.randint(1, size - start)])


def recurrent(r, s):
    kind = r.choice(["RNN", "LSTM", "GRU"])
    options = some(r, num_layers=r.randint(1, 3), bias=False, batch_first=True, bidirectional=True)
    if kind == "RNN":
        options.update(some(r, nonlinearity="relu"))
    return Spec(kind, [s[2], r.randint(1, 6)], options)


def attention(r, s):
    heads = r.choice([h for h in range(1, s[2] + 1) if s[2] % h == 0])
    if r.random() < 0.4:
        return Spec("CausalSelfAttention", [s[2], heads], some(r, bias=False))
    return Spec("MultiheadAttention", [s[2], heads], some(r, bias=False, batch_first=True, is_causal=True))


def rotary(r, s):
    dim = r.choice([d for d in range(2, s[2] + 1, 2) if s[2] % d == 0] or [2])
    return Spec("RotaryPositionalEmbeddings", [dim], some(
        r, max_seq_len=s[1] + r.randint(0, 3), base=r.choice([3, 500.5]), interleaved=False))


def grouped(r, s):
    """Queries in groups that share keys; both perhaps turned; keys perhaps of a part of the steps, and not of one
    alone, where all that a score's gradient has is rounding"""
    kv_heads, group, width = r.randint(1, 3), r.randint(1, 3), r.randint(1, 4)
    options = {"num_heads": kv_heads * group, **some(r, is_causal=True, scale=r.choice([0.3, 1.5]))}
    if group > 1 or r.random() < 0.3:
        options["enable_gqa"] = True
    children = {name: Spec("Linear", [s[2], heads * width], some(r, bias=False))
                for name, heads in (("q", kv_heads * group), ("k", kv_heads), ("v", kv_heads))}
    children["mix"] = Spec("ScaledDotProductAttention", [], options)
    steps, x = [], 0
    if s[1] > 1 and r.random() < 0.3:
        children["part"] = Spec("Narrow", [1, 0, r.randint(2, s[1])])
        steps, x = [("part", [0])], 1
    steps += [("q", [0]), ("k", [x]), ("v", [x])]
    q, k, v = len(steps) - 2, len(steps) - 1, len(steps)
    if width % 2 == 0 and r.random() < 0.7:
        children["turn"] = Spec("RotaryPositionalEmbeddings", [width], some(r, interleaved=False))
        steps += [("turn", [q]), ("turn", [k])]
        q, k = len(steps) - 1, len(steps)
    return Spec("Graph", children=children, steps=steps + [("mix", [q, k, v])])


def linear(r, s):
    return Spec("Linear", [s[-1], r.randint(1, 8)], some(r, bias=False))


def plain(r, s):
    return Spec(*r.choice([("Identity", []), ("Dropout", [0.0]), ("Dropout2d", [0.0])] if len(s) == 4 else
                          [("Identity", []), ("Dropout", [0.0])]))


def flatten(r, s):
    if len(s) == 3 and r.random() < 0.3:
        return Spec("Flatten", [0, 1])
    if len(s) == 4 and r.random() < 0.5:
        return Spec("Flatten", r.choice([[2], [1, 2], [-2, 3]]))
    return Spec("Flatten", [], some(r, start_dim=1, end_dim=-1))


def sizes(r, elements, n):
    """n sizes whose product that is, one of them perhaps as -1"""
    found = []
    for _ in range(n - 1):
        found.append(r.choice([k for k in range(1, elements + 1) if elements % k == 0]))
        elements //= found[-1]
    found.append(elements)
    r.shuffle(found)
    if r.random() < 0.4:
        found[r.randrange(n)] = -1
    return found


def reshape(r, s):
    kind = r.choice(["Reshape", "Unflatten", "Squeeze", "Unsqueeze"] + 2 * ["Transpose"] * (len(s) == 3))
    dim = r.randint(1, len(s) - 1)
    if kind == "Transpose":
        return Spec(kind, r.choice([[1, 2], [-1, 1], [2, -2], [1, 1]]))
    if kind == "Reshape":
        kept = r.random() < 0.4
        shape = [s[1]] + sizes(r, math.prod(s[2:]), r.randint(1, 2)) if kept else sizes(
            r, math.prod(s[1:]), r.randint(1, 3))
        return Spec(kind, [[0] + shape])
    if kind == "Unflatten":
        return Spec(kind, [r.choice([dim, dim - len(s)]), sizes(r, s[dim], r.randint(2, 3))])
    return Spec(kind, [r.choice([dim, dim - len(s)]) if kind == "Squeeze" else r.randint(1, len(s))])


def positions(r, s):
    return Spec("PositionEmbedding", [s[1] + r.randint(0, 2), s[2]])


def adaptive(r, s):
    if r.random() < 0.3:
        return Spec("AdaptiveMaxPool2d", [tuple(r.choice([k for k in range(1, n + 1) if n % k == 0]) for n in s[2:])])
    return Spec("AdaptiveAvgPool2d", [pair(r, 1, 7)])


def zeros(r, s):
    sides = [r.randint(0, 2) for _ in range(2 * (len(s) - 2))]
    return Spec("ZeroPad%dd" % (len(s) - 2), [r.choice([sides, r.randint(0, 2)])])


def shuffle(r, s):
    """Pixels or channels in another order; where it cannot be, PyTorch says so"""
    if r.random() < 0.4:
        return Spec("ChannelShuffle", [r.choice([g for g in range(1, s[1] + 1) if s[1] % g == 0])])
    return Spec(*r.choice([("PixelShuffle", [2]), ("PixelUnshuffle", [2]), ("PixelUnshuffle", [3])]))


DRAWN = {  # by the input's rank
    4: 4 * [convolution] + 2 * [transposed, pool, batchnorm, upsample] + 4 * [activation] + [
        groupnorm, instancenorm, adaptive, cut, plain, flatten, reshape, reshape, shuffle, shuffle, zeros],
    3: 2 * [linear, recurrent, attention, grouped, activation, line_pool] + 3 * [line_convolution, activation] + [
        layernorm, rmsnorm, batchnorm, groupnorm, instancenorm, cut, plain, flatten, positions, rotary, reshape,
        reshape, zeros],
    2: 3 * [linear, activation] + [layernorm, rmsnorm, batchnorm, groupnorm, cut, plain, reshape],
}


def positional(r, spec):
    """Some of the named options as arguments in PyTorch's order"""
    known = list(inspect.signature(class_of(spec.kind)).parameters.values())[len(spec.args):]
    for parameter in known[:r.randint(0, 4)]:
        if parameter.kind != parameter.POSITIONAL_OR_KEYWORD or parameter.name in NOT_THERE:
            break
        value = spec.options.pop(parameter.name, parameter.default)
        if value is None and spec.kind in ("MaxPool1d", "AvgPool1d", "MaxPool2d", "AvgPool2d"):
            value = spec.args[0]
        spec.args.append(value)
    return spec


NOT_THERE = ("return_indices", "padding_mode", "add_bias_kv", "max_norm", "device", "threshold", "inplace", "args")
POSITIONAL = ("Conv1d ConvTranspose1d MaxPool1d AvgPool1d Conv2d ConvTranspose2d MaxPool2d AvgPool2d BatchNorm1d "
              "BatchNorm2d GroupNorm LayerNorm RMSNorm Linear PReLU ELU LeakyReLU ReLU Hardtanh ReLU6 "
              "Mish Flatten RotaryPositionalEmbeddings").split()


def output_of(spec, shape, tokens=None):
    """The output's shape; None where PyTorch refuses, or the output has no or too many elements"""
    try:
        x = torch.zeros(shape, dtype=torch.long) if tokens else torch.rand(shape)
        y = build(spec)(x)
    except (RuntimeError, ValueError, AssertionError, IndexError):
        return None
    return tuple(y.shape) if 0 < y.numel() <= 3000 else None


def layer(r, shape):
    """A layer for this input, and its output's shape"""
    while True:
        spec = r.choice(DRAWN[len(shape)])(r, shape)
        if spec.kind in POSITIONAL and r.random() < 0.3:
            spec = positional(r, spec)
        out = output_of(spec, shape)
        if out and len(out) in DRAWN:
            spec.frozen = r.random() < 0.04
            return spec, out


def gate(r, shape):
    """x times or plus what is spread over it"""
    places = {4: ["AdaptiveAvgPool2d", "Conv2d", "both"], 3: ["AdaptiveAvgPool1d", "Linear", "Transpose"],
              2: ["Linear"]}
    kind = r.choice(places[len(shape)])
    one = {"AdaptiveAvgPool2d": [Spec(kind, [1]), Spec("Conv2d", [shape[1], shape[1], 1])],
           "AdaptiveAvgPool1d": [Spec(kind, [1])], "Conv2d": [Spec(kind, [shape[1], 1, 1])],
           "both": [Spec("Conv2d", [shape[1], 1, 1]), Spec("AdaptiveAvgPool2d", [1])],
           "Linear": [Spec(kind, [shape[-1], 1])],
           "Transpose": [Spec(kind, [1, 2]), Spec("AdaptiveAvgPool1d", [1]), Spec(kind, [1, 2])]}[kind]
    branches = [keeping(r, shape), Spec("Sequential", children=one + [Spec("Sigmoid")])]
    r.shuffle(branches)
    return Spec(r.choice(["Mul", "Add"]), children=branches), shape


def keeping(r, shape, tries=12):
    """A layer whose output has the input's shape"""
    for _ in range(tries):
        spec, out = layer(r, shape)
        if out == shape:
            return spec
    return Spec("Identity")


def chain(r, shape, depth, level=0):
    layers = []
    for _ in range(depth):
        spec, shape = (branching if r.random() < 0.2 and level < 2 else layer_of)(r, shape, level)
        layers.append(spec)
    return Spec("Sequential", children=layers), shape


def layer_of(r, shape, level):
    return layer(r, shape)


def branching(r, shape, level):
    kind = r.choice(["Residual", "Residual", "Add", "Mul", "Concat", "Graph", "Graph", "Sequential", "Checkpoint",
                     "Twice", "Gate"])
    if kind == "Gate":
        return gate(r, shape)
    if kind == "Graph":
        return graph(r, shape)
    if kind == "Twice":  # the same layer in two places
        spec = keeping(r, shape)
        return Spec("Sequential", children=[spec, Spec("Tanh"), spec]), shape
    if kind in ("Sequential", "Checkpoint"):
        inner, out = chain(r, shape, r.randint(1, 3), level + 1)
        return (inner if kind == "Sequential" else Spec(kind, children=[inner])), out
    first, out = chain(r, shape, r.randint(1, 2), level + 1)
    if kind == "Residual" and out == shape:
        return Spec(kind, children=[first] if r.random() < 0.6 else [first, keeping(r, shape)]), shape
    if kind in ("Residual", "Add", "Mul") and out != shape:
        return first, out
    branches = [first] + [Spec("Sequential", children=[keeping(r, shape)]) if r.random() < 0.5 else keeping(r, shape)
                          for _ in range(r.randint(1, 2))]
    if kind != "Concat":
        return Spec(kind if kind != "Residual" else "Add", children=branches), shape
    dims = [d for d in range(1, len(shape)) if len(out) == len(shape) and
            all(a == b for i, (a, b) in enumerate(zip(out, shape)) if i != d)]
    if not dims:
        return first, out
    spec = Spec(kind, children=branches, options={"dim": r.choice(dims)} if dims[0] != 1 or r.random() < 0.5 else {})
    joined = output_of(spec, shape)
    return (spec, joined) if joined else (first, out)


def graph(r, shape):
    """Calls, sums and products of values, each of which is read; children may be called twice"""
    shapes, children, steps, reads = [shape], {}, [], {}  # reads: a child's input and output
    for _ in range(r.randint(2, 5)):
        i = r.randrange(len(shapes))
        known = [name for name, (given, _) in reads.items() if given == shapes[i]]
        if r.random() < 0.35 and children:
            equal = [k for k in range(len(shapes)) if shapes[k] == shapes[i]]
            steps.append((r.choice(["add", "mul"]), [i, r.choice(equal)]))
            shapes.append(shapes[i])
            continue
        name = r.choice(known) if known and r.random() < 0.3 else "c%d" % len(children)
        if name not in children:
            spec, out = layer(r, shapes[i])
            if spec.kind == "Flatten" or out[0] != shape[0]:
                spec, out = Spec("Tanh"), shapes[i]
            children[name], reads[name] = spec, (shapes[i], out)
        steps.append((name, [i]))
        shapes.append(reads[name][1])
    return join(children, steps, {i for _, places in steps for i in places}, shapes)


def join(children, steps, read, shapes):
    """Adds up what nothing reads; of several shapes, as rows of features side by side"""
    for i in range(len(shapes) - 1):
        last = len(shapes) - 1
        if i in read:
            continue
        if shapes[i] == shapes[last]:
            steps.append(("add", [last, i]))
            shapes.append(shapes[last])
            continue
        for k in (last, i):
            name = "flat%d" % len(steps)
            children[name] = Spec("Flatten")
            steps.append((name, [k]))
            shapes.append((shapes[k][0], math.prod(shapes[k][1:])))
        steps.append(("cat", [last + 1, last + 2]))
        shapes.append((shapes[-1][0], shapes[-1][1] + shapes[-2][1]))
    return Spec("Graph", children=children, steps=steps), shapes[-1]
