/* small_n_gemm.h: linear layers of few outputs, where memory sets the pace and a library's tiles would be mostly empty.
 * Same operands and types as the ops of linear.c; all of them take operands of any float types. For C and .cu files. */
#ifndef MT_CUDA_SMALL_N_GEMM_H
#define MT_CUDA_SMALL_N_GEMM_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Is (O, I), the shape of these weights, narrow enough? */
bool cuda_small_n_fits(const View *w);
/* Bytes that the op of this kind wants, at most `limit`. */
size_t cuda_small_n_workspace(const KArgs *args, size_t limit);
KernelRun cuda_small_n_forward, cuda_small_n_dx, cuda_small_n_dw;

#ifdef __cplusplus
}
#endif

#endif
