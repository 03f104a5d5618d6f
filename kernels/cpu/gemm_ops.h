/* gemm_ops.h: linear layers and convolutions, y and both gradients, as products of gemm.h. A convolution's factor is
 * read out of its image while it is packed: no matrix of patches is ever made as a whole.
 *
 *   y  (pixels, O) = x's patches (pixels, taps C) w^T
 *   dx (pixels, C) = dy's patches (pixels, taps O) w     with a stride: of each class of pixels, which meet the same taps
 *   dw (O, taps C) = dy^T x's patches
 *
 *   workspace = [sums of db by block of rows | the product's] */
#ifndef MT_CPU_GEMM_OPS_H
#define MT_CPU_GEMM_OPS_H

#include "program/kernel.h"

/* Is op `args` (linear, conv2d or a gradient of them) one of these, and is it faster this way? Then *bytes is the
 * workspace that it takes: at most `limit`, where there is a way. */
bool gemm_op_prepare(const KArgs *args, size_t limit, size_t *bytes);
KernelRun gemm_op_run;
/* Of a gradient dx: is each element of s read before that of dx is written? Not where sums are made in dx itself. */
bool gemm_op_overwrites(const KArgs *args);

/* db of a dw that has one: the rows of dy, added up */
int product_bias(const KArgs *args, Err *e);

/* DeviceTable's rounds. Where bf16 is emulated, each way that such a product may take (this one, direct_conv.h, winograd.h) rounds
 * a weight as it packs or transforms it, and takes the same steps as with a copy; thin_gemm.h does so everywhere. */
bool product_rounds(const KArgs *args);

#endif
