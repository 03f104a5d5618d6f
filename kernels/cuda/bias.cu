/* bias.cu: see bias.h. A block is (x, y) threads: x neighbouring groups of channels, y rows at a time; a thread stays
 * with its channels and strides down the rows of the block's part. */
#include "bias.h"

#include "lanes.h"
#include "launch.h"

/* BLOCKS: two for each multiprocessor of the largest GPUs, with UNROLL rows in flight per thread; a number that does not
 * depend on the device, since workspace is planned by it. */
enum { THREADS = 256, BLOCKS = 264, UNROLL = 4, GROUPS = 8 };

typedef enum Mode { MODE_ACT, MODE_ACT_DX, MODE_SUM } Mode;

/* x: y, dx or dy, written unless it is only summed; s: the saved tensor, or the bias */
typedef struct Columns {
    void *x;
    const void *s;
    DType s_type, sum_type;
    ActAttr act;
    int64_t rows, columns;
    void *sum;      /* NULL: not wanted */
    float *partial; /* NULL: one part, which goes to `sum` itself */
} Columns;

/* ---- the walk down the columns */

template <int N> static __device__ void add_rows(const float *row, float *acc) {
    for (int n = 0; n < N; n++) acc[n] += row[n];
}

/* One row's N channels, already loaded. */
template <int T, int N, int MODE>
static __device__ void row_step(const Columns &c, int64_t at, const float *bias, float *x, float *acc) {
    float s[N];
    if (MODE == MODE_ACT_DX) {
        lanes_load<N>(c.s_type, c.s, at, s);
        for (int n = 0; n < N; n++) x[n] *= act_slope(c.act.act, s[n], c.act.slope);
    }
    if (MODE == MODE_ACT)
        for (int n = 0; n < N; n++) x[n] = act_value(c.act.act, x[n] + bias[n], c.act.slope);
    if (MODE != MODE_SUM) lanes_store<N>((DType)T, c.x, at, x);
    if (MODE != MODE_ACT) add_rows<N>(x, acc);
}

/* The block's sums: its rows of threads, one after the other. */
template <int N> static __device__ void block_sum(const Columns &c, int64_t column, const float *acc) {
    __shared__ float all[THREADS * N];
    const int width = (int)blockDim.x * N, thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    for (int n = 0; n < N; n++) all[thread * N + n] = acc[n];
    __syncthreads();
    const int64_t first = column - (int64_t)threadIdx.x * N; /* of the block */
    for (int k = thread; k < width; k += THREADS) {
        if (first + k >= c.columns) break;
        float sum = 0.0f;
        for (int y = 0; y < (int)blockDim.y; y++) sum += all[y * width + k];
        if (c.partial) c.partial[blockIdx.y * c.columns + first + k] = sum;
        else dtype_store(c.sum_type, c.sum, (size_t)(first + k), sum);
    }
}

template <int T, int N, int MODE>
static __global__ void __launch_bounds__(THREADS) columns_kernel(const __grid_constant__ Columns c) {
    const int64_t part = (c.rows + gridDim.y - 1) / gridDim.y, end = part * (blockIdx.y + 1) < c.rows ? part * (blockIdx.y + 1) : c.rows;
    const int64_t column = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    const int step = (int)blockDim.y;
    const bool inside = column < c.columns;
    float acc[N], bias[N], x[UNROLL][N];
    for (int n = 0; n < N; n++) acc[n] = bias[n] = 0.0f;
    if (MODE == MODE_ACT && c.s && inside) lanes_load<N>(c.s_type, c.s, column, bias);
    int64_t row = part * blockIdx.y + threadIdx.y;
    for (; inside && row + (UNROLL - 1) * step < end; row += UNROLL * step) {
        UNROLLED(UNROLL)
        for (int k = 0; k < UNROLL; k++) lanes_load<N>((DType)T, c.x, (row + k * step) * c.columns + column, x[k]);
        UNROLLED(UNROLL)
        for (int k = 0; k < UNROLL; k++)
            row_step<T, N, MODE>(c, (row + k * step) * c.columns + column, bias, x[k], acc);
    }
    for (; inside && row < end; row += step) {
        lanes_load<N>((DType)T, c.x, row * c.columns + column, x[0]);
        row_step<T, N, MODE>(c, row * c.columns + column, bias, x[0], acc);
    }
    if (c.sum) block_sum<N>(c, column, acc);
}

/* ---- launches */

/* Threads side by side in a block: a power of two, so that blocks have THREADS threads, as suits eight channels each,
 * the 16 bytes of 16-bit types. It is the same for fp32, and for tensors that do not lie in 16-byte words: then the
 * order of the sums is, too, and it is known before a tensor's type and place are. */
static unsigned block_width(int64_t channels) {
    unsigned x = 1;
    while (x < WARP && x * 8 < channels) x *= 2;
    return x;
}

/* Into how many parts the rows go. */
static int64_t parts_wanted(int64_t rows, int64_t channels) {
    const int64_t x = block_width(channels), across = (channels + 8 * x - 1) / (8 * x), y = THREADS / x * UNROLL;
    return min_i64(max_i64(BLOCKS / across, 1), (rows + y - 1) / y);
}

/* Those whose sums find room; fewer than 2: one, which needs none. */
static int64_t parts_within(int64_t rows, int64_t channels, size_t bytes) {
    const int64_t parts = min_i64(parts_wanted(rows, channels), (int64_t)(bytes / sizeof(float)) / channels);
    return parts < 2 ? 1 : parts;
}

extern "C" size_t bias_workspace(int64_t rows, int64_t channels, size_t limit) {
    const int64_t parts = parts_within(rows, channels, limit);
    return parts < 2 ? 0 : (size_t)parts * (size_t)channels * sizeof(float);
}

typedef void ColumnsKernel(Columns c);

/* By the type of x and N. */
template <int MODE> static ColumnsKernel *columns_pick(DType t, int N) {
    if (t == DT_F32) return N == 1 ? columns_kernel<DT_F32, 1, MODE> : columns_kernel<DT_F32, 4, MODE>;
    if (t == DT_BF16) return N == 1 ? columns_kernel<DT_BF16, 1, MODE> : columns_kernel<DT_BF16, 8, MODE>;
    return N == 1 ? columns_kernel<DT_F16, 1, MODE> : columns_kernel<DT_F16, 8, MODE>;
}

/* side: s or b, by rows of the same channels; NULL: none */
template <int MODE> static int columns_run(const KArgs *a, Columns c, const View *x, const View *side, int64_t parts,
                                           Err *e) {
    int N = x->dtype == DT_F32 ? 4 : 8;
    c.x = x->data;
    c.rows = x->count / c.columns;
    if (side) c.s = side->data, c.s_type = side->dtype;
    const bool fit = N == 4 ? lanes_fit<4>(c.x, x->dtype, c.columns) : lanes_fit<8>(c.x, x->dtype, c.columns);
    if (!fit || !lanes_fit<4>(c.s, c.s_type, 0) || (c.s_type != DT_F32 && !lanes_fit<8>(c.s, c.s_type, 0))) N = 1;
    const unsigned width = block_width(c.columns);
    const dim3 grid((unsigned)((c.columns + width * N - 1) / (width * N)), (unsigned)parts);
    return launch_op(a, e, columns_pick<MODE>(x->dtype, N), grid, dim3(width, THREADS / width), c);
}

/* Runs with sums into db: by parts where there is room. */
template <int MODE> static int summed_run(const KArgs *a, Columns c, const View *x, const View *side, const View *db,
                                          void *workspace, size_t bytes, Err *e) {
    const int64_t rows = x->count / db->count;
    Parts p = {(float *)workspace, db->count, db->count, (int)parts_within(rows, db->count, bytes)};
    c.columns = db->count;
    c.sum = db->data;
    c.sum_type = db->dtype;
    c.partial = p.parts < 2 ? NULL : p.at;
    const int code = columns_run<MODE>(a, c, x, side, p.parts, e);
    return code || p.parts < 2 ? code : bias_parts(a, &p, NULL, ActAttr(), db, e);
}

extern "C" int bias_act(const KArgs *a, const View *y, const View *b, ActAttr act, Err *e) {
    Columns c = {};
    c.act = act;
    c.columns = b->count ? b->count : y->shape.dim[y->shape.rank - 1];
    if (!b->count && act.act == ACT_NONE) return OK;
    return columns_run<MODE_ACT>(a, c, y, b->count ? b : NULL, parts_wanted(y->count / c.columns, c.columns), e);
}

extern "C" int bias_sum(const KArgs *a, const View *dy, const View *db, void *workspace, size_t bytes, Err *e) {
    return summed_run<MODE_SUM>(a, Columns(), dy, NULL, db, workspace, bytes, e);
}

extern "C" int bias_act_dx(const KArgs *a, const View *dx, const View *s, ActAttr act, const View *db,
                           void *workspace, size_t bytes, Err *e) {
    Columns c = {};
    c.act = act;
    if (db->count) return summed_run<MODE_ACT_DX>(a, c, dx, s, db, workspace, bytes, e);
    c.columns = dx->shape.dim[1];
    return columns_run<MODE_ACT_DX>(a, c, dx, s, parts_wanted(dx->count / c.columns, c.columns), e);
}

/* ---- sums of parts: a block is 32 numbers by GROUPS threads that take every GROUPS-th part */

typedef struct Finish {
    Parts parts;
    const void *b; /* NULL: none */
    DType b_type, type;
    int64_t columns;
    ActAttr act;
    void *out;
} Finish;

static __global__ void parts_kernel(const __grid_constant__ Finish f) {
    __shared__ float all[GROUPS][WARP];
    const int64_t i = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0.0f;
    if (i < f.parts.count) {
        UNROLLED(4)
        for (int p = (int)threadIdx.y; p < f.parts.parts; p += GROUPS) sum += f.parts.at[p * f.parts.stride + i];
    }
    all[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || i >= f.parts.count) return;
    for (int k = 1; k < GROUPS; k++) sum += all[k][threadIdx.x];
    if (f.b) sum += dtype_load(f.b_type, f.b, (size_t)(i % f.columns));
    dtype_store(f.type, f.out, (size_t)i, act_value(f.act.act, sum, f.act.slope));
}

extern "C" int bias_parts(const KArgs *a, const Parts *parts, const View *b, ActAttr act, const View *out, Err *e) {
    const bool with = b && b->count;
    Finish f = {*parts, with ? b->data : NULL, with ? b->dtype : DT_F32, out->dtype, with ? b->count : 1, act,
                out->data};
    const dim3 grid((unsigned)((parts->count + WARP - 1) / WARP));
    return launch_op(a, e, parts_kernel, grid, dim3(WARP, GROUPS), f);
}

/* ---- channels padded to a multiple, or cut */

typedef struct Pad {
    const void *from;
    void *to;
    DType from_type, to_type;
    int64_t from_channels, to_channels, rows;
} Pad;

template <int N> static __global__ void pad_kernel(const __grid_constant__ Pad p) {
    const int64_t groups = p.to_channels / N, count = groups * p.rows, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const int64_t row = i / groups, first = i % groups * N;
        float x[N];
        for (int n = 0; n < N; n++)
            x[n] = first + n >= p.from_channels
                       ? 0.0f
                       : dtype_load(p.from_type, p.from, (size_t)(row * p.from_channels + first + n));
        lanes_store<N>(p.to_type, p.to, i * N, x);
    }
}

extern "C" int bias_pad(const KArgs *a, const void *from, DType from_type, int64_t from_channels, void *to,
                        DType to_type, int64_t to_channels, int64_t rows, Err *e) {
    const Pad p = {from, to, from_type, to_type, from_channels, to_channels, rows};
    const int N = lanes_fit<8>(to, to_type, to_channels) ? 8 : lanes_fit<4>(to, to_type, to_channels) ? 4 : 1;
    const dim3 grid(blocks_for(a, rows * (to_channels / N), THREADS));
    return launch_op(a, e, N == 8 ? pad_kernel<8> : N == 4 ? pad_kernel<4> : pad_kernel<1>, grid, dim3(THREADS), p);
}
