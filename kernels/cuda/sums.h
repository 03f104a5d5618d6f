/* sums.h: a sum over all elements, in double, in three levels: a thread's terms, a block's threads, the blocks. The
 * blocks write their sums to the workspace, and a second kernel of one block adds them up. A small sum is one block's
 * alone and needs neither. Which block takes which elements follows from their count alone: so the order of a sum is
 * the same in every run and on every GPU, and the workspace is known without one. For .cu files. */
#ifndef MT_SUMS_H
#define MT_SUMS_H

#include "elements.h"

enum { PART_ELEMENTS = 16384, PARTS_MAX = 1024, SUM_WARPS = ELEMENT_THREADS / WARP };

/* Blocks for the sum over `count` elements; the blocks' sums, `size` bytes each, fit into `bytes`, unless there is
 * one. */
static inline int64_t sum_parts(int64_t count, size_t size, size_t bytes) {
    int64_t parts = min_i64((count + PART_ELEMENTS - 1) / PART_ELEMENTS, PARTS_MAX);
    return max_i64(1, min_i64(parts, (int64_t)(bytes / size)));
}

/* The workspace for them: at most `limit` bytes */
static inline size_t sum_workspace(int64_t count, size_t size, size_t limit) {
    int64_t parts = sum_parts(count, size, limit);
    return parts > 1 ? (size_t)parts * size : 0;
}

/* The sum over a block of ELEMENT_THREADS threads, in one dimension or two; all of them must call it, and each gets the result. */
static __device__ inline double block_sum(double x) {
    __shared__ double of_warp[SUM_WARPS];
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    double sum = 0;
    x = warp_sum(x);
    __syncthreads(); /* an earlier sum may still be read */
    if (thread % WARP == 0) of_warp[thread / WARP] = x;
    __syncthreads();
    for (int i = 0; i < SUM_WARPS; i++) sum += of_warp[i];
    return sum;
}

/* ---- `f` is a struct with F::INPUTS and two functions: the term of a lane of the inputs, which must be 0 where all inputs
 *      are 0; and one that stores the sum.
 *      double term(const float (*x)[QUAD], int lane) const
 *      void store(double sum) const */

template <typename F>
static __global__ void __launch_bounds__(ELEMENT_THREADS)
    sum_kernel(F f, ElementsOf<F::INPUTS> x, int64_t count, bool aligned, double *parts) {
    double sum = 0;
    for (int64_t begin = elements_first(); begin < count; begin += elements_stride()) {
        float values[TURN_QUADS][F::INPUTS][QUAD];
        elements_load(values, x, begin, count, aligned);
        UNROLLED(TURN_QUADS)
        for (int q = 0; q < TURN_QUADS; q++)
            for (int i = 0; i < QUAD; i++) sum += f.term(values[q], i);
    }
    sum = block_sum(sum);
    if (threadIdx.x) return;
    if (gridDim.x == 1) f.store(sum);
    else parts[blockIdx.x] = sum;
}

template <typename F>
static __global__ void __launch_bounds__(ELEMENT_THREADS) sum_finish(F f, const double *parts, int n) {
    double sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) sum += parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) f.store(sum);
}

template <typename F> static inline int sum_run(const KArgs *a, Err *e, F f, ElementsOf<F::INPUTS> x, int64_t count) {
    const int parts = (int)sum_parts(count, sizeof(double), a->workspace_bytes);
    double *at = (double *)a->workspace;
    bool aligned = true;
    for (int k = 0; k < F::INPUTS; k++) aligned = aligned && elements_aligned(x.at[k]);
    const int code = launch_op(a, e, sum_kernel<F>, parts, ELEMENT_THREADS, f, x, count, aligned, at);
    return code || parts == 1 ? code : launch_op(a, e, sum_finish<F>, 1, ELEMENT_THREADS, f, (const double *)at, parts);
}

#endif
