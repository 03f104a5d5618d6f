/* channels.h: sums over the rows of a (rows, C) operand, two per channel, in double. The first kernel writes the sums
 * of parts of the rows to the workspace, a second one adds them up. For .cu files. */
#ifndef MT_CHANNELS_H
#define MT_CHANNELS_H

#include "columns.h"
#include "elements.h"

/* A block of the second kernel is 32 channels by CHANNEL_ROWS threads that take every CHANNEL_ROWS-th part. */
enum { CHANNEL_ROWS = 8, SUMS = 2 };

static inline int channel_parts(int64_t rows, int64_t channels) { return (int)columns_parts(rows, channels); }

static inline size_t channel_workspace(int64_t rows, int64_t channels) {
    return (size_t)(channel_parts(rows, channels) * SUMS * channels) * sizeof(double);
}

/* The sum over the block's rows of 32 threads each, in order; each thread gets its column's. */
static __device__ inline double down_sum(double mine) {
    __shared__ double all[CHANNEL_ROWS][WARP];
    double sum = 0;
    __syncthreads(); /* an earlier sum may still be read */
    all[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    for (int y = 0; y < CHANNEL_ROWS; y++) sum += all[y][threadIdx.x];
    return sum;
}

/* ---- `f` is a struct with F::INPUTS and a function that adds the element of a row and channel to the channel's sums:
 *      void add(const float *x, int64_t row, int64_t channel, double *sum) const */

template <int N, typename F>
static __device__ inline void channels_add(const F &f, const ElementsOf<F::INPUTS> &x, const Piece<N> *pieces,
                                           int64_t row, int64_t c, double (*sum)[SUMS]) {
    float values[F::INPUTS][N];
    for (int k = 0; k < F::INPUTS; k++) piece_unpack(x.at[k].type, pieces[k], values[k]);
    for (int n = 0; n < N; n++) {
        float one[F::INPUTS];
        for (int k = 0; k < F::INPUTS; k++) one[k] = values[k][n];
        f.add(one, row, c + n, sum[n]);
    }
}

/* Adds up the block's rows of threads, in order, and stores the sums in parts[part][SUMS][C]. */
template <int N>
static __device__ inline void channels_store(double *parts, int64_t channels, const double (*sum)[SUMS]) {
    __shared__ double all[COLUMN_THREADS * N];
    const int width = (int)blockDim.x * N, thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    const int64_t first = (int64_t)blockIdx.x * width;
    for (int k = 0; k < SUMS; k++) {
        __syncthreads(); /* the sum before may still be read */
        for (int n = 0; n < N; n++) all[thread * N + n] = sum[n][k];
        __syncthreads();
        for (int i = thread; i < width && first + i < channels; i += COLUMN_THREADS) {
            double down = 0;
            for (int y = 0; y < (int)blockDim.y; y++) down += all[y * width + i];
            parts[((int64_t)blockIdx.y * SUMS + k) * channels + first + i] = down;
        }
    }
}

template <int N, typename F>
static __global__ void __launch_bounds__(COLUMN_THREADS, 2)
    channels_kernel(F f, ElementsOf<F::INPUTS> x, double *parts, int64_t rows, int64_t channels) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N, part = (rows + gridDim.y - 1) / gridDim.y;
    const int64_t begin = part * blockIdx.y, end = begin + part < rows ? begin + part : rows, step = blockDim.y;
    const bool inside = c < channels;
    double sum[N][SUMS] = {};
    Piece<N> pieces[IN_FLIGHT][F::INPUTS];
    int64_t row = begin + threadIdx.y;
    for (; inside && row + (IN_FLIGHT - 1) * step < end; row += IN_FLIGHT * step) {
        UNROLLED(IN_FLIGHT)
        for (int r = 0; r < IN_FLIGHT; r++)
            for (int k = 0; k < F::INPUTS; k++)
                pieces[r][k] = piece_load<N>(x.at[k].type, x.at[k].data, (row + r * step) * channels + c);
        UNROLLED(IN_FLIGHT)
        for (int r = 0; r < IN_FLIGHT; r++) channels_add<N>(f, x, pieces[r], row + r * step, c, sum);
    }
    for (; inside && row < end; row += step) {
        for (int k = 0; k < F::INPUTS; k++)
            pieces[0][k] = piece_load<N>(x.at[k].type, x.at[k].data, row * channels + c);
        channels_add<N>(f, x, pieces[0], row, c, sum);
    }
    channels_store<N>(parts, channels, sum);
}

/* Enqueues the first kernel, which leaves channel_parts(rows, channels) parts in the workspace. */
template <typename F>
static inline int channels_run(const KArgs *a, Err *e, F f, ElementsOf<F::INPUTS> x, int64_t rows, int64_t channels) {
    const int64_t parts = channel_parts(rows, channels);
    assert(a->workspace_bytes >= channel_workspace(rows, channels));
    bool whole = true;
    for (int k = 0; k < F::INPUTS; k++) whole = whole && lanes_fit<COLUMN_LANES>(x.at[k].data, x.at[k].type, channels);
    return launch_op(a, e, whole ? channels_kernel<COLUMN_LANES, F> : channels_kernel<1, F>,
                     columns_grid(channels, whole ? COLUMN_LANES : 1, parts), columns_block(channels), f, x,
                     (double *)a->workspace, rows, channels);
}

/* ---- the second kernel */

static inline dim3 channel_blocks(int64_t channels) { return dim3((unsigned)((channels + WARP - 1) / WARP)); }
static inline dim3 channel_threads() { return dim3(WARP, CHANNEL_ROWS); }
static __device__ inline int64_t channel_here() { return (int64_t)blockIdx.x * WARP + threadIdx.x; }

/* Sum k of channel_here(), in all threads that have this channel. All threads of the block must call it, also those
 * after the last channel. */
static __device__ inline double channel_sum(const double *parts, int n, int k, int64_t channels) {
    const int64_t c = channel_here();
    double sum = 0;
    for (int i = (int)threadIdx.y; i < n && c < channels; i += CHANNEL_ROWS)
        sum += parts[((int64_t)i * SUMS + k) * channels + c];
    return down_sum(sum);
}

/* Number c of a parameter in fp32, or `absent` if there is no parameter */
static __device__ inline float param_at(const float *p, int64_t c, float absent) { return p ? p[c] : absent; }

#endif
