/* direct_conv.h: convolutions whose weights outweigh their images, in fp32 and bf16; the weights are read where they
 * lie. bf16 that the processor does not multiply is converted by the way. A tap, one place (kh, kw) of the kernel, is a
 * matrix product over the pixels that it reaches in an image. So pixels of the padding take no work. The weights are
 * never copied as a whole: that would cost as much as the products.
 *
 *   y  (pixels, O) += x  (pixels it comes from, C) w_tap^T        dw_tap (O, C) = dy^T x
 *   dx (pixels, C) += dy (pixels it comes from, O) w_tap
 *
 *   workspace of y, dx = [x or dy, transposed | b, c of thread 0 | b, c of thread 1 | ...]
 *   workspace of dw    = [dy in panels of rows | x in panels of columns | a row of tiles of thread 0 | ...]
 *
 * y, dx: a piece of work is 32 of their channels. Their sums c (pixels, 32) stay in the cache while the weights come
 * by in blocks b (CHUNK units, 32). dw: a piece of work is 8 of its rows. The number of threads changes no bit. */
#ifndef MT_CPU_DIRECT_CONV_H
#define MT_CPU_DIRECT_CONV_H

#include "program/kernel.h"

/* Is op `args` (conv2d, conv2d_dx or conv2d_dw) one of these, is it faster this way, and does it fit into `limit`
 * bytes of workspace? Then *bytes is what it takes. */
bool direct_conv_prepare(const KArgs *args, size_t limit, size_t *bytes);
KernelRun direct_conv_run;

#endif
