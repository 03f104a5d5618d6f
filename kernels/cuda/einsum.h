/* einsum.h: y = a b by labels (core/math/einsum.h) as plain loops, a thread for each element of y: for what the
 * library has no product for. For C and .cu files. */
#ifndef MT_CUDA_EINSUM_H
#define MT_CUDA_EINSUM_H

#include "cuda.h"
#include "math/einsum.h"

#ifdef __cplusplus
extern "C" {
#endif

int cuda_einsum_loops(const KArgs *args, const EinsumPlan *p, Err *e);

#ifdef __cplusplus
}
#endif

#endif
