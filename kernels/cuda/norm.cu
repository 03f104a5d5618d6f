/* norm.cu: normalisation of (rows, C) operands: over all rows per channel (batchnorm), or over groups of the channels
 * of a sample (norm). Statistics are fp32, summed in double. */
#include "channels.h"
#include "program/norm.h"
#include "rows.h"
#include "sums.h"

enum { NORM_THREADS = ELEMENT_THREADS };

static const float *floats(const View *v) { return (const float *)v->data; }

static int prepare_sums(const KArgs *a, const View *x, void **state, size_t *workspace, Err *e) {
    int64_t channels = norm_channels(a, x);
    *state = NULL;
    *workspace = channel_workspace(x->count / channels, channels);
    return norm_check(a, x, e);
}

/* ---- batch normalisation, forward */

struct Squares : PlainSums {
    enum { INPUTS = 1 };
    __device__ void add(const float *x, const float *, const float *, double *sum) const {
        const double value = x[0];
        sum[0] += value;
        sum[1] += value * value;
    }
};

typedef struct Batch {
    NormAttr attr;
    const double *parts;
    int n_parts;
    int64_t rows, channels;
    float *mean, *istd, *running_mean, *running_var;
    int32_t *batches;
} Batch;

static __global__ void count_batch(int32_t *batches) { ++*batches; }

static __global__ void batch_finish(const __grid_constant__ Batch b) {
    const int64_t c = channel_here();
    const double mean = channel_sum(b.parts, b.n_parts, 0, b.channels) / (double)b.rows;
    double var = channel_sum(b.parts, b.n_parts, 1, b.channels) / (double)b.rows - mean * mean;
    if (threadIdx.y || c >= b.channels) return;
    if (var < 0) var = 0; /* a NaN stays */
    b.mean[c] = (float)mean;
    b.istd[c] = (float)(1 / sqrt(var + (double)b.attr.eps));
    if (!b.running_mean) return;
    float m = b.attr.momentum < 0 ? 1.0f / (float)*b.batches : b.attr.momentum;
    double sample = var * (double)b.rows / (double)(b.rows > 1 ? b.rows - 1 : 1);
    b.running_mean[c] = (1 - m) * b.running_mean[c] + m * (float)mean;
    b.running_var[c] = (1 - m) * b.running_var[c] + m * (float)sample;
}

/* spread: istd; eval: the variance */
struct BatchScale {
    enum { INPUTS = 1, PARAMS = 2 };
    const float *w, *b, *mean, *spread;
    float eps;
    bool eval;
    __device__ void prepare(int64_t c, float *params) const {
        const float scale = param_at(w, c, 1) * (eval ? 1 / sqrtf(spread[c] + eps) : spread[c]);
        params[0] = scale;
        params[1] = param_at(b, c, 0) - mean[c] * scale;
    }
    __device__ float at(const float *x, const float *params) const { return x[0] * params[0] + params[1]; }
};

int k_cuda_batchnorm_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *e) {
    return prepare_sums(a, &a->batchnorm.x, state, workspace, e);
}

int k_cuda_batchnorm(const KArgs *a, Err *e) {
    int64_t channels = norm_channels(a, &a->batchnorm.x), rows = a->batchnorm.x.count / channels;
    const View *mean = &a->batchnorm.running_mean, *var = &a->batchnorm.running_var;
    ElementsOf<1> x = {{elements_of(&a->batchnorm.x)}};
    assert(a->batchnorm.y.count == a->batchnorm.x.count && a->attr->norm.eps >= 0);
    assert(operand_is_vector(&a->batchnorm.w, channels) && operand_is_vector(&a->batchnorm.b, channels));
    assert(operand_is_vector(&a->batchnorm.mean, channels) && operand_is_vector(&a->batchnorm.istd, channels));
    assert(operand_is_vector(mean, channels) && operand_is_vector(var, channels) && !mean->data == !var->data);
    assert(a->attr->norm.momentum >= 0 || !mean->data || a->batchnorm.batches.data);
    Batch b = {a->attr->norm, (const double *)a->workspace, channel_parts(rows, channels), rows, channels,
               (float *)a->batchnorm.mean.data, (float *)a->batchnorm.istd.data, (float *)mean->data,
               (float *)var->data, (int32_t *)a->batchnorm.batches.data};
    int code = channels_run(a, e, Squares{}, x, rows, channels, true);
    if (!code && b.batches) code = launch_op(a, e, count_batch, 1, 1, b.batches);
    if (!code) code = launch_op(a, e, batch_finish, channel_blocks(channels), channel_threads(), b);
    BatchScale f = {floats(&a->batchnorm.w), floats(&a->batchnorm.b), b.mean, b.istd, 0, false};
    return code ? code : by_channel_run(a, e, f, x, rows, channels);
}

/* Statistics are operands. */
static int scale_channels(const KArgs *a, const View *mean, const View *spread, bool eval, Err *e) {
    const View *w = &a->batchnorm.w, *b = &a->batchnorm.b;
    const int64_t channels = norm_channels(a, &a->batchnorm.x);
    ElementsOf<1> x = {{elements_of(&a->batchnorm.x)}};
    assert(a->batchnorm.y.count == a->batchnorm.x.count && operand_is_vector(w, channels));
    assert(operand_is_vector(b, channels) && operand_is_vector(mean, channels) && operand_is_vector(spread, channels));
    BatchScale f = {floats(w), floats(b), floats(mean), floats(spread), a->attr->norm.eps, eval};
    int code = norm_check(a, &a->batchnorm.x, e);
    return code ? code : by_channel_run(a, e, f, x, a->batchnorm.x.count / channels, channels);
}

int k_cuda_batchnorm_eval(const KArgs *a, Err *e) {
    return scale_channels(a, &a->batchnorm_eval.mean, &a->batchnorm_eval.var, true, e);
}
int k_cuda_batchnorm_again(const KArgs *a, Err *e) {
    return scale_channels(a, &a->batchnorm_again.mean, &a->batchnorm_again.istd, false, e);
}

/* ---- batch normalisation, backward: dx = k (dy - db/M - (x - mean) istd dw/M), k = w istd */

struct BatchSlope {
    enum { INPUTS = 2, PARAMS = 4 };
    const float *w, *mean, *istd, *dw, *db;
    float share; /* 1/M */
    __device__ void prepare(int64_t c, float *params) const {
        const float k = param_at(w, c, 1) * istd[c];
        params[0] = k;
        params[1] = mean[c];
        params[2] = k * istd[c] * dw[c] * share;
        params[3] = k * db[c] * share;
    }
    __device__ float at(const float *x, const float *params) const {
        return x[0] * params[0] - (x[1] - params[1]) * params[2] - params[3];
    }
};

int k_cuda_batchnorm_dx(const KArgs *a, Err *e) {
    const View *w = &a->batchnorm_dx.w, *mean = &a->batchnorm_dx.mean, *istd = &a->batchnorm_dx.istd;
    const View *dw = &a->batchnorm_dx.dw, *db = &a->batchnorm_dx.db;
    const int64_t channels = norm_channels(a, &a->batchnorm_dx.x), rows = a->batchnorm_dx.x.count / channels;
    ElementsOf<2> x = {{elements_of(&a->batchnorm_dx.dy), elements_of(&a->batchnorm_dx.x)}};
    assert(a->batchnorm_dx.dy.count == a->batchnorm_dx.x.count && a->batchnorm_dx.dx.count == a->batchnorm_dx.x.count);
    assert(operand_is_vector(w, channels) && operand_is_vector(mean, channels) && operand_is_vector(istd, channels));
    assert(operand_is_vector(dw, channels) && operand_is_vector(db, channels));
    BatchSlope f = {floats(w), floats(mean), floats(istd), floats(dw), floats(db),
                    1.0f / (float)rows};
    int code = norm_check(a, &a->batchnorm_dx.x, e);
    return code ? code : by_channel_run(a, e, f, x, rows, channels);
}

/* ---- within a sample: a block per group of its channels, on all of the sample's rows */

typedef struct Groups {
    Elements x, y, dy; /* y: or dx */
    const float *w, *b;
    float *mean, *istd;  /* without mean it is 0: RMSNorm */
    int64_t channels, groups, rows, size; /* rows of a sample, channels of a group */
    float eps;
} Groups;

/* A thread's walk through its elements of the group. It has no divisions, which would take longer than all the rest. */
typedef struct Walk { int64_t base, row, column, rows_on, columns_on; } Walk;

static __device__ inline Walk walk_start(const Groups &g) {
    const int64_t sample = blockIdx.x / g.groups, group = blockIdx.x % g.groups;
    Walk w = {sample * g.rows * g.channels + group * g.size, threadIdx.x / g.size, threadIdx.x % g.size,
              NORM_THREADS / g.size, NORM_THREADS % g.size};
    return w;
}
static __device__ inline void walk_on(const Groups &g, Walk *w) {
    w->row += w->rows_on;
    w->column += w->columns_on;
    if (w->column >= g.size) w->column -= g.size, w->row++;
}
static __device__ inline int64_t place_of(const Groups &g, const Walk &w) {
    return w.base + w.row * g.channels + w.column;
}
static __device__ inline int64_t channel_of(const Groups &g, const Walk &w) {
    return blockIdx.x % g.groups * g.size + w.column;
}

static __global__ void norm_kernel(const __grid_constant__ Groups g) {
    const double n = (double)(g.rows * g.size);
    const Walk start = walk_start(g);
    double sum = 0, squares = 0;
    for (Walk w = start; g.mean && w.row < g.rows; walk_on(g, &w)) sum += element_at(g.x, place_of(g, w));
    const float mean = g.mean ? (float)(block_sum(sum) / n) : 0.0f;
    for (Walk w = start; w.row < g.rows; walk_on(g, &w)) {
        double centred = (double)(element_at(g.x, place_of(g, w)) - mean);
        squares += centred * centred;
    }
    const float istd = (float)(1 / sqrt(block_sum(squares) / n + (double)g.eps));
    for (Walk w = start; w.row < g.rows; walk_on(g, &w)) {
        const int64_t at = place_of(g, w), c = channel_of(g, w);
        float y = (element_at(g.x, at) - mean) * istd * param_at(g.w, c, 1) + param_at(g.b, c, 0);
        dtype_store(g.y.type, g.y.data, (size_t)at, y);
    }
    if (threadIdx.x) return;
    if (g.mean) g.mean[blockIdx.x] = mean;
    g.istd[blockIdx.x] = istd;
}

static __global__ void norm_dx_kernel(const __grid_constant__ Groups g) {
    const double n = (double)(g.rows * g.size);
    const float mean = param_at(g.mean, blockIdx.x, 0), istd = g.istd[blockIdx.x];
    const Walk start = walk_start(g);
    double plain = 0, slanted = 0;
    for (Walk w = start; w.row < g.rows; walk_on(g, &w)) {
        const int64_t at = place_of(g, w);
        float slope = element_at(g.dy, at) * param_at(g.w, channel_of(g, w), 1);
        plain += slope;
        slanted += slope * (element_at(g.x, at) - mean);
    }
    const float p = g.mean ? (float)(block_sum(plain) / n) : 0.0f;
    const float s = (float)(block_sum(slanted) / n) * istd * istd;
    for (Walk w = start; w.row < g.rows; walk_on(g, &w)) {
        const int64_t at = place_of(g, w);
        float slope = element_at(g.dy, at) * param_at(g.w, channel_of(g, w), 1);
        dtype_store(g.y.type, g.y.data, (size_t)at, istd * (slope - p - (element_at(g.x, at) - mean) * s));
    }
}

/* ---- the same where a group is a row, and rows have the same parameters (layer norm, RMSNorm): rows.h. The parameters lie in
 *      shared memory, for all rows of the block. A thread has pieces of LANES channels: piece k from (k * lanes + lane) * LANES on. */

enum { ROW_PIECES = ROW_VALUES / LANES, ROW_PARAMS = 8192 + LANES * PARAM_PAD };

/* warps: 0 where the rows are not such, or too long */
static int norm_warps(const Groups &g, int params) {
    const int warps = row_warps(g.size);
    const bool fit = lanes_fit<LANES>(g.x.data, g.x.type, g.size) && lanes_fit<LANES>(g.y.data, g.y.type, g.size) &&
                     (!g.dy.data || lanes_fit<LANES>(g.dy.data, g.dy.type, g.size));
    if (!fit || g.groups != 1 || g.rows != 1 || params * (g.size + LANES * PARAM_PAD) > ROW_PARAMS) return 0;
    return g.size <= NORM_THREADS * ROW_VALUES ? warps : 0;
}

static __device__ inline void row_params(const Groups &g, const float *from, float *params) {
    const int pitch = (int)g.size / LANES + PARAM_PAD;
    for (int c = (int)threadIdx.x; from && c < (int)g.size; c += NORM_THREADS) params[param_place<LANES>(c, pitch)] = from[c];
}

/* width: 0 after the last row; elements after it are 0 */
static __device__ inline void row_load(float (*values)[LANES], Elements x, int64_t row, int width, const RowLane &r) {
    Piece<LANES> pieces[ROW_PIECES] = {};
    UNROLLED(ROW_PIECES)
    for (int k = 0; k < ROW_PIECES; k++) {
        const int c = (k * r.lanes + r.lane) * LANES;
        if (c < width) pieces[k] = piece_load<LANES>(x.type, x.data, row * width + c);
    }
    UNROLLED(ROW_PIECES)
    for (int k = 0; k < ROW_PIECES; k++) piece_unpack(x.type, pieces[k], values[k]);
}

static __global__ void __launch_bounds__(NORM_THREADS, ROW_BLOCKS)
    norm_rows(const __grid_constant__ Groups g, int64_t rows, int warps) {
    __shared__ float params[ROW_PARAMS];
    const RowLane r = row_lane(warps);
    const int size = (int)g.size, pitch = size / LANES + PARAM_PAD;
    float *w = params, *b = params + (g.w ? LANES * pitch : 0);
    row_params(g, g.w, w);
    row_params(g, g.b, b);
    __syncthreads();
    for (int64_t first = (int64_t)blockIdx.x * r.rows; first < rows; first += (int64_t)gridDim.x * r.rows) {
        const int64_t row = first + r.row;
        const int width = row < rows ? size : 0;
        float x[ROW_PIECES][LANES];
        double sum = 0, squares = 0;
        row_load(x, g.x, row, width, r);
        UNROLLED(ROW_PIECES)
        for (int k = 0; k < ROW_PIECES; k++)
            for (int n = 0; n < LANES; n++) sum += x[k][n];
        const float mean = g.mean ? (float)(row_sum(sum, r) / size) : 0.0f;
        UNROLLED(ROW_PIECES)
        for (int k = 0; k < ROW_PIECES; k++) {
            if ((k * r.lanes + r.lane) * LANES >= width) continue;
            for (int n = 0; n < LANES; n++) {
                const double centred = (double)(x[k][n] - mean);
                squares += centred * centred;
            }
        }
        const float istd = (float)(1 / sqrt(row_sum(squares, r) / size + (double)g.eps));
        UNROLLED(ROW_PIECES)
        for (int k = 0; k < ROW_PIECES; k++) {
            const int c = (k * r.lanes + r.lane) * LANES, at = c / LANES;
            if (c >= width) continue;
            for (int n = 0; n < LANES; n++)
                x[k][n] = (x[k][n] - mean) * istd * (g.w ? w[n * pitch + at] : 1) + (g.b ? b[n * pitch + at] : 0);
            lanes_store<LANES>(g.y.type, g.y.data, row * size + c, x[k]);
        }
        if (r.lane || !width) continue;
        if (g.mean) g.mean[row] = mean;
        g.istd[row] = istd;
    }
}

static __global__ void __launch_bounds__(NORM_THREADS, ROW_BLOCKS)
    norm_dx_rows(const __grid_constant__ Groups g, int64_t rows, int warps) {
    __shared__ float w[ROW_PARAMS];
    const RowLane r = row_lane(warps);
    const int size = (int)g.size, pitch = size / LANES + PARAM_PAD;
    row_params(g, g.w, w);
    __syncthreads();
    for (int64_t first = (int64_t)blockIdx.x * r.rows; first < rows; first += (int64_t)gridDim.x * r.rows) {
        const int64_t row = first + r.row;
        const int width = row < rows ? size : 0;
        const float mean = width ? param_at(g.mean, row, 0) : 0, istd = width ? g.istd[row] : 0;
        float x[ROW_PIECES][LANES], slope[ROW_PIECES][LANES];
        double plain = 0, slanted = 0;
        row_load(slope, g.dy, row, width, r);
        row_load(x, g.x, row, width, r);
        UNROLLED(ROW_PIECES)
        for (int k = 0; k < ROW_PIECES; k++) {
            const int at = k * r.lanes + r.lane;
            if (at * LANES >= width) continue;
            for (int n = 0; n < LANES; n++) {
                if (g.w) slope[k][n] *= w[n * pitch + at];
                x[k][n] -= mean;
                plain += slope[k][n];
                slanted += slope[k][n] * x[k][n];
            }
        }
        const float p = g.mean ? (float)(row_sum(plain, r) / size) : 0.0f;
        const float s = (float)(row_sum(slanted, r) / size) * istd * istd;
        UNROLLED(ROW_PIECES)
        for (int k = 0; k < ROW_PIECES; k++) {
            const int c = (k * r.lanes + r.lane) * LANES;
            if (c >= width) continue;
            for (int n = 0; n < LANES; n++) slope[k][n] = istd * (slope[k][n] - p - x[k][n] * s);
            lanes_store<LANES>(g.y.type, g.y.data, row * size + c, slope[k]);
        }
    }
}

static Groups groups_of(const KArgs *a, const View *x, const View *mean, const View *istd) {
    assert(a->attr->norm.groups > 0 && norm_channels(a, x) % a->attr->norm.groups == 0);
    assert(istd->count % a->attr->norm.groups == 0 && operand_is_fp32(istd) && operand_is_vector(mean, istd->count));
    assert(x->count == a->out[0].count);
    Groups g = {};
    g.x = elements_of(x);
    g.y = elements_of(&a->out[0]);
    g.mean = (float *)mean->data;
    g.istd = (float *)istd->data;
    g.channels = norm_channels(a, x);
    g.groups = a->attr->norm.groups;
    g.rows = x->count / g.channels / (istd->count / g.groups);
    g.size = g.channels / g.groups;
    g.eps = a->attr->norm.eps;
    return g;
}

typedef void RowsKernel(const Groups, int64_t, int);
typedef void GroupsKernel(const Groups);

/* params: how many of w and b there are */
static int groups_run(const KArgs *a, Err *e, const Groups &g, int64_t count, int params, RowsKernel *rows, GroupsKernel *groups) {
    const int warps = norm_warps(g, params);
    if (!warps) return launch_op(a, e, groups, (unsigned)count, NORM_THREADS, g);
    return launch_op(a, e, rows, row_blocks(a, count, warps), NORM_THREADS, g, count, warps);
}

int k_cuda_norm(const KArgs *a, Err *e) {
    Groups g = groups_of(a, &a->norm.x, &a->norm.mean, &a->norm.istd);
    assert(operand_is_vector(&a->norm.w, g.channels) && operand_is_vector(&a->norm.b, g.channels));
    g.w = floats(&a->norm.w);
    g.b = floats(&a->norm.b);
    int code = norm_check(a, &a->norm.x, e);
    return code ? code : groups_run(a, e, g, a->norm.istd.count, !!g.w + !!g.b, norm_rows, norm_kernel);
}

int k_cuda_norm_dx(const KArgs *a, Err *e) {
    Groups g = groups_of(a, &a->norm_dx.x, &a->norm_dx.mean, &a->norm_dx.istd);
    assert(a->norm_dx.dy.count == a->norm_dx.x.count && operand_is_vector(&a->norm_dx.w, g.channels));
    g.dy = elements_of(&a->norm_dx.dy);
    g.w = floats(&a->norm_dx.w);
    int code = norm_check(a, &a->norm_dx.x, e);
    return code ? code : groups_run(a, e, g, a->norm_dx.istd.count, !!g.w, norm_dx_rows, norm_dx_kernel);
}

/* ---- parameters */

/* Adds dy (x - mean) istd, and dy; there is one mean per channel, or (GROUPS) per group of a sample. */
template <bool GROUPS> struct ParamSlopes {
    enum { INPUTS = 2, PARAMS = GROUPS ? 0 : 2, ROW = GROUPS ? 2 : 0 }; /* dy, x */
    const float *mean, *istd;
    int64_t groups, rows;
    unsigned size; /* of a group */
    __device__ void read(int64_t k, float *to) const { to[0] = param_at(mean, k, 0), to[1] = istd[k]; }
    __device__ void prepare(int64_t c, float *params) const {
        if (!GROUPS) read(c, params);
    }
    __device__ void row(int64_t row, int64_t c, float *of_row) const {
        if (GROUPS) read(row / rows * groups + (unsigned)c / size, of_row);
    }
    __device__ void add(const float *x, const float *params, const float *of_row, double *sum) const {
        const float *const of = GROUPS ? of_row : params;
        sum[0] += (double)(x[0] * ((x[1] - of[0]) * of[1]));
        sum[1] += (double)x[0];
    }
};

static __global__ void param_finish(const double *parts, int n, int64_t channels, float *dw, float *db) {
    const int64_t c = channel_here();
    const double slanted = channel_sum(parts, n, 0, channels), plain = channel_sum(parts, n, 1, channels);
    if (threadIdx.y || c >= channels) return;
    dw[c] = (float)slanted;
    if (db) db[c] = (float)plain;
}

int k_cuda_norm_dw_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *e) {
    return prepare_sums(a, &a->norm_dw.x, state, workspace, e);
}

template <bool GROUPS> static int slopes_run(const KArgs *a, Err *e, int64_t rows, int64_t channels) {
    const int64_t groups = a->attr->norm.groups, samples = GROUPS ? a->norm_dw.istd.count / groups : 1;
    const ElementsOf<2> x = {{elements_of(&a->norm_dw.dy), elements_of(&a->norm_dw.x)}};
    const ParamSlopes<GROUPS> f = {floats(&a->norm_dw.mean), floats(&a->norm_dw.istd), groups, rows / samples,
                                   (unsigned)(channels / (GROUPS ? groups : 1))};
    return channels_run(a, e, f, x, rows, channels, !GROUPS || f.size % COLUMN_LANES == 0);
}

int k_cuda_norm_dw(const KArgs *a, Err *e) {
    const int64_t channels = norm_channels(a, &a->norm_dw.x), rows = a->norm_dw.x.count / channels;
    assert(a->norm_dw.dy.count == a->norm_dw.x.count && operand_is_vector(&a->norm_dw.mean, a->norm_dw.istd.count));
    assert(operand_is_vector(&a->norm_dw.dw, channels) && operand_is_vector(&a->norm_dw.db, channels));
    const int code = (a->attr->norm.groups ? slopes_run<true> : slopes_run<false>)(a, e, rows, channels);
    if (code) return code;
    return launch_op(a, e, param_finish, channel_blocks(channels), channel_threads(), (const double *)a->workspace,
                     channel_parts(rows, channels), channels, (float *)a->norm_dw.dw.data, (float *)a->norm_dw.db.data);
}
