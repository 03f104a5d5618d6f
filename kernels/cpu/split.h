/* split.h: how a convolution or a product is cut into pieces, of which each is computed by one thread. It follows from the op
 * alone: with any number of threads the same sums are made, in the same order. */
#ifndef MT_SPLIT_H
#define MT_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

/* sums: the result is a sum over the images (the gradient of weights), so parts make sums of their own. Counted in elements:
 * weights, and `read`, the image that each slice reads as a whole. */
typedef struct Work { int64_t images, channels, weights, read, macs; bool sums; } Work;
/* `parts` of `images` each, times `slices` of `channels` of the result each */
typedef struct Split { int64_t images, parts, channels, slices; } Split;

Split split_work(const Work *w);
/* Of a product of (m, k) by (k, n): images are rows, channels are columns. */
Split split_product(int64_t m, int64_t n, int64_t k);

#endif
