/* reduce.h: reductions without a graph, as the engine and derivatives make them. One that is split over thread blocks takes
 * a buffer for the parts and one for its semaphores. Source: ATen/native/cuda/Reduce.cuh (setReduceConfig). */
#ifndef MT_EAGER_REDUCE_H
#define MT_EAGER_REDUCE_H

#include "tensor.h"

/* The sizes that are left without dims (a bit each), or with 1 in their place. */
Size reduced_size(const Size *s, unsigned dims, bool keepdim);
/* What a reduction over dims takes that is split over blocks; element: bytes of what it counts in. */
void reduce_inner(Eager *g, const Tensor *x, unsigned dims, int64_t element);
/* The result of a reduction over dims by that op. */
Tensor *reduce(Eager *g, const char *op, const Tensor *x, ScalarType type, unsigned dims, bool keepdim);
/* The sum over what was broadcast from `size`. */
Tensor *aten_sum_to(Eager *g, Tensor *x, Size size);

#endif
