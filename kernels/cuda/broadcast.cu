/* broadcast.cu: the gradient of an operand s that is broadcast over a run of dimensions (core/math/broadcast.h): a sum over the run.
 * dy is seen as rows of `inner` elements, of which `run` share a row of s. The op itself is in tensor.cu. */
#include "sums.h"

static Broadcast of(const View *x, const View *s) {
    Broadcast r = {1, 1, 1};
    const bool fits = broadcast_read(&x->shape, &s->shape, x->channels_last != 0, &r);
    assert(fits);
    return (void)fits, r;
}

typedef struct Sums { Elements dy, x, ds; Broadcast r; } Sums;

static __device__ inline double product_at(const Sums &s, int64_t at) {
    return (double)element_at(s.dy, at) * (s.x.data ? (double)element_at(s.x, at) : 1.0);
}

/* A block for each run, if a row is one element */
static __global__ void sum_run_of_one(const __grid_constant__ Sums s) {
    for (int64_t outer = blockIdx.x; outer < s.r.outer; outer += gridDim.x) {
        double sum = 0;
        for (int64_t k = threadIdx.x; k < s.r.run; k += ELEMENT_THREADS) sum += product_at(s, outer * s.r.run + k);
        sum = block_sum(sum);
        if (threadIdx.x == 0) dtype_store(s.ds.type, s.ds.data, (size_t)outer, (float)sum);
    }
}

/* A block for WARP columns of the rows that share a row of s; its warps take turns at the rows. */
static __global__ void sum_columns(const __grid_constant__ Sums s, int64_t across) {
    __shared__ double of_warp[SUM_WARPS][WARP];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int64_t item = blockIdx.x; item < s.r.outer * across; item += gridDim.x) {
        const int64_t outer = item / across, c = item % across * WARP + lane;
        double sum = 0;
        for (int64_t k = warp; c < s.r.inner && k < s.r.run; k += SUM_WARPS)
            sum += product_at(s, (outer * s.r.run + k) * s.r.inner + c);
        of_warp[warp][lane] = sum;
        __syncthreads();
        for (int k = 1; warp == 0 && k < SUM_WARPS; k++) sum += of_warp[k][lane];
        if (warp == 0 && c < s.r.inner) dtype_store(s.ds.type, s.ds.data, (size_t)(outer * s.r.inner + c), (float)sum);
        __syncthreads(); /* of_warp is read before the next item writes it */
    }
}

int k_cuda_broadcast_ds(const KArgs *a, Err *e) {
    Sums s = {elements_of(&a->broadcast_ds.dy), elements_of(&a->broadcast_ds.x), elements_of(&a->broadcast_ds.ds),
              of(&a->broadcast_ds.dy, &a->broadcast_ds.ds)};
    assert(!a->broadcast_ds.x.count || a->broadcast_ds.x.count == a->broadcast_ds.dy.count);
    if (!a->broadcast_ds.x.count) s.x.data = NULL;
    if (s.r.inner == 1)
        return launch_op(a, e, sum_run_of_one, blocks_for(a, s.r.outer, 1), ELEMENT_THREADS, s);
    const int64_t across = (s.r.inner + WARP - 1) / WARP;
    return launch_op(a, e, sum_columns, blocks_for(a, s.r.outer * across, 1), ELEMENT_THREADS, s, across);
}
