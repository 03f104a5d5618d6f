/* cross_entropy.h: cross entropy in parts, for linear_loss.c: loss.cu's sums and gradients over some of a batch's samples, as
 * core/program/linear_loss.h describes them. For C and .cu files. */
#ifndef MT_CUDA_CROSS_ENTROPY_H
#define MT_CUDA_CROSS_ENTROPY_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

size_t cuda_cross_entropy_sums(const KArgs *a);
int cuda_cross_entropy_terms(const KArgs *a, void *sums, size_t bytes, Err *e);
int cuda_cross_entropy_finish(const KArgs *a, const void *sums, size_t bytes, Err *e);
int cuda_cross_entropy_slopes(const KArgs *a, const View *t, Err *e);
/* Each rank along the mesh's axis "tensor" has filled in its part of `all`, of so many bytes: all get those of the others. */
int cuda_gather_parts(const KArgs *a, void *all, size_t bytes, Err *e);

#ifdef __cplusplus
}
#endif

#endif
