/* attention_own.h: attention by own kernels (attention.cu), which can all that the ops can. */
#ifndef MT_ATTENTION_OWN_H
#define MT_ATTENTION_OWN_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of either op's workspace */
size_t attention_own_workspace(const KArgs *a);
KernelRun attention_own; /* either op */

#ifdef __cplusplus
}
#endif

#endif
