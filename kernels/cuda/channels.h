/* channels.h: kernels that run down the rows of (rows, C) operands: sums per channel, and functions of elements and of parameters
 * that the channels have. For .cu files. */
#ifndef MT_CHANNELS_H
#define MT_CHANNELS_H

#include "columns.h"
#include "elements.h"

/* Calls each(pieces, row) for the rows [begin, end) of the block that are this thread's: pieces[k] are the N channels of input k from
 * c on. The loads of IN_FLIGHT rows are under way together. */
template <int N, int K, typename Each>
static __device__ inline void rows_walk(const ElementsOf<K> &x, int64_t rows, int64_t channels, int64_t c, Each each) {
    const int64_t part = (rows + gridDim.y - 1) / gridDim.y, begin = part * blockIdx.y, step = blockDim.y;
    const int64_t end = begin + part < rows ? begin + part : rows;
    Piece<N> pieces[IN_FLIGHT][K];
    int64_t row = begin + threadIdx.y;
    if (c >= channels) return;
    for (; row + (IN_FLIGHT - 1) * step < end; row += IN_FLIGHT * step) {
        UNROLLED(IN_FLIGHT)
        for (int r = 0; r < IN_FLIGHT; r++)
            for (int k = 0; k < K; k++)
                pieces[r][k] = piece_load<N>(x.at[k].type, x.at[k].data, (row + r * step) * channels + c);
        UNROLLED(IN_FLIGHT)
        for (int r = 0; r < IN_FLIGHT; r++) each(pieces[r], row + r * step);
    }
    for (; row < end; row += step) {
        for (int k = 0; k < K; k++) pieces[0][k] = piece_load<N>(x.at[k].type, x.at[k].data, row * channels + c);
        each(pieces[0], row);
    }
}

template <int K> static inline bool rows_fit(const ElementsOf<K> &x, int64_t channels) {
    bool fit = true;
    for (int k = 0; k < K; k++) fit = fit && lanes_fit<COLUMN_LANES>(x.at[k].data, x.at[k].type, channels);
    return fit;
}

/* Number c of a parameter in fp32, or `absent` if there is no parameter */
static __device__ inline float param_at(const float *p, int64_t c, float absent) { return p ? p[c] : absent; }

/* Where shared memory has the parameter of channel c for threads with N channels each: neighbours read neighbouring words. `pitch`
 * is PARAM_PAD more than the threads; the padding puts what a warp writes for neighbouring channels into different banks. */
enum { PARAM_PAD = 4 };
template <int N> static __device__ inline int param_place(int c, int pitch) { return c % N * pitch + c / N; }

/* What a function has at least, where it may have none */
#define ONE_OR(n) ((n) + ((n) == 0))

/* params: of the thread's N channels, as f.prepare makes them from what lies in memory: once for all rows of threads, since where
 * they lie a warp's requests would be N apart. All threads of the block must call it. */
template <int N, typename F>
static __device__ inline void params_load(const F &f, int64_t channels, float (*params)[ONE_OR(F::PARAMS)]) {
    __shared__ float all[ONE_OR(F::PARAMS)][N * (WARP + PARAM_PAD)];
    const int width = (int)blockDim.x * N, pitch = (int)blockDim.x + PARAM_PAD;
    const int64_t first = (int64_t)blockIdx.x * width;
    if (F::PARAMS > 0) {
        for (int i = (int)(threadIdx.y * blockDim.x + threadIdx.x); i < width && first + i < channels; i += COLUMN_THREADS) {
            f.prepare(first + i, params[0]);
            for (int k = 0; k < F::PARAMS; k++) all[k][param_place<N>(i, pitch)] = params[0][k];
        }
        __syncthreads();
        for (int n = 0; n < N && first + (int)threadIdx.x * N < channels; n++)
            for (int k = 0; k < F::PARAMS; k++) params[n][k] = all[k][param_place<N>((int)threadIdx.x * N + n, pitch)];
    }
}

/* ---- sums over the rows, two per channel, in double. The first kernel writes the sums of parts of the rows to the workspace, a
 *      second one adds them up.
 *
 * A block of the second kernel is 32 channels by CHANNEL_ROWS threads that take every CHANNEL_ROWS-th part. */
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

/* ---- `f` is a struct with F::INPUTS, F::PARAMS, F::ROW and three functions: one makes a channel's parameters from what lies in
 *      memory, one a row's; one adds an element to its channel's sums.
 *      void prepare(int64_t channel, float *params) const
 *      void row(int64_t row, int64_t channel, float *of_row) const: for the N channels from `channel` on
 *      void add(const float *x, const float *params, const float *of_row, double *sum) const */

/* Of sums that have neither */
struct PlainSums {
    enum { PARAMS = 0, ROW = 0 };
    __device__ void prepare(int64_t, float *) const {}
    __device__ void row(int64_t, int64_t, float *) const {}
};

template <int N, typename F>
static __device__ inline void channels_add(const F &f, const ElementsOf<F::INPUTS> &x, const Piece<N> *pieces,
                                           const float (*params)[ONE_OR(F::PARAMS)], const float *of_row, double (*sum)[SUMS]) {
    float values[F::INPUTS][N];
    for (int k = 0; k < F::INPUTS; k++) piece_unpack(x.at[k].type, pieces[k], values[k]);
    for (int n = 0; n < N; n++) {
        float one[F::INPUTS];
        for (int k = 0; k < F::INPUTS; k++) one[k] = values[k][n];
        f.add(one, params[n], of_row, sum[n]);
    }
}

/* Adds up the block's rows of threads, in order, and stores the sums in parts[part][K][C]. SUM_PAD: what half a warp writes, and what
 * it reads, lies in different banks. */
enum { SUM_PAD = 2 };
template <int N, int K>
static __device__ inline void channels_store(double *parts, int64_t channels, const double (*sum)[K]) {
    __shared__ double all[N][COLUMN_THREADS + SUM_PAD];
    const int width = (int)blockDim.x * N, thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    const int64_t first = (int64_t)blockIdx.x * width;
    for (int k = 0; k < K; k++) {
        __syncthreads(); /* the sum before may still be read */
        for (int n = 0; n < N; n++) all[n][thread] = sum[n][k];
        __syncthreads();
        for (int i = thread; i < width && first + i < channels; i += COLUMN_THREADS) {
            double down = 0;
            for (int y = 0; y < (int)blockDim.y; y++) down += all[i % N][y * (int)blockDim.x + i / N];
            parts[((int64_t)blockIdx.y * K + k) * channels + first + i] = down;
        }
    }
}

template <int N, typename F>
static __global__ void __launch_bounds__(COLUMN_THREADS, 2)
    channels_kernel(F f, ElementsOf<F::INPUTS> x, double *parts, int64_t rows, int64_t channels) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    double sum[N][SUMS] = {};
    float params[N][ONE_OR(F::PARAMS)] = {};
    params_load<N>(f, channels, params);
    rows_walk<N>(x, rows, channels, c, [&](const Piece<N> *pieces, int64_t row) {
        float of_row[ONE_OR(F::ROW)];
        f.row(row, c, of_row);
        channels_add<N>(f, x, pieces, params, of_row, sum);
    });
    channels_store<N, SUMS>(parts, channels, sum);
}

/* Enqueues the first kernel, which leaves channel_parts(rows, channels) parts in the workspace. pieces: a thread may have
 * COLUMN_LANES channels */
template <typename F>
static inline int channels_run(const KArgs *a, Err *e, F f, ElementsOf<F::INPUTS> x, int64_t rows, int64_t channels, bool pieces) {
    const int64_t parts = channel_parts(rows, channels);
    assert(a->workspace_bytes >= channel_workspace(rows, channels));
    const bool whole = pieces && rows_fit(x, channels);
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

/* ---- y = f(x...), by channel: `f` is a struct with F::INPUTS, F::PARAMS and two functions: one makes a channel's parameters from
 *      what lies in memory; one makes an element of y from those of the inputs and its channel's parameters.
 *      void prepare(int64_t channel, float *params) const
 *      float at(const float *x, const float *params) const */

/* A block reads its channels' parameters once, for so many rows at least: they are few beside the elements. */
enum { BY_CHANNEL_ROWS = 64 };

template <int N, typename F>
static __global__ void __launch_bounds__(COLUMN_THREADS, 2)
    by_channel_kernel(const __grid_constant__ F f, Elements y, ElementsOf<F::INPUTS> x, int64_t rows, int64_t channels) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    float params[N][F::PARAMS] = {};
    params_load<N>(f, channels, params);
    rows_walk<N>(x, rows, channels, c, [&](const Piece<N> *pieces, int64_t row) {
        float values[F::INPUTS][N], result[N];
        for (int k = 0; k < F::INPUTS; k++) piece_unpack(x.at[k].type, pieces[k], values[k]);
        for (int n = 0; n < N; n++) {
            float one[F::INPUTS];
            for (int k = 0; k < F::INPUTS; k++) one[k] = values[k][n];
            result[n] = f.at(one, params[n]);
        }
        lanes_store<N>(y.type, y.data, row * channels + c, result);
    });
}

template <typename F>
static inline int by_channel_run(const KArgs *a, Err *e, F f, ElementsOf<F::INPUTS> x, int64_t rows, int64_t channels) {
    const ElementsOf<1> y = {{elements_of(&a->out[0])}};
    const int lanes = rows_fit(x, channels) && rows_fit(y, channels) ? COLUMN_LANES : 1;
    const unsigned across = columns_across(channels, lanes, WARP);
    const int64_t each = (int64_t)across * lanes;
    const dim3 grid((unsigned)((channels + each - 1) / each),
                    (unsigned)columns_cut(rows, channels, each, BY_CHANNEL_ROWS));
    assert(operand_is_float(&a->out[0]) && a->out[0].count == rows * channels);
    return launch_op(a, e, lanes > 1 ? by_channel_kernel<COLUMN_LANES, F> : by_channel_kernel<1, F>, grid,
                     dim3(across, COLUMN_THREADS / across), f, y.at[0], x, rows, channels);
}

#endif
