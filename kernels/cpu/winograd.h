/* winograd.h: 3x3 convolutions of stride 1, y and both gradients, with 2.25 times fewer multiplications than oneDNN's
 * (winograd_tiles.h): in fp32, and in bf16 where the processor does not multiply that. No tensor is ever transformed as
 * a whole: a thread transforms some tiles at a time to points, multiplies and transforms back, within its second cache.
 *
 *   workspace of y, dx = [u of some panels of outputs | sums of db by strip | v, m of thread 0 | v, m of thread 1 ...]
 *   workspace of dw    = [v, e, a, sums of thread 0 | ... of thread 1 | ...]
 *
 * y, dx: a piece of work is a strip of tiles, which is done in blocks of as many tiles as fit. dw: a piece of work is
 * a rectangle of dw, which all tiles are summed into. The number of threads changes no bit. An infinity or NaN in x
 * reaches all four pixels of every tile whose patch has it. */
#ifndef MT_CPU_WINOGRAD_H
#define MT_CPU_WINOGRAD_H

#include "program/kernel.h"

/* Is op `args` (conv2d, conv2d_dx or conv2d_dw) one of these, is it faster this way, and does it fit into `limit`
 * bytes of workspace? Then *bytes is what it takes. */
bool winograd_prepare(const KArgs *args, size_t limit, size_t *bytes);
KernelRun winograd_run;
/* Of a gradient dx with an activation: is each element of s read before that of dx is written? */
bool winograd_overwrites(const KArgs *args);

#endif
