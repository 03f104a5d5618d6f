"""One rank of several on the device of fakegpu.py: PyTorch's fake process group, in which no bytes move, and what wraps the model.
Collectives give what they would if all ranks were alike (simulate_uniform_ranks), since DistributedDataParallel wants the
results of its all-reduces.

Not seen: what NCCL takes, and streams: fully_shard allocates on several, which decides whose blocks a tensor can have. What DistributedDataParallel's constructor compares over the ranks it reads on the host, where this
device has no numbers: verify() allocates what it does (reducer.cpp, verify_params_across_processes)."""
import contextlib

import torch
import torch.distributed as dist
import torch.nn.parallel.distributed as ddp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch._C._distributed_c10d import FakeProcessGroup
from torch.testing._internal.distributed.fake_pg import FakeStore

import fakegpu

MIB = 1 << 20


class Event:
    def __init__(self, *_, **__):
        pass

    def record(self, *_):
        pass

    wait = synchronize = record


class Stream(Event):
    """Nothing runs, so nothing waits."""
    stream_id, device_index, device_type = 0, 0, 20

    def record_event(self, *_):
        return Event()

    wait_stream = wait_event = Event.record


STREAM = Stream()
for name, value in dict(Event=Event, Stream=Stream, current_stream=lambda *_: STREAM, set_device=lambda *_: None,
                        stream=lambda *_: contextlib.nullcontext()).items():
    setattr(torch.fakegpu, name, value)


@contextlib.contextmanager
def group(case):
    """Within it this process is the rank case.rank of case.world."""
    if case.world == 1:
        yield
        return
    options = FakeProcessGroup.Options()
    options.simulate_uniform_ranks = True
    dist.init_process_group("fakegpu:fake", rank=case.rank, world_size=case.world, store=FakeStore(), pg_options=options)
    try:
        yield
    finally:
        dist.destroy_process_group()


def verify(process_group, parameters, logger=None):
    count = torch.tensor([len(parameters)], device=fakegpu.device)
    gathered = [torch.empty_like(count) for _ in range(dist.get_world_size(process_group))]
    dist.all_gather(gathered, count, group=process_group)
    torch.empty(sum(2 * p.dim() for p in parameters), dtype=torch.int64).to(fakegpu.device)


ddp._verify_param_shape_across_processes = verify


def structure(module):
    return type(module), [p.shape for p in module.parameters(recurse=False)], [structure(child) for child in module.children()]


def units(module):
    """core/eager/fsdp.c: those with children that have a sibling with the same layers and shapes, the outermost"""
    children = list(module.children())
    for child in children:
        alike = sum(structure(child) == structure(other) for other in children)
        if alike > 1 and list(child.children()) and any(True for _ in child.parameters()):
            yield child
        else:
            yield from units(child)


def shard(case, model):
    types = {name: getattr(torch, case.pytorch[name]) for name in ("param_dtype", "reduce_dtype") if name in case.pytorch}
    how = dict(mesh=init_device_mesh(fakegpu.device.type, (case.world,)), mp_policy=MixedPrecisionPolicy(**types))
    if case.settings["zero"] == 2:
        how["reshard_after_forward"] = False
    for unit in list(units(model)):  # fully_shard changes their types
        fully_shard(unit, **how)
    return fully_shard(model, **how)


def wrap(case, model):
    """What the loop calls in the model's place"""
    if case.world > 1 and case.settings.get("zero", 0) > 1:
        return shard(case, model)
    if case.world == 1 or case.mode != "train":
        return model
    chosen = {key: case.pytorch[key] for key in ("gradient_as_bucket_view", "broadcast_buffers") if key in case.pytorch}
    if "bucket_bytes" in case.settings:
        chosen["bucket_cap_mb"] = case.settings["bucket_bytes"] / MIB
    return ddp.DistributedDataParallel(model, **chosen)


def optimizer(case, model, kind, options):
    if case.world > 1 and case.settings.get("zero") == 1:
        return ZeroRedundancyOptimizer(model.parameters(), kind, **options)
    return kind(model.parameters(), **options)


def unsynced(case, wrapped, part):
    """A micro-batch that is not the last one sends no gradients; fully_shard's does."""
    last = case.world == 1 or case.mode != "train" or part + 1 == case.accumulate or case.settings.get("zero", 0) > 1
    return contextlib.nullcontext() if last else wrapped.no_sync()
