/* small_n_gemm.h: y and dx of linear layers with few outputs, such as a classifier's (64 rows, 100352 inputs, 10
 * outputs). Every operand is read once, and nothing is copied, as it is in a general matrix product (25 MB for dx in
 * bf16). oneDNN computes the weights' gradient: it is as fast. Any floating types. The number of threads changes no
 * bit. */
#ifndef MT_SMALL_N_GEMM_H
#define MT_SMALL_N_GEMM_H

#include "program/kernel.h"

/* Have the weights w (O, I) few enough outputs? */
bool small_n_fits(const View *w);
/* bytes */
size_t small_n_workspace(const KArgs *args), small_n_dx_workspace(const KArgs *args);
KernelRun small_n_forward, small_n_dx;

#endif
