/* attention_own.h: attention by own kernels (attention.cu), which can all that the ops can, and what they do beside cuDNN. */
#ifndef MT_ATTENTION_OWN_H
#define MT_ATTENTION_OWN_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of either op's workspace */
size_t attention_own_workspace(const KArgs *a);
KernelRun attention_own; /* either op */
/* mask (samples, heads, queries, keys) of a float type, whose rows are `row` elements apart, a multiple of four: 1 where
 * dropout keeps a probability of op `a`, else 0 */
int attention_mask(const KArgs *a, void *mask, DType type, int64_t row, Err *e);

#ifdef __cplusplus
}
#endif

#endif
