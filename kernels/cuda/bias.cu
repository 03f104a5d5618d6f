/* bias.cu: see bias.h */
#include "bias.h"

#include "columns.h"
#include "lanes.h"

/* SUM_PAD: what a warp writes to shared memory, and what it reads, lies in different banks. */
enum { THREADS = COLUMN_THREADS, GROUPS = 8, LANES = COLUMN_LANES, SUM_PAD = 4 };

typedef enum Mode { MODE_ACT, MODE_ACT_DX, MODE_SUM } Mode;

/* By mode: y = f(x + s); y = x f'(s) and its sums; sums of x */
typedef struct Columns {
    const void *x, *s; /* s: the bias or the saved tensor */
    void *y;
    DType x_type, s_type, y_type, sum_type;
    ActAttr act;
    int64_t rows, columns;
    void *sum;      /* NULL: not wanted */
    float *partial; /* NULL: one part, which goes to `sum` itself */
} Columns;

/* ---- the walk down the columns */

/* N channels of one row as they lie in memory */
template <int N> struct Row { Piece<N> x, s; };

template <int N, int MODE> static __device__ Row<N> row_load(const Columns &c, int64_t at) {
    Row<N> row = {};
    row.x = piece_load<N>(c.x_type, c.x, at);
    if (MODE == MODE_ACT_DX) row.s = piece_load<N>(c.s_type, c.s, at);
    return row;
}

template <bool PLAIN> static __device__ float act_at(const ActAttr &a, float x) {
    return PLAIN ? act_value_plain(a, x) : act_value(a, x);
}

template <bool PLAIN> static __device__ float act_slope_at(const ActAttr &a, float s) {
    return PLAIN ? act_slope_plain(a, s) : act_slope(a, s);
}

template <int N, int MODE, bool PLAIN>
static __device__ void row_step(const Columns &c, int64_t at, const Row<N> &row, const float *bias, float *acc) {
    float x[N], s[N];
    piece_unpack(c.x_type, row.x, x);
    if (MODE == MODE_ACT_DX) piece_unpack(c.s_type, row.s, s);
    for (int n = 0; n < N; n++) {
        if (MODE == MODE_ACT) x[n] = act_at<PLAIN>(c.act, x[n] + bias[n]);
        if (MODE == MODE_ACT_DX) x[n] *= act_slope_at<PLAIN>(c.act, s[n]);
        if (MODE != MODE_ACT) acc[n] += x[n];
    }
    if (MODE != MODE_SUM) lanes_store<N>(c.y_type, c.y, at, x);
}

/* Adds up the block's rows of threads, in order, and stores the sums. */
template <int N> static __device__ void block_sum(const Columns &c, int64_t column, const float *acc) {
    __shared__ float all[N][THREADS + SUM_PAD];
    const int width = (int)blockDim.x * N, thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    for (int n = 0; n < N; n++) all[n][thread] = acc[n];
    __syncthreads();
    const int64_t first = column - (int64_t)threadIdx.x * N; /* of the block */
    for (int k = thread; k < width; k += THREADS) {
        if (first + k >= c.columns) break;
        float sum = 0.0f;
        for (int y = 0; y < (int)blockDim.y; y++) sum += all[k % N][y * (int)blockDim.x + k / N];
        if (c.partial) c.partial[blockIdx.y * c.columns + first + k] = sum;
        else dtype_store(c.sum_type, c.sum, (size_t)(first + k), sum);
    }
}

/* many: the activation is plain; then a thread takes several rows at a time */
template <int N, int MODE>
static __global__ void __launch_bounds__(THREADS) columns_kernel(const __grid_constant__ Columns c, bool many) {
    const int64_t part = (c.rows + gridDim.y - 1) / gridDim.y, begin = part * blockIdx.y;
    const int64_t end = begin + part < c.rows ? begin + part : c.rows;
    const int64_t column = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    const int step = (int)blockDim.y;
    const bool inside = column < c.columns;
    float acc[N], bias[N];
    Row<N> rows[IN_FLIGHT];
    for (int n = 0; n < N; n++) acc[n] = bias[n] = 0.0f;
    if (MODE == MODE_ACT && c.s && inside) lanes_load<N>(c.s_type, c.s, column, bias);
    int64_t row = begin + threadIdx.y;
    for (; many && inside && row + (IN_FLIGHT - 1) * step < end; row += IN_FLIGHT * step) {
        UNROLLED(IN_FLIGHT)
        for (int k = 0; k < IN_FLIGHT; k++) rows[k] = row_load<N, MODE>(c, (row + k * step) * c.columns + column);
        UNROLLED(IN_FLIGHT)
        for (int k = 0; k < IN_FLIGHT; k++)
            row_step<N, MODE, true>(c, (row + k * step) * c.columns + column, rows[k], bias, acc);
    }
    for (; inside && row < end; row += step) {
        const int64_t at = row * c.columns + column;
        row_step<N, MODE, false>(c, at, row_load<N, MODE>(c, at), bias, acc);
    }
    if (c.sum) block_sum<N>(c, column, acc);
}

/* ---- launches */

/* Parts of the rows; their sums fit into `bytes`, unless there is one part, which needs no room. */
static int64_t parts_within(int64_t rows, int64_t channels, size_t bytes) {
    const int64_t parts = min_i64(columns_parts(rows, channels), (int64_t)(bytes / sizeof(float)) / channels);
    return parts < 2 ? 1 : parts;
}

extern "C" size_t bias_workspace(int64_t rows, int64_t channels, size_t limit) {
    const int64_t parts = parts_within(rows, channels, limit);
    return parts < 2 ? 0 : (size_t)parts * (size_t)channels * sizeof(float);
}

static bool fits(const void *p, DType t, int64_t columns) { return !p || lanes_fit<LANES>(p, t, columns); }

template <int MODE> static int columns_run(const KArgs *a, Columns c, const View *x, int64_t parts, Err *e) {
    c.x = x->data;
    c.x_type = x->dtype;
    c.rows = x->count / c.columns;
    assert(x->count % c.columns == 0 && c.act.act < ACT_COUNT);
    const bool whole = fits(c.x, c.x_type, c.columns) && fits(c.y, c.y_type, c.columns) && fits(c.s, c.s_type, 0);
    return launch_op(a, e, whole ? columns_kernel<LANES, MODE> : columns_kernel<1, MODE>,
                     columns_grid(c.columns, whole ? LANES : 1, parts), columns_block(c.columns), c,
                     act_is_plain((ActFn)c.act.act));
}

/* Runs with sums, which go to db: directly, or through parts in the workspace. */
template <int MODE>
static int summed_run(const KArgs *a, Columns c, const View *x, const View *db, void *workspace, size_t bytes, Err *e) {
    const int64_t rows = x->count / db->count;
    Parts p = {(float *)workspace, db->count, db->count, (int)parts_within(rows, db->count, bytes)};
    c.columns = db->count;
    c.sum = db->data;
    c.sum_type = db->dtype;
    c.partial = p.parts < 2 ? NULL : p.at;
    const int code = columns_run<MODE>(a, c, x, p.parts, e);
    return code || p.parts < 2 ? code : bias_parts(a, &p, NULL, ActAttr(), db, e);
}

/* s: the bias or the saved tensor; y: what is written; NULL: none */
static Columns columns_of(const View *s, const View *y, ActAttr act) {
    Columns c = {};
    if (s) c.s = s->data, c.s_type = s->dtype;
    if (y) c.y = y->data, c.y_type = y->dtype;
    c.act = act;
    return c;
}

extern "C" int bias_act(const KArgs *a, const View *x, const View *b, ActAttr act, const View *y, Err *e) {
    assert(x->count == y->count);
    Columns c = columns_of(b->count ? b : NULL, y, act);
    c.columns = b->count ? b->count : y->shape.dim[y->shape.rank - 1];
    if (!b->count && act.act == ACT_NONE && x->data == y->data) return OK;
    return columns_run<MODE_ACT>(a, c, x, columns_parts(x->count / c.columns, c.columns), e);
}

extern "C" int bias_sum(const KArgs *a, const View *dy, const View *db, void *workspace, size_t bytes, Err *e) {
    return summed_run<MODE_SUM>(a, columns_of(NULL, NULL, ActAttr()), dy, db, workspace, bytes, e);
}

extern "C" int bias_act_dx(const KArgs *a, const View *dx, const View *s, ActAttr act, const View *db,
                           void *workspace, size_t bytes, Err *e) {
    assert(s->count == dx->count);
    Columns c = columns_of(s, dx, act);
    if (db->count) return summed_run<MODE_ACT_DX>(a, c, dx, db, workspace, bytes, e);
    c.columns = dx->shape.dim[1];
    return columns_run<MODE_ACT_DX>(a, c, dx, columns_parts(dx->count / c.columns, c.columns), e);
}

/* ---- sums of parts: a block is 32 numbers by GROUPS threads, each of which takes every GROUPS-th part */

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
    dtype_store(f.type, f.out, (size_t)i, act_value(f.act, sum));
}

extern "C" int bias_parts(const KArgs *a, const Parts *parts, const View *b, ActAttr act, const View *out, Err *e) {
    const bool with = b && b->count;
    assert(parts->parts > 0 && parts->stride >= parts->count && parts->count == out->count && act.act < ACT_COUNT);
    assert(!with || parts->count % b->count == 0);
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
    assert(dtype_is_float(from_type) && dtype_is_float(to_type) && from != to);
    const Pad p = {from, to, from_type, to_type, from_channels, to_channels, rows};
    const int N = lanes_fit<8>(to, to_type, to_channels) ? 8 : lanes_fit<4>(to, to_type, to_channels) ? 4 : 1;
    const dim3 grid(blocks_for(a, rows * (to_channels / N), THREADS));
    return launch_op(a, e, N == 8 ? pad_kernel<8> : N == 4 ? pad_kernel<4> : pad_kernel<1>, grid, dim3(THREADS), p);
}
