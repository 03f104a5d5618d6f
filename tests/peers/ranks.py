"""One rank of several on the device of fakegpu.py: PyTorch's fake process group, in which no bytes move, and what wraps the model.
Collectives give what they would if all ranks were alike (simulate_uniform_ranks), since DistributedDataParallel wants the
results of its all-reduces.

Not seen: what NCCL takes. What DistributedDataParallel's constructor compares over the ranks it reads on the host, where this
device has no numbers: verify() allocates what it does (reducer.cpp, verify_params_across_processes)."""
import contextlib

import torch
import torch.distributed as dist
import torch.nn.parallel.distributed as ddp
from torch._C._distributed_c10d import FakeProcessGroup
from torch.testing._internal.distributed.fake_pg import FakeStore

import fakegpu

MIB = 1 << 20


@contextlib.contextmanager
def group(case):
    """Within it this process is the first of case.world ranks."""
    if case.world == 1:
        yield
        return
    options = FakeProcessGroup.Options()
    options.simulate_uniform_ranks = True
    dist.init_process_group("fakegpu:fake", rank=0, world_size=case.world, store=FakeStore(), pg_options=options)
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


def wrap(case, model):
    """What the loop calls in the model's place"""
    if case.world == 1 or case.mode != "train":
        return model
    chosen = {key: case.pytorch[key] for key in ("gradient_as_bucket_view", "broadcast_buffers") if key in case.pytorch}
    if "bucket_bytes" in case.settings:
        chosen["bucket_cap_mb"] = case.settings["bucket_bytes"] / MIB
    return ddp.DistributedDataParallel(model, **chosen)


def unsynced(case, wrapped, part):
    """A micro-batch that is not the last one sends no gradients."""
    last = case.world == 1 or case.mode != "train" or part + 1 == case.accumulate
    return contextlib.nullcontext() if last else wrapped.no_sync()
