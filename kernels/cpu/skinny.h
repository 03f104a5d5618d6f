/* skinny.h: y and dx of linear layers with few outputs, such as a classifier's (64 rows, 100352 inputs, 10 outputs).
 * Every operand is read once, without the copies that a general matrix product makes (25 MB for dx in bf16). The
 * weights' gradient is left to oneDNN, which is as fast. Any floating types. The number of threads changes no bit. */
#ifndef MT_SKINNY_H
#define MT_SKINNY_H

#include "kernel.h"

/* Is (O, I), the shape of these weights, narrow enough? */
bool skinny_fits(const View *w);
size_t skinny_workspace(const KArgs *args), skinny_dx_workspace(const KArgs *args);
KernelRun skinny_forward, skinny_dx;

#endif
