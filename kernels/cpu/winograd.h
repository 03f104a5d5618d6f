/* winograd.h: 3x3 convolutions of step 1 in fp32, y and both gradients, with 2.25 times fewer multiplications than
 * oneDNN's (winograd_tiles.h). No transformed tensor is ever whole: a thread turns some tiles at a time into points,
 * multiplies and turns back, within its second cache.
 *
 *   workspace of y, dx = [u of some panels of outputs | sums of db by strip | v, m of thread 0 | v, m of thread 1 ...]
 *   workspace of dw    = [v, e, a, sums of thread 0 | ... of thread 1 | ...]
 *
 * y, dx: strips of tiles are the threads' pieces of work, each strip done in blocks of as many tiles as fit.
 * dw: a piece of work is a rectangle of dw, for which all tiles are gone through.
 * The number of threads changes no bit. An infinity or NaN in x reaches all four pixels of the tiles that it is in. */
#ifndef MT_CPU_WINOGRAD_H
#define MT_CPU_WINOGRAD_H

#include "program/kernel.h"

/* Is op `args` (conv2d, conv2d_dx or conv2d_dw) one of these, worth it, and done in at most `limit` bytes? Then *bytes
 * are what it takes. */
bool winograd_prepare(const KArgs *args, size_t limit, size_t *bytes);
KernelRun winograd_run;

#endif
