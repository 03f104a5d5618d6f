/* ranks.h: the ranks with which a GPU shares a training, and NCCL, by which they exchange. */
#ifndef MT_RANKS_H
#define MT_RANKS_H

#include "cuda.h"
#include "nccl_api.h"

struct Ranks {
    Nccl nccl;
    ncclComm_t comm;  /* NULL: not made yet */
    bool failed;      /* a call to NCCL has failed: the communicator cannot be closed in agreement with the other ranks */
};

/* OK; or fills *e with NCCL's text for the failure of `what`, ERR_DEVICE. */
int ranks_check(Ranks *r, ncclResult_t result, const char *what, Err *e);

#endif
