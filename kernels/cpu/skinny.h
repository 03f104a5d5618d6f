/* skinny.h: linear layers with few outputs, such as a classifier's (64 rows, 100352 inputs, 10 outputs). Every operand is read
 * once and the arithmetic hides behind memory, which a general matrix product does not reach. Any floating types.
 * Contract: results do not depend on the number of threads. */
#ifndef MT_SKINNY_H
#define MT_SKINNY_H

#include "kernel.h"

/* Is (O, I), the shape of these weights, narrow enough? */
bool skinny_fits(const View *w);
size_t skinny_workspace(const KArgs *args); /* of the forward pass; the gradients need none */
KernelRun skinny_forward, skinny_dx, skinny_dw;

#endif
