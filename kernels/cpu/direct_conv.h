/* direct_conv.h: convolutions whose weights outweigh their images, in fp32 and bf16, on the weights where they lie. A
 * tap, one place (kh, kw) of the kernel, is a matrix product over the pixels that it reaches in an image: pixels of the
 * padding take no work, and a copy of the weights, which would cost as much as the products, is never whole.
 *
 *   y  (pixels, O) += x  (pixels it comes from, C) w_tap^T        dw_tap (O, C) = dy^T x
 *   dx (pixels, C) += dy (pixels it comes from, O) w_tap
 *
 *   workspace of y, dx = [x or dy, transposed | b, c of thread 0 | b, c of thread 1 | ...]
 *   workspace of dw    = [dy in panels of rows | x in panels of columns | a row of tiles of thread 0 | ...]
 *
 * y, dx: a piece of work is 32 of their channels, whose sums c (pixels, 32) stay in the cache while the weights stream
 * by, in blocks b (CHUNK units, 32). dw: a piece of work is 8 rows of it.
 * The number of threads changes no bit. */
#ifndef MT_CPU_DIRECT_CONV_H
#define MT_CPU_DIRECT_CONV_H

#include "program/kernel.h"

/* Is op `args` (conv2d, conv2d_dx or conv2d_dw) one of these, worth it, and done in at most `limit` bytes? Then *bytes
 * are what it takes. */
bool direct_conv_prepare(const KArgs *args, size_t limit, size_t *bytes);
KernelRun direct_conv_run;

#endif
