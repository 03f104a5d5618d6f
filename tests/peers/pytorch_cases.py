"""Writes reference cases of tests/lua/t_oracle.lua: python3 tests/peers/pytorch_cases.py FOLDER

Networks as nested lists of torch.nn's names, computed in float64 from parameters, inputs and targets that have a closed
form: see parameter(), inputs() and targets(), and their twins in t_oracle.lua."""
import math
import os
import sys

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../experiments/peers"))
from networks import llama

CASES = {
    "normalised": dict(
        net=["Sequential", [
            ["Conv2d", 3, 8, 3, dict(padding=1, bias=False)], ["BatchNorm2d", 8], ["SiLU"], ["MaxPool2d", 2],
            ["Conv2d", 8, 12, 3, dict(stride=2, groups=2)], ["GroupNorm", 3, 12], ["ELU", 0.7],
            ["AdaptiveAvgPool2d", 2], ["Flatten"], ["Linear", 48, 16, dict(bias=False)], ["BatchNorm1d", 16],
            ["PReLU", 16], ["Linear", 16, 6], ["LogSoftmax", 1]]],
        input=[3, 12, 10], batch=6, classes=6, loss="CrossEntropyLoss",
        optimizer=["SGD", dict(lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01)]),
    "decoder": dict(
        net=["Sequential", [
            ["ConvTranspose2d", 6, 8, 3, dict(stride=2, padding=1, output_padding=1, bias=False)], ["BatchNorm2d", 8],
            ["LeakyReLU", 0.2], ["Upsample", dict(scale_factor=2, mode="bilinear")], ["Conv2d", 8, 4, 3],
            ["Tanh"], ["Upsample", dict(scale_factor=2)], ["AvgPool2d", 3, dict(stride=2, padding=1)],
            ["ConvTranspose2d", 4, 2, 4, dict(stride=2, padding=1)], ["Sigmoid"]]],
        input=[6, 3, 5], batch=4, loss="MSELoss", optimizer=["Adam", dict(lr=0.002)]),
    "lines": dict(
        net=["Sequential", [
            ["Conv1d", 3, 8, 3, dict(padding="same", bias=False)], ["BatchNorm1d", 8], ["ReLU"], ["MaxPool1d", 2],
            ["Conv1d", 8, 6, 3, dict(stride=2, dilation=2, groups=2)], ["Mish"], ["InstanceNorm1d", 6],
            ["ConvTranspose1d", 6, 5, 4, dict(stride=2, padding=1, output_padding=1)], ["LogSigmoid"],
            ["RMSNorm", 13], ["AvgPool1d", 3, dict(padding=1)], ["Hardtanh", -0.6, 0.9], ["AdaptiveAvgPool1d", 3],
            ["Flatten"], ["Linear", 15, 10], ["RMSNorm", 10, dict(elementwise_affine=False)], ["Softsign"],
            ["Linear", 10, 6]]],
        input=[3, 31], batch=6, classes=6, loss="CrossEntropyLoss",
        optimizer=["SGD", dict(lr=0.05, momentum=0.9)]),
    "gated": dict(
        net=["Sequential", [
            ["Conv1d", 3, 12, 3, dict(padding=1)], ["GLU", 1], ["Conv1d", 6, 10, 3, dict(stride=2)], ["Tanh"], ["GLU", 1],
            ["Linear", 15, 24], ["GLU"], ["Flatten"], ["Linear", 60, 12], ["GLU"]]],
        input=[3, 31], batch=6, classes=6, loss="CrossEntropyLoss", optimizer=["SGD", dict(lr=0.05, momentum=0.9)]),
    "multilabel": dict(
        net=["Sequential", [["Conv2d", 2, 4, 3], ["Tanh"], ["Flatten"], ["Linear", 64, 5]]],
        input=[2, 6, 6], batch=5, loss="BCEWithLogitsLoss", loss_options=dict(pos_weight=[1.0, 3.0, 0.5, 2.0, 7.0]),
        optimizer=["SGD", dict(lr=0.1, momentum=0.9)]),
    "bidirectional": dict(
        net=["Sequential", [
            ["Embedding", 20, 10], ["LSTM", 10, 7, dict(num_layers=2, bidirectional=True, batch_first=True)],
            ["LayerNorm", 14], ["GRU", 14, 9, dict(bidirectional=True, batch_first=True)],
            ["RNN", 18, 8, dict(nonlinearity="relu", batch_first=True)], ["LastStep"], ["Linear", 8, 5]]],
        input=[9], batch=4, tokens=20, classes=5, loss="CrossEntropyLoss",
        optimizer=["AdamW", dict(lr=0.004, weight_decay=0.05)]),
    "encoder": dict(
        net=["Sequential", [
            ["Embedding", 24, 16],
            ["Residual", ["Sequential", [["LayerNorm", 16], ["MultiheadAttention", 16, 4, dict(batch_first=True)]]]],
            ["Residual", ["Sequential", [["LayerNorm", 16], ["Linear", 16, 32], ["GELU", dict(approximate="tanh")],
                                         ["Linear", 32, 16]]]],
            ["Linear", 16, 24]]],
        input=[11], batch=3, tokens=24, classes=24, per_token=True, loss="CrossEntropyLoss",
        optimizer=["SGD", dict(lr=0.1, momentum=0.9)]),
    "translator": dict(
        net=["Sequential", [["Embedding", 24, 16], ["Translator", 16, 4, 7], ["Linear", 16, 24]]],
        input=[12], batch=3, tokens=24, classes=24, per_token=True, loss="CrossEntropyLoss",
        optimizer=["SGD", dict(lr=0.05, momentum=0.9)]),
    "windows": dict(
        net=["Sequential", [["Linear", 6, 8], ["Windows", 8, 2], ["Flatten"], ["Linear", 12, 5]]],
        input=[4, 6], batch=5, classes=5, loss="CrossEntropyLoss", optimizer=["SGD", dict(lr=0.02, momentum=0.9)]),
    "llama": dict(
        net=["Sequential", [["Llama", dict(hidden_size=24, intermediate_size=40, num_attention_heads=6,
                                           num_key_value_heads=2, vocab_size=24, num_hidden_layers=2)]]],
        input=[11], batch=3, tokens=24, classes=24, per_token=True, rows=True, loss="CrossEntropyLoss",
        optimizer=["SGD", dict(lr=0.1, momentum=0.9)]),
    **{name: dict(
        net=["Sequential", [["Conv2d", 2, 4, 3], ["Tanh"], ["Flatten"], ["Linear", 64, 12], ["GELU"],
                            ["Linear", 12, 5]]],
        input=[2, 6, 6], batch=5, classes=5, loss="CrossEntropyLoss", optimizer=optimizer)
       for name, optimizer in {
           "rmsprop": ["RMSprop", dict(lr=0.002, alpha=0.9, weight_decay=0.01)],
           "rmsprop_centered": ["RMSprop", dict(lr=0.001, momentum=0.6, centered=True)],
           "adagrad": ["Adagrad", dict(lr=0.02, lr_decay=0.1, initial_accumulator_value=0.001)],
           "adafactor": ["Adafactor", dict(lr=0.02, eps=[1e-4, 1e-3], weight_decay=0.1)],
           "amsgrad": ["Adam", dict(lr=0.003, betas=[0.8, 0.5], amsgrad=True)]}.items()},
    "nadam": dict(
        net=["Sequential", [["Conv2d", 2, 4, 3], ["CELU", 0.5], ["Flatten"], ["Linear", 64, 12], ["CELU"],
                            ["Linear", 12, 5]]],
        input=[2, 6, 6], batch=5, classes=5, loss="CrossEntropyLoss",
        optimizer=["NAdam", dict(lr=0.01, weight_decay=0.02, momentum_decay=0.3)]),
}
STEPS = 5


class Residual(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return x + self.body(x)


class Translator(nn.Module):
    """The first steps are read by an encoder, the others by a decoder; what they made of each other, by attention
    whose keys and values are not as wide as its queries."""

    def __init__(self, width, heads, split):
        super().__init__()
        self.split = split
        self.encoder = nn.TransformerEncoderLayer(width, heads, 32, dropout=0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(width, heads, 24, dropout=0, activation="gelu", batch_first=True,
                                                  norm_first=True)
        self.keys, self.values = nn.Linear(width, 12, bias=False), nn.Linear(width, 20)
        self.attention = nn.MultiheadAttention(width, 2, kdim=12, vdim=20, batch_first=True)

    def forward(self, x):
        memory, y = self.encoder(x[:, :self.split]), x[:, self.split:]
        later = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        y = self.decoder(y, memory, tgt_mask=later)
        return y + self.attention(y, self.keys(memory), self.values(memory))[0]


class Windows(nn.Module):
    """Attention to directions, with a learned scale and a bias by distance; then every second of the steps, turned, through a
    product with a weight that is computed. As in Swin V2."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = nn.Parameter(torch.zeros(heads, 1, 1))
        self.table = nn.Parameter(torch.zeros(7, heads))
        self.mix = nn.Parameter(torch.zeros(6, width))
        self.register_buffer("distance", torch.arange(4)[:, None] - torch.arange(4) + 3)
        self.all = nn.Linear(width, 3 * width)

    def forward(self, x):
        batch, steps, width = x.shape
        q, k, v = self.all(x).view(batch, steps, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        near = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        near = near * self.scale.clamp(max=0.3).exp()
        near = near + self.table[self.distance.view(-1)].view(4, 4, -1).permute(2, 0, 1).unsqueeze(0)
        y = (near.softmax(-1) @ v).transpose(1, 2).reshape(batch, steps, width)
        return F.linear(torch.roll(y, 1, 1)[:, ::2], 2 * self.mix)


class First(nn.Module):
    """What a layer gives in the first place: outputs of a recurrent layer, or of attention to itself."""

    def __init__(self, layer, uses):
        super().__init__()
        self.layer, self.uses = layer, uses

    def forward(self, x):
        return self.layer(*[x] * self.uses)[0]


class LastStep(nn.Module):
    def forward(self, x):
        return x[:, -1]


def build(spec):
    name, *args = spec
    options = args.pop() if args and isinstance(args[-1], dict) else {}
    if name == "Sequential":
        return nn.Sequential(*map(build, args[0]))
    if name == "Residual":
        return Residual(build(args[0]))
    if name == "Llama":
        return llama(nn, *options.values())
    if name in ("LastStep", "Translator", "Windows"):
        return globals()[name](*args)
    layer = getattr(nn, name)(*args, **options)
    uses = {"RNN": 1, "LSTM": 1, "GRU": 1, "MultiheadAttention": 3}.get(name)
    return First(layer, uses) if uses else layer


def parameter(k, name, p):
    scale = 0.1 if p.dim() == 1 else 1 / math.sqrt(p.numel() / p.shape[0])
    base = 1 if p.dim() == 1 and name.endswith("weight") else 0
    i = torch.arange(p.numel(), dtype=torch.float64)
    return (base + scale * torch.sin(0.731 * i + 1.37 * k + 0.5)).float().double().view(p.shape)


def inputs(case, s):
    i = torch.arange(case["batch"] * math.prod(case["input"]))
    x = (5 * i + s) % case["tokens"] if "tokens" in case else torch.sin(0.377 * i.double() + 0.25 * s).float().double()
    return x.view(case["batch"], *case["input"])


def targets(case, s, y):
    if case.get("per_token"):
        return (3 * torch.arange(y.numel() // case["classes"]) + s) % case["classes"]
    if case["loss"] == "CrossEntropyLoss":
        return (7 * torch.arange(case["batch"]) + 3 + s) % case["classes"]
    t = (0.5 * torch.sin(0.193 * torch.arange(y.numel()).double() + s)).float().double().view(y.shape)
    return t if case["loss"] == "MSELoss" else (t > 0).double()


def compute(case):
    torch.manual_seed(1)
    net = build(case["net"]).double()
    loss_options = {name: torch.tensor(value).double() for name, value in case.get("loss_options", {}).items()}
    loss_of = getattr(nn, case["loss"])(**loss_options)
    with torch.no_grad():
        for k, (name, p) in enumerate(net.named_parameters()):
            p.copy_(parameter(k, name, p))
    kind, options = case["optimizer"]
    optimizer, found = getattr(torch.optim, kind)(net.parameters(), **options), dict(losses=[])
    for s in range(STEPS):
        optimizer.zero_grad()
        y = net(inputs(case, s))
        loss = loss_of(y.flatten(0, -2) if case.get("per_token") else y, targets(case, s, y))
        loss.backward()
        found["losses"].append(loss.item())
        if s == 0:
            found["first_output"] = y.flatten()[:8].tolist()
            found["first_grad_norms"] = [[plain(n), p.grad.norm().item()] for n, p in net.named_parameters()]
        optimizer.step()
    found["final_parameters"] = [[plain(n), list(p.shape), p.norm().item()] for n, p in net.named_parameters()]
    net.eval()
    found["eval_output"] = net(inputs(case, 0)).flatten()[:8].tolist()
    return found


def plain(name):
    return name.replace(".layer.", ".")


def lua(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {lua(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return '"%s"' % value if isinstance(value, str) else repr(value)


def lines(key, value):
    """Long lists one element to a line"""
    if key == "net":
        return 'net = {"Sequential", {\n%s  }},\n' % "".join(f"    {lua(item)},\n" for item in value[1])
    if key in ("first_grad_norms", "final_parameters"):
        return "%s = {\n%s  },\n" % (key, "".join(f"    {lua(item)},\n" for item in value))
    return f"{key} = {lua(value)},\n"


def main(folder):
    version = torch.__version__.split("+")[0]
    for name, case in CASES.items():
        with open(f"{folder}/{name}.lua", "w") as f:
            f.write(f"-- {name}: float64, by PyTorch {version} and tests/peers/pytorch_cases.py\nreturn {{\n")
            for key, value in {"name": name, "steps": STEPS, **case, **compute(case)}.items():
                f.write("  " + lines(key, value))
            f.write("}\n")


if __name__ == "__main__":
    main(sys.argv[1])
