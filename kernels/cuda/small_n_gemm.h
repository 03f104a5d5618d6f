/* small_n_gemm.h: linear layers with few outputs, where memory sets the pace and a library's tiles would be mostly
 * empty. The operands are those of the ops of linear.c, in any floating types. For C and .cu files. */
#ifndef MT_CUDA_SMALL_N_GEMM_H
#define MT_CUDA_SMALL_N_GEMM_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Have the weights w (O, I) few enough outputs? */
bool cuda_small_n_fits(const View *w);
/* Bytes of workspace that the op uses, at most `limit`. */
size_t cuda_small_n_workspace(const KArgs *args, size_t limit);
KernelRun cuda_small_n_forward, cuda_small_n_dx, cuda_small_n_dw;

#ifdef __cplusplus
}
#endif

#endif
