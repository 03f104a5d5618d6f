/* fsdp.h: torch.distributed.fsdp.fully_shard (FSDP2) of one rank: each parameter is divided along its first dimension, and
 * a unit's parameters are gathered while it runs. Units are the layers that repeat (fsdp.c), and the whole with what is left.
 * Source: torch/distributed/fsdp/_fully_shard, PyTorch 2.15. What NCCL itself takes is not PyTorch's. */
#ifndef MT_EAGER_FSDP_H
#define MT_EAGER_FSDP_H

#include "aten.h"
#include "network/layer.h"

/* ERR_SCRIPT: what is not predicted, or PyTorch refuses, of zero = 2 and 3. */
int fsdp_check(const Network *net, const Settings *s, Err *e);
/* fully_shard() of the units and of the model whose parameters are on the device, which are then none of them. NULL: host
 * memory ran out. */
Fsdp *fsdp_new(Eager *g, const Settings *s);
/* What the optimizer has in the place of the network's i-th parameter, lent. */
Tensor *fsdp_shard(const Fsdp *f, int i);

/* The unit that the layer is, or NULL. */
FsdpUnit *fsdp_unit(const Eager *g, const Layer *l);
/* Before and after the forward function of a unit. taken[n]: its inputs, references; y: its output. */
void fsdp_before(Eager *g, FsdpUnit *u, Tensor *const *in, int n, Tensor **taken);
void fsdp_after(Eager *g, FsdpUnit *u, Tensor *y);

#endif
