"""Random networks, losses, optimizers and settings in memtide and in PyTorch (make peer-fuzz):

    python3 tests/peers/fuzz.py --memtide build/memtide [--count 300] [--seed 1] [--only SEED,SEED] [--keep]
        [--kinds KIND,KIND]

Both start from the same numbers; memtide's losses, gradients, parameters, buffers and outputs in fp32 are held against
PyTorch's in float64, and may be a few times as far from it as PyTorch's own fp32. Rounding can put the input of a ReLU
on another side: a case is a difference when it is one with three sets of numbers. Optimizers with states of 8 bits are
torchao's (0.12 with PyTorch 2.6)."""
import argparse
import copy
import inspect
import json
import math
import os
import random
import subprocess
import sys
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # torchao compiles its updates, which takes longer than all else

import numpy
import torch
from torch import nn

try:
    from torchao import optim as torchao
except ImportError:  # the networks that want it are skipped
    torchao = None

from fuzz_networks import Spec, build, chain, layer, lua, output_of, pair, script, some

EMBEDDED, CHUNK = 0.4, 25
MASK = (1 << 64) - 1
REFUSED = ["normalises (N, C), (N, C, L) or (N, C, H, W), found"]  # by memtide alone: see docs/layers.md


# ---- numbers: see fuzz.lua

def bits(seed, n):
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(seed & MASK) + numpy.arange(1, n + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> numpy.uint64(31))) >> numpy.uint64(40)).astype(numpy.int64)


def uniform(seed, n):
    return torch.from_numpy(bits(seed, n) / (1 << 23) - 1)


def parameter(case, name, p):
    h = 0
    for c in name.encode():
        h = (h * 31 + c) & 0xFFFFFFFF
    u = uniform(case["data"] * 1000003 + h, p.numel())
    if p.dim() == 1:
        u = (1 if name.endswith("weight") else 0) + 0.25 * u
    else:
        u = 2.0 ** -math.floor(math.log2(p.numel() // p.shape[0]) / 2) * u
    return u.view(p.shape)


def inputs(case, step, parts):
    shape, seed = [parts * case["input"][0]] + case["input"][1:], case["data"] * 1000003 + 2 * step
    if case["tokens"]:
        return torch.from_numpy(bits(seed, math.prod(shape)) % case["tokens"]).view(shape)
    return (1.5 * uniform(seed, math.prod(shape))).view(shape)


def targets(case, step, parts, shape):
    seed, classes = case["data"] * 1000003 + 2 * step + 1, case["classes"]
    if not classes:
        shape = [parts * shape[0], *shape[1:]]
        return torch.from_numpy(bits(seed, math.prod(shape)) / (1 << 24)).view(shape)
    shape = [parts * shape[0], *shape[2:]]
    labels = torch.from_numpy(bits(seed, math.prod(shape)) % classes)
    if case["ignored"] is not None:
        labels[torch.from_numpy(bits(seed + 7, labels.numel()) % 4 == 0)] = case["ignored"]
    return labels.view(shape)


# ---- a case: all that both need, as data

LOW_BIT = ["Adam8bit", "AdamW8bit"]
OF_ELEMENTS = {"MSELoss": {}, "L1Loss": {}, "SmoothL1Loss": dict(beta=0.3), "HuberLoss": dict(delta=0.3), "BCELoss": {},
               "BCEWithLogitsLoss": dict(pos_weight=2.5)}


def of_classes(r, net, kind, options, ignored):
    """The same as draw_loss's, of a network that ends in logits"""
    classes = net.children[-1].args[1]
    options.update(some(r, ignore_index=r.choice(ignored), weight=[r.choice([0.5, 1, 2.25]) for _ in range(classes)]))
    if kind == "NLLLoss":
        net.children.append(Spec("LogSoftmax", [], {"dim": 1}))
    else:
        options.update(some(r, label_smoothing=0.2, lse_square_scale=0.05))
    return net, Spec(kind, [], options), classes


def draw_loss(r, net, shape):
    """The network with what its loss needs after it, the loss, and the number of classes"""
    kind = r.choice(4 * ["CrossEntropyLoss"] + 2 * ["NLLLoss"] + list(OF_ELEMENTS))
    options = some(r, reduction="sum")
    if kind in OF_ELEMENTS:
        options.update(some(r, **OF_ELEMENTS[kind]))
        if not any(p.requires_grad for p in build(net).parameters()):
            net.children.append(Spec("Conv2d", [shape[1], 2, 1]) if len(shape) == 4 else Spec("Linear", [shape[-1], 3]))
        if kind == "BCELoss":
            net.children.append(Spec("Sigmoid"))
        return net, Spec(kind, [], options), None
    layers = net.children
    if len(shape) > 2 and r.random() < 0.5:  # a label for each pixel
        layers.append(Spec("Conv%dd" % (len(shape) - 2), [shape[1], r.randint(2, 5), 1]))
        return of_classes(r, net, kind, options, [1])
    if len(shape) == 3 and r.random() < 0.5:
        layers.append(Spec("Flatten", [0, 1]))
    elif len(shape) > 2:
        layers.append(Spec("Flatten"))
    features = shape[-1] if layers[-1].args == [0, 1] else math.prod(shape[1:])
    layers.append(Spec("Linear", [features, r.randint(2, 6)]))
    return of_classes(r, net, kind, options, [-100, 1, -1, 9])


class CrossEntropyLoss(nn.CrossEntropyLoss):
    def __init__(self, *args, lse_square_scale=0., **options):
        super().__init__(*args, **options)
        self.square = lse_square_scale

    def forward(self, x, t):
        counts = (t != self.ignore_index).to(x.dtype)
        if self.weight is not None:
            counts = counts * self.weight[t.clamp(0, x.shape[1] - 1)]
        squares = (self.square * counts * x.logsumexp(1) ** 2).sum()
        return super().forward(x, t) + (squares / counts.sum() if self.reduction == "mean" else squares)


class IdentityLoss(nn.Module):
    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, x, _):
        return getattr(x, self.reduction)()


def draw_heads(r, net, shape, tokens, loss, classes):
    """The network as a graph of several outputs, and all losses with their factors"""
    p = r.randint(1, max(len(net.children) - 1, 1))
    trunk, rest = Spec("Sequential", children=net.children[:p]), Spec("Sequential", children=net.children[p:])
    inner, out = output_of(trunk, shape, tokens), output_of(net, shape, tokens)
    if not rest.children or not inner or not out or r.random() < 0.5:
        return net, [(r.choice([1, 1, 1, 0.5]), loss)]
    children, steps, results = {"trunk": trunk, "rest": rest}, [("trunk", [0]), ("rest", [1])], [2]
    losses = [(r.choice([1, 2]), loss)]
    if not classes or len(out) != 2:
        children["aux"] = Spec("Sigmoid" if loss.kind == "BCELoss" else "Tanh")
        steps.append(("aux", [2]))
    elif inner[0] == out[0]:
        last = [Spec("LogSoftmax", [], {"dim": 1})] if loss.kind == "NLLLoss" else []
        flat = [Spec("Flatten")] if len(inner) > 2 else []
        children["aux"] = Spec("Sequential", children=[
            *flat, Spec("Linear", [math.prod(inner[1:]), out[1]]), *last])
        steps.append(("aux", [1]))
    if "aux" in children:
        kind = r.choice(["CrossEntropyLoss", "NLLLoss"]) if classes and loss.kind == "CrossEntropyLoss" else loss.kind
        if kind == "NLLLoss" and loss.kind != kind:
            children["aux"] = Spec("Sequential", children=[children["aux"], Spec("LogSoftmax", [], {"dim": 1})])
        options = {k: v for k, v in loss.options.items() if k == "ignore_index"} or some(r, reduction="sum")
        results.append(len(steps))
        losses.append((0.3, Spec(kind, [], options)))
    if len(results) == 1 or r.random() < 0.5:
        steps.append(("square", [r.choice([1, 2])]))
        results.append(len(steps))
        losses.append((0.05, Spec("IdentityLoss", [], some(r, reduction="sum"))))
    return Spec("Graph", children=children, steps=steps, results=results), losses


def draw_optimizer(r):
    kind, lr = r.choice(["SGD", "Adam", "AdamW", "RAdam", "RMSprop", "Adagrad", "Adafactor", "Adamax", "Adadelta",
                         *LOW_BIT]), r.choice([0.01, 0.03])
    if kind == "SGD":
        options = some(r, momentum=0.9, dampening=0.3, weight_decay=0.1)
        if "momentum" in options and "dampening" not in options:
            options.update(some(r, nesterov=True))
    elif kind == "Adafactor":
        options = dict(eps=(r.choice([1e-5, 1e-3]), 1e-2), **some(r, beta2_decay=-0.5, d=1.5, weight_decay=0.1))
    else:  # a gradient of zero comes out as some 1e-9: eps is far above that, which PyTorch's defaults are not
        options = dict(eps=r.choice([1e-5, 1e-3]), **some(r, weight_decay=0.1, **{
            "RAdam": dict(betas=(0.8, 0.9), decoupled_weight_decay=True), "Adamax": dict(betas=(0.8, 0.9)),
            "Adadelta": dict(rho=0.8),
            "RMSprop": dict(alpha=0.9, momentum=0.5, centered=True),
            "Adagrad": dict(lr_decay=0.1, initial_accumulator_value=0.1)}.get(kind, dict(
                betas=(0.8, 0.95), amsgrad=True))))
    if kind in LOW_BIT:
        options["block_size"] = r.choice([32, 64])
        options.pop("amsgrad", None)  # torchao 0.12 has no maximum of such states
    return Spec(kind, [], {"lr": lr, **options}), r.choice([0, 0, 0.05, 1.0])


def draw_schedule(r):
    return r.choice([None, None, Spec("StepLR", [2], some(r, gamma=0.5)), Spec("ExponentialLR", [0.7]),
                     Spec("MultiStepLR", [[1, 3]], some(r, gamma=0.3)), Spec("LinearLR", [], some(
                         r, start_factor=0.5, end_factor=0.2, total_iters=3)),
                     Spec("CosineAnnealingLR", [3], some(r, eta_min=0.001)),
                     Spec("PolynomialLR", [3], some(r, power=2.)),
                     Spec("ConstantLR", [0.5], some(r, total_iters=2)),
                     Spec("CosineAnnealingWarmRestarts", [2], some(r, T_mult=2, eta_min=0.001)),
                     Spec("OneCycleLR", [0.03], dict(total_steps=4, cycle_momentum=False, **some(
                         r, pct_start=0.5, anneal_strategy="linear", div_factor=5., three_phase=True)))])


def draw_body(r):
    n, tokens = r.randint(2, 5), None
    rank = r.choice([2, 3, 4, 4])
    shape = (n, *(r.randint(1, 8) for _ in range(rank - 1)))
    first = []
    if rank == 3 and r.random() < EMBEDDED:
        tokens = r.randint(3, 12)
        embedding = Spec("Embedding", [tokens, shape[2]], some(r, padding_idx=r.choice([0, 2, -1])))
        first, shape = [embedding], shape
    net, out = chain(r, shape, r.randint(1, 7))
    net.children[:0] = first
    return net, list(shape[:2] if tokens else shape), out, tokens


def widen(r, net, out):
    """The network with a layer of 4096 weights or more after it, which get states of 8 bits; what comes out"""
    images = len(out) == 4 or len(out) == 3 and r.random() < 0.5
    at = 1 if images else len(out) - 1
    wide, size = 64 * math.ceil(64 / out[at]), r.choice([1, 3])
    made = ("Conv%dd" % (len(out) - 2), {"padding": size // 2}) if images else ("Linear", {})
    for into, outs in ((out[at], wide), (wide, out[at]))[:r.randint(1, 2)]:
        net.children += [Spec(made[0], [into, outs] + [size] * images, made[1]), Spec("Tanh")]
    return (*out[:at], outs, *out[at + 1:])


def draw(seed, data):
    r = random.Random(seed)
    net, shape, out, tokens = draw_body(r)
    optimizer, clip = draw_optimizer(r)
    if optimizer.kind in LOW_BIT:
        out = widen(r, net, out)
    net, loss, classes = draw_loss(r, net, out)
    ignored = loss.options.get("ignore_index")
    net, losses = draw_heads(r, net, shape, tokens, loss, classes)
    kinds = " ".join(sorted(kinds_of(net)))
    recompute, rectified = "BatchNorm" not in kinds, optimizer.kind == "RAdam"  # which begins with the sixth step
    return dict(
        seed=seed, data=data, net=net, losses=losses, optimizer=optimizer, clip=clip,
        schedule=None if rectified else draw_schedule(r), input=shape, tokens=tokens, classes=classes, ignored=ignored,
        steps=7 if rectified else 4, accumulate=r.choice([1, 1, 1, 2, 3]), inplace=r.choice(["marked", True, False]),
        checkpoint=r.choice(["none", "none", "all", "sqrt", "selective", "marked"]) if recompute else "none",
        allocator=r.choice(["planned", "caching"]))


def kinds_of(spec):
    children = spec.children.values() if isinstance(spec.children, dict) else spec.children
    return {spec.kind}.union(*map(kinds_of, children))


def case_script(case):
    shared, lines, seen = {}, [], {}

    def count(spec):
        seen[spec] = seen.get(spec, 0) + 1
        for child in spec.children.values() if isinstance(spec.children, dict) else spec.children:
            count(child)
    count(case["net"])
    for i, spec in enumerate(s for s, n in seen.items() if n > 1):
        lines.append(f"local shared{i} = {script(spec, shared)}")
        shared[spec] = f"shared{i}"
    clip = {"clip_norm": case["clip"]} if case["clip"] else {}
    optimizer = Spec(case["optimizer"].kind, [], {**case["optimizer"].options, **clip})
    terms = [("" if factor == 1 else f"{factor} * ") + script(loss, {}) for factor, loss in case["losses"]]
    made = {"model": " ".join(lines) + " return " + script(case["net"], shared),
            "loss": "return " + " + ".join(terms), "optimizer": "return " + script(optimizer, {})}
    made["optimizer"] = made["optimizer"].replace("nn.", "optim.")
    if case["schedule"]:
        made["schedule"] = "return " + script(case["schedule"], {}).replace("nn.", "optim.")
    values = {key: case[key] for key in ("seed", "data", "input", "tokens", "classes", "ignored", "steps", "accumulate",
                                         "inplace", "checkpoint", "allocator") if case[key] is not None}
    return "{%s,\n%s}" % (lua(values)[1:-1], ",\n".join(
        f"  {key} = function() {text} end" for key, text in made.items()))


# ---- PyTorch's side

def parts_of(tensor, parts):
    return torch.tensor_split(tensor, parts)


def one_step(case, net, loss_of, step, dtype, shape):
    x, t = inputs(case, step, case["accumulate"]), targets(case, step, case["accumulate"], shape)
    total = 0
    for part, wanted in zip(parts_of(x, case["accumulate"]), parts_of(t, case["accumulate"])):
        part, wanted = (v if v.dtype == torch.long else v.to(dtype) for v in (part, wanted))
        loss = loss_of(net(part), wanted, case["accumulate"])
        loss.backward()
        total += loss.item()
    return total


def losses_of(case, dtype):
    """A function of outputs, targets and the number of micro-batches"""
    terms = []
    for factor, loss in case["losses"]:
        options = {name: torch.tensor(value, dtype=dtype) if "weight" in name else value
                   for name, value in loss.options.items()}
        own = {"CrossEntropyLoss": CrossEntropyLoss, "IdentityLoss": IdentityLoss}
        terms.append((factor, (own.get(loss.kind) or getattr(nn, loss.kind))(**options)))

    def total(outputs, wanted, parts=1):
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return sum(factor / (parts if loss.reduction == "mean" else 1) * loss(y, wanted)
                   for (factor, loss), y in zip(terms, outputs))
    return total


def compute(case, dtype):
    torch.manual_seed(1)
    net, loss_of = build(case["net"]).to(dtype), losses_of(case, dtype)
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(parameter(case, name, p))
        first = copy.deepcopy(net)(inputs(case, 0, 1) if case["tokens"] else inputs(case, 0, 1).to(dtype))
        shape = list((first[0] if isinstance(first, tuple) else first).shape)
    of = torchao if case["optimizer"].kind in LOW_BIT else torch.optim
    optimizer = getattr(of, case["optimizer"].kind)(net.parameters(), **case["optimizer"].options)
    schedule = case["schedule"] and getattr(torch.optim.lr_scheduler, case["schedule"].kind)(
        optimizer, *case["schedule"].args, **case["schedule"].options)
    found = dict(losses=[], output=shape)
    for step in range(case["steps"]):
        optimizer.zero_grad()
        found["losses"].append(one_step(case, net, loss_of, step, dtype, shape))
        if step == 0:
            found["gradients"] = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        if case["clip"]:
            nn.utils.clip_grad_norm_(net.parameters(), case["clip"])
        optimizer.step()
        if schedule:
            schedule.step()
    found["parameters"] = [(n, p.detach()) for n, p in net.named_parameters()]
    found["states"] = {name: {key: optimizer.state[p][key] for key in ("exp_avg", "exp_avg_sq")}
                       for name, p in net.named_parameters() if hasattr(optimizer.state[p].get("exp_avg"), "codes")}
    found["buffers"] = [(n, b) for n, b in net.named_buffers()]
    net.eval()
    x, t = inputs(case, 99, 1), targets(case, 99, 1, shape)
    with torch.no_grad():
        y = net(x if case["tokens"] else x.to(dtype))
        found["eval_output"] = y
        found["eval_loss"] = loss_of(y, t if case["classes"] else t.to(dtype)).item()
    return found


# ---- both

def flat(value):
    return torch.as_tensor(value, dtype=torch.float64).flatten()


def compare(what, found, near, exact, scale=0., share=3e-4):
    """None, or what is wrong: `found` is further from `exact` than a few times what `near` is"""
    found, near, exact = flat(found), flat(near), flat(exact)
    if found.shape != exact.shape:
        return f"{what}: {found.numel()} numbers, expected {exact.numel()}"
    size = exact.norm().item() + scale
    away, fair = (found - exact).norm().item(), (near - exact).norm().item()
    if not math.isfinite(size) or not math.isfinite(fair):
        return None
    if away <= 30 * fair + share * size + 1e-6:
        return None
    return f"{what}: {away / max(size, 1e-30):.2g} of its norm away, PyTorch in fp32 {fair / max(size, 1e-30):.2g}"


# States of 8 bits are a per cent from what they stand for, and neighbours' places where rounding decides; of the
# smallest ones all of it. What is updated by them is as far away as a few such places make.
CODES_SHARE = 3e-3


def differing_states(found, near, exact):
    if sorted(name for name, *_ in found["states"]) != sorted(exact["states"]):
        return [f"states of 8 bits of {[s[0] for s in found['states']]}, expected {list(exact['states'])}"]
    wrong = []
    for name, *codes, scales in found["states"]:
        for key, code, scale in zip(("exp_avg", "exp_avg_sq"), codes, torch.tensor(scales).chunk(2)):
            a, b = exact["states"][name][key], near["states"][name][key]
            values = a.qmap[torch.tensor(code)].view(len(scale), -1) * scale[:, None]
            wrong.append(compare(f"{name}.{key}", values, b.dequantize(), a.dequantize(),
                                 share=CODES_SHARE))
    return wrong


def differences(found, near, exact):
    if "error" in found:
        return [] if any(text in found["error"] for text in REFUSED) else ["memtide: " + found["error"]]
    wrong = []
    for kind in "parameters", "buffers":
        names = [[n, list(t.shape)] for n, t in exact[kind]]
        if [[n, s] for n, s, _ in found[kind]] != names:
            return [f"{kind}: {[[n, s] for n, s, _ in found[kind]]}, expected {names}"]
    if found["output"] != exact["output"]:
        return [f"output {found['output']}, expected {exact['output']}"]
    gradients = found["gradients"] or {}
    scale = sum(g.norm().item() for g in exact["gradients"].values())
    if sorted(gradients) != sorted(exact["gradients"]):
        return [f"gradients of {sorted(gradients)}, expected {sorted(exact['gradients'])}"]
    for name, g in exact["gradients"].items():
        wrong.append(compare("gradient of " + name, gradients[name], near["gradients"][name], g, 1e-2 * scale))
    for i, loss in enumerate(exact["losses"]):
        wrong.append(compare(f"loss {i}", found["losses"][i], near["losses"][i], loss, 1e-3))
    share = CODES_SHARE if exact["states"] else 3e-4
    for kind in "parameters", "buffers":
        for (name, _, t), (_, b), (_, a) in zip(found[kind], near[kind], exact[kind]):
            wrong.append(compare(name, t, b, a, share=share))
    wrong += differing_states(found, near, exact)
    for key in "eval_output", "eval_loss":
        wrong.append(compare(key, found[key], near[key], exact[key], 1e-3))
    return [w for w in wrong if w]


def run_memtide(program, cases, keep):
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "cases.lua")
    with open(path, "w") as f:
        f.write("local mt = require \"memtide\"\nlocal nn, optim = mt.nn, mt.optim\nreturn {\n%s\n}\n" % ",\n".join(
            map(case_script, cases)))
    here = os.path.dirname(os.path.abspath(__file__))
    result = subprocess.run([program, os.path.join(here, "fuzz.lua"), path], capture_output=True, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = result.stdout.splitlines()
    if not keep:
        os.remove(path)
        os.rmdir(folder)
    last = {"error": f"memtide ended with status {result.returncode}: {result.stderr.strip()[-300:]}"}
    return [json.loads(line) for line in lines] + [last] * (len(cases) - len(lines))


def check(program, cases, keep=False):
    """[(case, what is wrong)] of those in which something is"""
    wrong = []
    for case, found in zip(cases, run_memtide(program, cases, keep)):
        try:
            exact, near = compute(case, torch.float64), compute(case, torch.float32)
        except (RuntimeError, ValueError) as refused:
            if "error" not in found:
                wrong.append((case, [f"PyTorch refuses: {refused}"]))
            continue
        if list_of := differences(found, near, exact):
            wrong.append((case, list_of))
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memtide", default="build/memtide")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="seeds of cases, to look at them alone")
    parser.add_argument("--kinds", help="of layers: networks without any of these are drawn and left out")
    parser.add_argument("--keep", action="store_true", help="leave the scripts in the temporary folder")
    args = parser.parse_args()
    if "bias" not in inspect.signature(nn.LayerNorm).parameters:
        print(f"peer-fuzz: SKIPPED: PyTorch 2.1 or later is needed, found {torch.__version__}")
        return 0
    torch.set_num_threads(1)
    seeds = [int(s) for s in args.only.split(",")] if args.only else range(args.seed, args.seed + args.count)
    failed, checked, skipped, kinds, wanted = 0, 0, 0, {}, set(args.kinds.split(",")) if args.kinds else None
    for at in range(0, len(seeds), CHUNK):
        cases = [draw(seed, 1) for seed in seeds[at:at + CHUNK]]
        cases = [case for case in cases if not wanted or wanted & kinds_of(case["net"])]
        if not torchao:
            skipped += sum(case["optimizer"].kind in LOW_BIT for case in cases)
            cases = [case for case in cases if case["optimizer"].kind not in LOW_BIT]
        checked += len(cases)
        for case in cases:
            for kind in kinds_of(case["net"]) | {loss.kind for _, loss in case["losses"]} | {case["optimizer"].kind} | {
                    "%d losses" % len(case["losses"])}:
                kinds[kind] = kinds.get(kind, 0) + 1
        wrong = check(args.memtide, cases, args.keep)
        for data in 2, 3:
            wrong = wrong and check(args.memtide, [draw(case["seed"], data) for case, _ in wrong], args.keep)
        for case, what in wrong:
            failed += 1
            print("case", case["seed"], "\n  " + "\n  ".join(what[:6]), "\n" + case_script(case), flush=True)
        print(f"{min(at + CHUNK, len(seeds))} of {len(seeds)} drawn, {failed} differ", file=sys.stderr, flush=True)
    print(f"{checked} networks, {failed} differ;", ", ".join(f"{k} {n}" for k, n in sorted(kinds.items())))
    if skipped:
        print(f"peer-fuzz: SKIPPED: {skipped} networks with {' or '.join(LOW_BIT)}: no torchao for this PyTorch")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
