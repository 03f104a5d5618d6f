"""Writes what torch.amp.GradScaler does, for tests/lua/t_grad_scaler.lua: python3 tests/peers/grad_scaler.py >tests/oracle/grad_scaler.lua

A network of two linear layers without biases (autocast casts these to fp16, memtide does not) under autocast to fp16 on the
CPU, trained by SGD. Parameters, inputs and targets are formulas of their indices, the same as in t_grad_scaler.lua; in some steps
the inputs are so large that gradients overflow."""
import torch
from torch import nn

INPUTS, HIDDEN, OUTPUTS, BATCH, RATE = 6, 16, 4, 8, 0.02
CASES = [  # name, GradScaler's options, steps, steps with large inputs, from 1
    ("grows until it overflows", dict(init_scale=1024.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=3), 30, {5, 6, 17}),
    ("factors that are no powers of two", dict(init_scale=1000.0, growth_factor=1.3, backoff_factor=0.7, growth_interval=2), 20, {4, 9}),
    ("the defaults", dict(), 8, {1, 2, 6}),
    ("an overflow at first", dict(init_scale=2.0**40, growth_interval=3, backoff_factor=0.25), 30, set()),
]


def values(count, seed):
    """Multiples of 1/16 from -1/2 to 1/2, which are the same in fp16."""
    return torch.tensor([((i * 7 + seed * 5) % 17 - 8) / 16 for i in range(count)])


def run(options, steps, large):
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN, bias=False), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS, bias=False))
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(values(p.numel(), k).view_as(p))
    optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=RATE), nn.MSELoss()
    scaler, updates, rows = torch.amp.GradScaler("cpu", **options), [], []
    optimizer.register_step_post_hook(lambda *_: updates.append(1))
    for step in range(1, steps + 1):
        x = values(BATCH * INPUTS, step).view(BATCH, INPUTS) * (2.0**14 if step in large else 1.0)
        t = values(BATCH * OUTPUTS, step + 3).view(BATCH, OUTPUTS)
        optimizer.zero_grad()
        before = len(updates)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(model(x), t)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        rows.append((loss.item(), scaler.get_scale(), len(updates) == before))
    norms = [p.detach().double().norm().item() for p in model.parameters()]
    return rows, norms


def lua(items):
    return "{" + ", ".join(items) + "}"


print(f"-- What torch.amp.GradScaler does on the CPU, by PyTorch {torch.__version__.split('+')[0]} and tests/peers/grad_scaler.py: of each case the")
print("-- scale after each step, the steps without an update, the losses, and the norms of the parameters at the end")
print("return {")
for name, options, steps, large in CASES:
    rows, norms = run(options, steps, large)
    print(f'  {{name = "{name}", steps = {steps}, large = {lua(map(str, sorted(large)))},')
    print(f'    options = {lua(f"{key} = {value!r}" for key, value in options.items())},')
    print(f'    scales = {lua(repr(scale) for _, scale, _ in rows)},')
    print(f'    skipped = {lua(str(i + 1) for i, row in enumerate(rows) if row[2])},')
    print(f'    losses = {lua(repr(loss) for loss, _, _ in rows)},')
    print(f'    norms = {lua(map(repr, norms))}}},')
print("}")
