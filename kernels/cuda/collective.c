/* collective.c: the ops in which all ranks take part. */
#include "cuda.h"

#define REFUSED(name)                                                                                               \
    int k_cuda_##name(const KArgs *a, Err *e) {                                                                     \
        (void)a;                                                                                                    \
        return err_set(e, ERR_UNSUPPORTED, #name ": ranks on GPUs can be predicted, but not run: NCCL is not used yet"); \
    }
#define PREPARED(name)                                                                                              \
    int k_cuda_##name##_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {            \
        (void)a, (void)limit, (void)state, (void)e;                                                                 \
        *workspace = 0;                                                                                             \
        return OK;                                                                                                  \
    }
REFUSED(all_reduce)
REFUSED(all_reduce_)
REFUSED(reduce_scatter)
REFUSED(all_gather)
REFUSED(all_gather_)
REFUSED(any_overflow)
REFUSED(transfer)
PREPARED(all_reduce)
PREPARED(all_reduce_)
PREPARED(reduce_scatter)
