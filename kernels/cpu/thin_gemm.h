/* thin_gemm.h: products of linear layers one factor of which has few rows: few outputs, such as a classifier's (64 rows,
 * 100352 inputs, 10 outputs), of any floating types; or few samples.
 *
 *   y  (rows, O) = act(x w^T + b)    few outputs; few samples in fp32
 *   dx (rows, I) = dy w              few outputs
 *   dw (O, I)    = dy^T x            few samples, of types that oneDNN does not multiply, or fp32
 *
 * The long factor is read once, where it lies: nothing is copied or turned, as it is in a general product (25 MB for dx
 * in bf16). The number of threads changes no bit. */
#ifndef MT_THIN_GEMM_H
#define MT_THIN_GEMM_H

#include "program/kernel.h"

/* Is op `args`, a linear layer or a gradient of one, such a product? */
bool thin_fits(const KArgs *args);
size_t thin_workspace(const KArgs *args); /* bytes */
KernelRun thin_run;

#endif
