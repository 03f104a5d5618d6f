"""Steps of eager PyTorch beside memtide's prediction of them (make peer-eager):

    FAKEGPU=build/fakegpu.so python3 tests/peers/eager.py --memtide build/memtide [--only NAME,NAME] [--list] [--write DIR]
        [--table] [--flops] [--mix FIRST,COUNT]

Each case is one network in both. PyTorch's side runs on fakegpu.cpp's device: setup (model.to(device), the optimizer is
made), then three steps, each of them

    x = new(); y = new()                 # freshly allocated; the old one goes when its name is bound again
    optimizer.zero_grad()
    output = model(x)                    # these two under torch.autocast in amp_bf16 and amp_fp16
    loss = criterion(output, y)
    loss.backward()                      # amp_fp16: scaler.scale(loss).backward()
    optimizer.step()                     # amp_fp16: scaler.step(optimizer); scaler.update()

With accumulation, x to backward() is done for each micro-batch, loss divided by their number (under autocast, too),
and zero_grad() in the first one alone. Gradients are clipped before step(), after scaler.unscale_(optimizer). Evaluation:
model.eval(), no optimizer, x, y, output and loss under torch.no_grad(). With world > 1 the model is wrapped, after it has
been moved, and this is the first rank (ranks.py); all micro-batches but the last are under no_sync().

memtide's side is `memtide dump SCRIPT --set framework=pytorch`, as that version of PyTorch. Between marks both must allocate
the same sizes in the same order and free the same tensors between two allocations, and the last step must have the same
peak. With --flops the operations of a step are compared instead, of products, convolutions and attention, with what
torch.utils.flop_counter counts while the case runs. --mix takes cases with settings that are drawn: optimizer and its form, precision,
accumulation, memory format, kernels of attention, offloading; mix_17 is always the same."""
import argparse
import contextlib
import gc
import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.checkpoint import checkpoint_sequential

import fakegpu
import ranks
from eager_cases import CASES, SHORT, SHORT_OLDER, Experiment, mixed

BLOCK = 512
VERSION, NEWEST = ".".join(torch.__version__.split(".")[:2]), "2.15"  # core/eager/versions.def
ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "memory_efficient": SDPBackend.EFFICIENT_ATTENTION,
             "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
AUTOCAST = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}


# ---- PyTorch's side

@contextlib.contextmanager
def without_initialisation():
    """Nobody reads the numbers, and large networks take seconds to draw them."""
    names = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    kept = {name: getattr(nn.init, name) for name in names}
    for name in names:
        setattr(nn.init, name, lambda tensor, *args, **options: tensor)
    yield
    for name, function in kept.items():
        setattr(nn.init, name, function)


def tuple_of(output):
    return output if isinstance(output, tuple) else (output,)


def target_shape(case, model):
    """Of y, as the loss wants it of what the model gives"""
    with torch.device(fakegpu.device), torch.no_grad(), without_initialisation():
        given = [torch.empty(case.batch, *shape, dtype=dtype)
                 for shape, dtype in case.inputs()]
        shape = tuple_of(case.module()(*given))[0].shape
    return (shape[0], *shape[2:]) if case.of_classes() else shape


def make_optimizer(case, model):
    options = dict(case.optimizer.options)
    clip = options.pop("clip_norm", None)
    chosen = {key: value for key, value in case.pytorch.items() if key in ("foreach", "fused")}
    if case.optimizer.kind == "Lion" or case.optimizer.kind.startswith("Paged"):
        import fakebnb
        return getattr(fakebnb.bitsandbytes.optim, case.optimizer.kind)(model.parameters(), **options), clip
    return ranks.optimizer(case, model, getattr(torch.optim, case.optimizer.kind), {**options, **chosen}), clip


def move(module, device, format):
    """model.to(device, memory_format=format), as it is on CUDA: a tensor that has two names is moved once, and keeps both. (A device that is not
    built in gets new parameters, one for each name.)"""
    moved = {}

    def of(tensor):
        if tensor is not None and id(tensor) not in moved:
            there = tensor.data.to(device, memory_format=format if tensor.dim() == 4 else torch.preserve_format)
            moved[id(tensor)] = (nn.Parameter(there, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else there, tensor)
        return None if tensor is None else moved[id(tensor)][0]

    def visit(part):
        for child in part.children():
            visit(child)
        if hasattr(part, "moved_to"):  # fakebnb.py
            part.moved_to(device)
        for names in () if hasattr(part, "moved_to") else (part._parameters, part._buffers):
            for name, tensor in names.items():
                names[name] = of(tensor)
        if isinstance(part, nn.RNNBase):
            fakegpu.flatten_parameters(part)

    visit(module)
    moved.clear()  # fully_shard lets the parameters go, and functions that call themselves live until they are collected


def pack_to_cpu(tensor):
    """torch.autograd.graph.save_on_cpu(pin_memory=True), and what CUDA's copy_ to the host takes if the tensor does not lie
    in order"""
    tensor.contiguous()
    return tensor.device, torch.empty(tensor.size(), dtype=tensor.dtype)


def unpack_from_cpu(packed):
    device, tensor = packed
    return torch.empty(tensor.size(), dtype=tensor.dtype, device=device)


def steps_of(case):
    """Until a step is like all later ones: the third, but RAdam's for-loop divides by the squares from the sixth step on"""
    return 7 if case.optimizer.kind == "RAdam" and case.pytorch.get("foreach") is False else 3


def run_case(case, watch=contextlib.nullcontext()):
    """Runs it on the fake device, which writes down what happens; see the top. The steps run within `watch`."""
    with ranks.group(case):
        return run_rank(case, watch)


def run_rank(case, watch):
    device = fakegpu.device
    with without_initialisation():
        model = case.module()
    wanted, low = target_shape(case, model), AUTOCAST.get(case.precision)
    criteria = case.criteria()
    fakegpu.clear()
    fakegpu.name_layers(model)
    format = torch.channels_last if case.pytorch.get("channels_last") else torch.preserve_format
    move(model, device, format)
    for _, term in criteria:
        move(term, device, format)
    training = case.mode == "train"
    wrapped = ranks.wrap(case, model)
    if training:
        optimizer, clip = make_optimizer(case, model)
    else:
        model.eval()
    scaled = training and case.settings.get("grad_scaler", case.precision == "amp_fp16")
    options = scaled if isinstance(scaled, dict) else {}
    scaler = torch.amp.GradScaler(device.type, **options) if scaled is not False else None

    def criterion(output, y):
        # as `a + 0.3 * b + 0.3 * c`: no name holds a term
        def value(k):
            factor, term = criteria[k]
            return term(tuple_of(output)[k], y) if factor == 1 else factor * term(tuple_of(output)[k], y)

        total = value(0)
        for k in range(1, min(len(criteria), len(tuple_of(output)))):
            total = total + value(k)
        return total

    saved = contextlib.nullcontext
    if training and case.settings.get("offload") == "all":
        saved = lambda: torch.autograd.graph.saved_tensors_hooks(pack_to_cpu, unpack_from_cpu)

    def forward(x):
        if training and case.settings.get("checkpoint") == "sqrt":
            return checkpoint_sequential(model, round(len(model) ** 0.5), *x, use_reentrant=False)
        return wrapped(*x)

    x = [None] * len(case.inputs())
    with watch:
        for step in range(1, steps_of(case) + 1):
            fakegpu.mark(f"step {step}")
            for part in range(case.accumulate):
                for k, (shape, dtype) in enumerate(case.inputs()):
                    x[k] = torch.empty(case.batch, *shape, device=device, dtype=dtype,
                                       memory_format=format if len(shape) == 3 and case.pytorch.get("channels_last")
                                       else torch.contiguous_format)
                y = torch.empty(wanted, device=device, dtype=torch.int64 if case.of_classes() else torch.float32)
                if training and part == 0:
                    optimizer.zero_grad(set_to_none=case.pytorch.get("set_to_none", True))
                with ranks.unsynced(case, wrapped, part):
                    attention = ATTENTION.get(case.pytorch.get("attention"))
                    with torch.set_grad_enabled(training), torch.autocast(device.type, low, enabled=low is not None), \
                            saved(), sdpa_kernel(attention) if attention else contextlib.nullcontext():
                        output = forward(x)
                        loss = criterion(output, y)
                        if case.accumulate > 1:
                            loss = loss / case.accumulate
                    if training:
                        (scaler.scale(loss) if scaler else loss).backward()
            if training:
                if clip:
                    if scaler:
                        scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                if scaler:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
    fakegpu.mark("end")
    return fakegpu.events()


NODE = "autograd::engine::evaluate_function: "


def shown(ops):
    """Without repetitions, and without the functions that only allocate"""
    names = []
    for name in ops.replace(NODE, "").split("|"):
        if names[-1:] != [name]:
            names.append(name)
    while len(names) > 1 and names[-1] in ("aten::empty", "aten::empty_strided", "aten::empty_like"):
        names.pop()
    return "|".join(names) or "-"


def pytorch_text(case):
    """The case's events as `memtide dump` prints them"""
    lines = []
    for event in run_case(case):
        if event[0] == "alloc":
            lines.append(f"+{event[1]} {event[2]} - {shown(event[3])} {event[4] or '-'} -")
        elif event[0] == "free":
            lines.append(f"-{event[1]}")
        elif event[1] != "end":
            lines.append(f"= {event[1]}")
        else:
            break
    gc.collect()
    return "\n".join(lines) + "\n"


def recurrent_flops(x, weights, group, *_, **__):
    """Of shapes: each step of each sample meets each matrix of weights once; of a group the first two are matrices"""
    return 2 * x[0] * x[1] * sum(math.prod(w) for i, w in enumerate(weights) if i % group < 2)


def recurrent_backward_flops(x, weights, group, *_, **__):
    return 2 * recurrent_flops(x, weights, group)


# Of ops that the counter does not know
OTHERS = {torch.ops.aten._cudnn_rnn: recurrent_flops, torch.ops.aten._cudnn_rnn_backward: recurrent_backward_flops}


def pytorch_flops(case):
    """Of a step: all are alike"""
    counter = FlopCounterMode(display=False, custom_mapping=OTHERS)
    run_case(case, counter)
    gc.collect()
    return counter.get_total_flops() // steps_of(case)


# ---- memtide's side

class NotPredicted(Exception):
    pass


def memtide_text(case, program, folder, command="dump"):
    if isinstance(case.model, Experiment):
        arguments = [f"experiments/{case.model.name}.lua", *case.model.options]
    else:
        arguments = [os.path.join(folder, case.name + ".lua")]
        with open(arguments[0], "w") as script:
            script.write(case.script())
    chosen = {**case.pytorch, "version": VERSION}
    options = " ".join(f"{name}={str(value).lower()}" for name, value in chosen.items())
    call = [program, command, *arguments, "--set", "framework=pytorch", "--set", "pytorch=" + options]
    if case.rank and command == "dump":
        call = [program, "tests/peers/rank.lua", arguments[0], str(case.rank)]
    found = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if found.returncode:
        raise NotPredicted(found.stderr.strip().splitlines()[-1] if found.stderr.strip() else f"status {found.returncode}")
    return found.stdout


def memtide_flops(case, program, folder):
    return int(re.search(r": (\d+) FLOP", memtide_text(case, program, folder, "explain"))[1])


# ---- both

@dataclass
class Event:
    """An allocation, or a mark (bytes is None), and what was freed after it and before the next"""
    bytes: int
    text: str
    freed: set = field(default_factory=set)  # places among the allocations
    place: int = 0


CUDNN = "aten::cudnn_convolution"  # the workspaces that fakegpu.cpp, which has no cuDNN, cannot know: left out


def parse(text):
    events, place, count, unknown = [Event(None, "setup")], {}, 0, set()
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("= "):
            events.append(Event(None, line[2:]))
        elif line.startswith("-"):
            if int(line[1:]) not in unknown:
                events[-1].freed.add(place.pop(int(line[1:])))
        elif line.startswith("+"):
            identity, size, _, op, layer, where = line[1:].split(" ", 5)
            if CUDNN in op:
                unknown.add(int(identity))
                continue
            place[int(identity)], count = count, count + 1
            events.append(Event(int(size), " ".join(word for word in (op, layer, where) if word != "-"), place=count - 1))
        else:
            raise ValueError(f"line {number}: not an event: {line}")
    return events


def peak(events):
    """Bytes in blocks at most in the last step"""
    last, now, most, size = max(i for i, e in enumerate(events) if e.bytes is None), 0, 0, {}
    for i, event in enumerate(events):
        if event.bytes is not None:
            size[event.place] = -(-event.bytes // BLOCK) * BLOCK
            now += size[event.place]
        most = max(most, now) if i >= last else 0
        now -= sum(size[place] for place in event.freed)
    return most


def differs(a, b):
    if a is None or b is None or a.bytes != b.bytes or a.bytes is None and a.text != b.text:
        return "an allocation"
    return "what is freed" if a.freed != b.freed else None


def first_difference(expected, found):
    """(place, what) or None"""
    for i in range(max(len(expected), len(found))):
        what = differs(expected[i] if i < len(expected) else None, found[i] if i < len(found) else None)
        if what:
            return i, what
    return None


def short_form(case, events):
    """For tests/lua/t_eager.lua: the operations of a step; the script; of each allocation its bytes, its op, and how many allocations before it
    those were made that are freed after it (0: itself). A step that is as the one before has a line of its own."""
    steps, count = [], 0
    for event in events:
        if event.bytes is None:
            steps.append([event.text, []])
        else:
            count += 1
        freed = "".join(f" -{count - 1 - place}" for place in sorted(event.freed, reverse=True))
        if event.bytes is not None:
            steps[-1][1].append(f"{event.bytes} {event.text.replace(' ', '@') or '-'}{freed}")
        elif freed:
            raise ValueError(f"{case.name}: a tensor is freed between a mark and the next allocation")
    counted = pytorch_flops(case) if VERSION == NEWEST else "-"  # older counters do not know grouped heads
    lines = [f"-- {counted} FLOP in a step" + (f", rank {case.rank}" if case.rank else ""), *case.script().splitlines(), "--"]
    for i, (text, step) in enumerate(steps):
        lines.append("= " + text)
        lines += ["as before"] if i and step == steps[i - 1][1] else step
    return "\n".join(lines) + "\n"


def line_of(events, i, other):
    if i >= len(events):
        return "(ended)"
    event = events[i]
    extra = sorted(event.freed - (other[i].freed if i < len(other) else set()))
    size = {e.place: e.bytes for e in events if e.bytes is not None}
    only = " frees alone " + ", ".join(f"#{p} ({size[p]})" for p in extra) if extra else ""
    head = f"= {event.text}" if event.bytes is None else f"#{event.place} {event.bytes} {event.text}"
    return f"{head}  -{len(event.freed)}{only}"


def show(expected, found, at, before=12, after=12):
    width = 100
    print(f"    {'PyTorch':{width}} | memtide")
    for i in range(max(0, at - before), at + after):
        left, right = line_of(expected, i, found), line_of(found, i, expected)
        same = i < len(expected) and i < len(found) and not differs(expected[i], found[i])
        print(f"  {' ' if same else '*'} {left:{width}} | {right}")


# ---- the table of docs/pytorch.md

# By the beginnings of the cases' names; "": the others
GROUPS = {"mlp": "an MLP: precisions, accumulation, evaluation",
          "": "other small networks: norms, residuals, attention, checkpointing, embedding", "layer_": "one layer each",
          "masked_": "attention with a bias, a window or a cap",
          "loss_": "losses", "optim_": "optimizers, each in foreach, for-loop and fused form", "model_": "`mt.models`",
          "experiment_": "networks of `experiments/`", "random_": "random graphs",
          "ddp_": "a rank of DistributedDataParallel", "zero1_": "... with ZeroRedundancyOptimizer",
          "fsdp": "a rank of `fully_shard`, with and without resharding after forward, and in bf16 by its policy"}


@dataclass
class Compared:
    name: str
    equal: bool     # every event
    peaks: tuple    # PyTorch's and memtide's; None: refused

    def group(self):
        return max((start for start in GROUPS if self.name.startswith(start)), key=len)

    def excess(self):
        """Of memtide's peak: 0 where they are equal"""
        return self.peaks[1] / self.peaks[0] - 1


def counts(cases):
    peaks = [case.excess() for case in cases if case.peaks]
    return [len(cases), sum(case.equal for case in cases), sum(x == 0 for x in peaks), sum(x < 0 for x in peaks),
            sum(x > 0 for x in peaks), len(cases) - len(peaks)]


def print_table(cases):
    print("| cases | | every event equal | peak equal | peak too low | too high | refused |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for start, title in [*GROUPS.items(), (None, "all")]:
        chosen = [case for case in cases if start is None or case.group() == start]
        if chosen:
            print(f"| {title} | {' | '.join(map(str, counts(chosen)))} |")
    peaks = [case.excess() for case in cases if case.peaks]
    if peaks:
        low = sum(x < 0 for x in peaks)
        print(f"\nThe share of under-estimates: {low} of {len(peaks)} peaks, {100 * low / len(peaks):.1f} %. The lowest is "
              f"{100 * -min(0, *peaks):.3g} % too low, the highest {100 * max(0, *peaks):.3g} % too high, and "
              f"{sum(abs(x) <= 1e-4 for x in peaks)} of {len(peaks)} are within 0.01 %.")


# ---- what the options ask for

class Report:
    """Counts the cases that are as they should be"""

    def __init__(self):
        self.equal = self.differ = self.known = 0
        self.compared = []

    def refused(self, name, why, message):
        """message: memtide's, or "" where it predicts what PyTorch refuses"""
        agree = "PyTorch refuses it" in message
        self.equal, self.differ = self.equal + agree, self.differ + (not agree)
        print(f"{name:32}         {'equal; ' * agree}PyTorch refuses: {why}; memtide: {message or 'does not'}", flush=True)

    def add(self, start, same, known, what, equal):
        """known: why the case is another in memtide, or "" """
        if same and not known:
            self.equal += 1
            print(f"{start}  equal; {equal}", flush=True)
        elif not same and known:
            self.known += 1
            print(f"{start}  as known, {what} ({known})", flush=True)
        else:
            self.differ += 1
            print(f"{start}  {what if not same else 'equal: it is no known difference any more'}", flush=True)

    def end(self):
        print(f"{self.equal + self.differ + self.known} cases: {self.equal} equal, {self.differ} differ, "
              f"{self.known} differ as known", flush=True)


def compare_events(name, case, args, folder, report):
    expected = parse(pytorch_text(case))
    place, peaks = None, None
    try:
        found = parse(memtide_text(case, args.memtide, folder))
        place, peaks = first_difference(expected, found), (peak(expected), peak(found))
        same = not place and peaks[0] == peaks[1]
        what = f"differs: {place[1] if place else 'the peak'}; peaks {peaks[0]} {peaks[1]}"
    except NotPredicted as why:
        same, what = False, f"not predicted: {why}"
    report.compared.append(Compared(name, same, peaks))
    report.add(f"{name:32} {sum(e.bytes is not None for e in expected):6}", same, case.known, what, f"peak {peaks and peaks[0]}")
    if args.only and place:
        show(expected, found, place[0])


GROUPED = "the counter takes the gradients of a convolution in groups for those of one without"


def compare_flops(name, case, args, folder, report):
    expected = pytorch_flops(case)
    try:
        found = memtide_flops(case, args.memtide, folder)
    except NotPredicted as why:
        found = f"not predicted: {why}"
    # a layer whose allocations differ may multiply the same matrices
    known = "" if found == expected else case.known or "groups" in case.script() and GROUPED
    report.add(f"{name:32}", found == expected, known, f"differs: {expected} {found}", f"{expected} FLOP")


def memtide_refuses(case, program, folder):
    """Its message; "": it predicts the case"""
    try:
        memtide_text(case, program, folder)
    except NotPredicted as why:
        return str(why)
    return ""


def write_case(name, case, args):
    script = "" if isinstance(case.model, Experiment) else case.script()
    for ending, content in (".lua", script), (".events", pytorch_text(case)):
        with open(os.path.join(args.write, name + ending), "w") as out:
            out.write(content)


def write_short(name, case, args):
    if VERSION != NEWEST:
        name += "_" + VERSION
        case = replace(case, name=name, pytorch={**case.pytorch, "version": VERSION})
    text = short_form(case, parse(pytorch_text(case)))
    with open(os.path.join(args.short, name + ".txt"), "w") as out:
        out.write(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memtide", default="build/memtide")
    parser.add_argument("--only", help="names of cases, parts of names with a * at the end")
    parser.add_argument("--list", action="store_true", help="the cases' names")
    parser.add_argument("--write", help="folder for PyTorch's lists and the scripts; memtide is not run")
    parser.add_argument("--short", help="folder for the short forms that tests/lua/t_eager.lua reads: tests/peers/eager")
    parser.add_argument("--table", action="store_true", help="at the end the table of docs/pytorch.md")
    parser.add_argument("--flops", action="store_true", help="compares operations in place of allocations")
    parser.add_argument("--mix", help="FIRST,COUNT: cases with settings that are drawn")
    args = parser.parse_args()
    if args.mix:
        first, count = map(int, args.mix.split(","))
        drawn = {f"mix_{seed}": mixed(seed) for seed in range(first, first + count)}
        CASES.clear()
        CASES.update(drawn)
    short = SHORT if VERSION == NEWEST else SHORT_OLDER
    names = [*short] if args.short and not args.only else list(CASES)
    if args.only:
        parts = args.only.split(",")
        names = [n for n in names if any(n == p or p.endswith("*") and n.startswith(p[:-1]) for p in parts)]
        if not names:
            sys.exit(f"eager.py: no case is named {args.only}; --list has them")
    if args.list:
        print("\n".join(names))
        return 0
    torch.set_num_threads(1)
    fakegpu.gpu(sms=108, threads=2048, workspace=8519680)  # an A100's
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            case = CASES[name]
            if case.newest_only and VERSION != NEWEST:
                continue
            try:
                if args.write:
                    write_case(name, case, args)
                elif args.short:
                    write_short(name, case, args)
                else:
                    (compare_flops if args.flops else compare_events)(name, case, args, folder, report)
            except ImportError as lacking:
                print(f"{name:32}         left out: {lacking}", flush=True)
            except (RuntimeError, NotImplementedError, ValueError) as why:
                report.refused(name, str(why).splitlines()[0], memtide_refuses(case, args.memtide, folder))
    if not args.write and not args.short:
        report.end()
    if args.table:
        print_table(report.compared)
    return report.differ > 0


if __name__ == "__main__":
    sys.exit(main())
