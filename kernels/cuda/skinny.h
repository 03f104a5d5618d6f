/* skinny.h: linear layers of few outputs, where memory sets the pace and a library's tiles would be mostly empty. Same
 * operands and types as the ops of linear.c; all of them take operands of any float types. For C and .cu files. */
#ifndef MT_CUDA_SKINNY_H
#define MT_CUDA_SKINNY_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Is (O, I), the shape of these weights, narrow enough? */
bool cuda_skinny_fits(const View *w);
/* Bytes that the op of this kind wants, at most `limit`. */
size_t cuda_skinny_workspace(const KArgs *args, size_t limit);
KernelRun cuda_skinny_forward, cuda_skinny_dx, cuda_skinny_dw;

#ifdef __cplusplus
}
#endif

#endif
