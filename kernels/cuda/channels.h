/* channels.h: sums over the rows of a (rows, C) operand, two per channel, in double. A block is 32 channels by 8 rows
 * at a time of its part of the rows; the parts' sums meet in the workspace, where a second kernel adds them in order.
 * Parts follow from the shape alone, so that the order of a sum is the same on every GPU. For .cu files. */
#ifndef MT_CHANNELS_H
#define MT_CHANNELS_H

#include "elements.h"

enum { CHANNEL_ROWS = 8, PART_ROWS = 64, CHANNEL_PARTS = 64, SUMS = 2 };

static inline int channel_parts(int64_t rows) {
    return (int)min_i64((rows + PART_ROWS - 1) / PART_ROWS, CHANNEL_PARTS);
}

static inline size_t channel_workspace(int64_t rows, int64_t channels) {
    return (size_t)(channel_parts(rows) * SUMS * channels) * sizeof(double);
}

/* The block's rows of threads, one after the other; the first row of threads has it. */
static __device__ inline double down_sum(double mine) {
    __shared__ double all[CHANNEL_ROWS][WARP];
    double sum = 0;
    __syncthreads(); /* an earlier sum may still be read */
    all[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    for (int y = 0; y < CHANNEL_ROWS; y++) sum += all[y][threadIdx.x];
    return sum;
}

/* parts[part][SUMS][C] of f.add(row, channel, sum), a struct's function */
template <typename F> static __global__ void channels_kernel(F f, double *parts, int64_t rows, int64_t channels) {
    int64_t c = (int64_t)blockIdx.x * WARP + threadIdx.x, step = (rows + gridDim.y - 1) / gridDim.y;
    int64_t begin = step * blockIdx.y, end = begin + step < rows ? begin + step : rows;
    double sum[SUMS] = {0, 0};
    for (int64_t row = begin + threadIdx.y; row < end && c < channels; row += CHANNEL_ROWS) f.add(row, c, sum);
    for (int k = 0; k < SUMS; k++) {
        double all = down_sum(sum[k]);
        if (threadIdx.y == 0 && c < channels) parts[(blockIdx.y * SUMS + k) * channels + c] = all;
    }
}

/* One of a channel's sums: its parts in order. */
static __device__ inline double channel_sum(const double *parts, int n, int k, int64_t channels, int64_t c) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += parts[((int64_t)i * SUMS + k) * channels + c];
    return sum;
}

/* Enqueues the first kernel; the workspace holds channel_parts(rows) parts then. */
template <typename F> static inline int channels_run(const KArgs *a, Err *e, F f, int64_t rows, int64_t channels) {
    const dim3 grid((unsigned)((channels + WARP - 1) / WARP), (unsigned)channel_parts(rows));
    return launch_op(a, e, channels_kernel<F>, grid, dim3(WARP, CHANNEL_ROWS), f, (double *)a->workspace, rows,
                     channels);
}

/* A parameter in fp32, or `absent`. */
static __device__ inline float param_at(const float *p, int64_t c, float absent) { return p ? p[c] : absent; }

#endif
