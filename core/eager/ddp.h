/* ddp.h: torch.nn.parallel.DistributedDataParallel around the model of one rank: every rank has all parameters, and the
 * gradients are summed in buckets while the backward pass runs. Source: torch/nn/parallel/distributed.py,
 * torch/csrc/distributed/c10d/reducer.cpp and comm.cpp, PyTorch 2.x. What NCCL itself takes is not PyTorch's. */
#ifndef MT_EAGER_DDP_H
#define MT_EAGER_DDP_H

#include "aten.h"

typedef struct Ddp Ddp;

/* The constructor, around the model whose parameters are on the device. NULL: host memory ran out. */
Ddp *ddp_new(Eager *g, const Settings *s);
/* Before a forward pass. sync: the backward pass after it sends gradients; false: it is under no_sync(). */
void ddp_forward(Eager *g, Ddp *d, bool sync);
/* The backward pass has ended. */
void ddp_backward_ends(Eager *g, Ddp *d);

#endif
