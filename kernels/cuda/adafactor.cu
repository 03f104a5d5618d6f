/* adafactor.cu: Adafactor's update. It computes the means of squares per row and per column, the size of the update,
 * then the update. A small parameter is one block's, and many of them one launch (queue.h). Of a large one each of the three is a
 * kernel or more; long sums are made in parts that follow from the shape alone and are added in order. A single matrix is read three
 * times, as the mathematics wants it; others once more, since the means of rows and of columns are made one after the other. The
 * workspace:
 *
 *   Scalars | the weights' and the update's squares [2][size_parts] | parts of the means [mean_parts][items], or of a matrix's
 *   [blocks across][rows] and [blocks down][columns] */
#include "channels.h"
#include "program/adafactor.h"
#include "queue.h"
#include "sums.h"

/* Elements of a small parameter, at most. Biases and the parameters of normalisations are such. */
enum { SMALL = 4096 };

/* MEAN_TERMS: of a part, at least; MEAN_PARTS: at most. MEAN_BLOCKS: enough to keep a GPU busy. FINISH_THREADS: a
 * block's */
enum { MEAN_TERMS = 512, MEAN_PARTS = 64, MEAN_BLOCKS = 1024, FINISH_THREADS = 128 };

/* mean: of row_var, if the parameter is one matrix; rate: that the whole update is multiplied by */
typedef struct Scalars { float mean, rate; } Scalars;

/* A parameter. copy: 16-bit weights; data NULL: absent */
typedef struct Factors {
    AdafactorShape f;
    Elements g, weight, copy, row, column, row_var, variance;
    int64_t count;
    float eps;
} Factors;

/* A large one */
typedef struct Job {
    QueueHead head;
    Factors t;
    Scalars *scalars;
    double *sums; /* [2][blocks] */
} Job;

/* Small ones */
struct Jobs {
    enum { TENSORS = 22 };
    QueueHead head;
    Factors tensor[TENSORS];
};

static_assert(sizeof(Jobs) <= PARAMETER_BYTES, "kernel parameters");

/* How blocks share a single matrix: `across` threads of one or four columns each, side by side, in a block. Its rows are cut into parts of
 * MATRIX_ROWS at least: so what belongs to the columns is little beside them. All of it follows from the shape alone. */
typedef struct Tiling { unsigned across; dim3 grid; } Tiling;
enum { MATRIX_ROWS = 64 };

static bool is_matrix(const KArgs *a, const AdafactorShape &f) { return a->adafactor.w.shape.rank > 1 && f.outer * f.inner == 1; }

/* QUAD: of fp32, 16 bytes */
static int matrix_lanes(const AdafactorShape &f) { return f.columns % QUAD ? 1 : QUAD; }

static Tiling matrix_tiling(const AdafactorShape &f) {
    const unsigned across = columns_across(f.columns, matrix_lanes(f), WARP);
    const int64_t each = (int64_t)across * matrix_lanes(f);
    return {across, dim3((unsigned)((f.columns + each - 1) / each), (unsigned)columns_cut(f.rows, f.columns, each, MATRIX_ROWS))};
}

/* The workspace for both means of a matrix at once */
static size_t matrix_bytes(const AdafactorShape &f) {
    const Tiling t = matrix_tiling(f);
    return (size_t)((int64_t)t.grid.x * f.rows + (int64_t)t.grid.y * f.columns) * sizeof(double);
}

/* Blocks that share the sums over all elements; the bytes of workspace before the parts of the means */
static int size_parts(const KArgs *a) {
    const AdafactorShape f = adafactor_of(a);
    if (!is_matrix(a, f)) return (int)sum_parts(a->adafactor.w.count, sizeof(double), PARTS_MAX * sizeof(double));
    return (int)(matrix_tiling(f).grid.x * matrix_tiling(f).grid.y);
}
static size_t head_bytes(const KArgs *a) { return sizeof(Scalars) + 2 * (size_t)size_parts(a) * sizeof(double); }

/* ---- means along the middle of (before, terms, after) */

typedef struct Middle { int64_t before, terms, after; } Middle;

/* Blocks that share the terms of a mean; their sums fit into `bytes`, unless there is one */
static int mean_parts(const Middle &m, size_t bytes) {
    const int64_t blocks = m.after == 1 ? m.before : m.before * ((m.after + WARP - 1) / WARP);
    const int64_t most = min_i64((m.terms + MEAN_TERMS - 1) / MEAN_TERMS, MEAN_PARTS);
    const int64_t wanted = min_i64(most, MEAN_BLOCKS / blocks);
    const int64_t room = (int64_t)(bytes / sizeof(double)) / (m.before * m.after);
    return (int)max_i64(1, min_i64(wanted, room));
}

static __device__ void mean_store(const OptimStep &step, const Elements &mean, int64_t item, double of_squares) {
    dtype_store(mean.type, mean.data, (size_t)item, adafactor_mean(&step, element_at(mean, item), (float)of_squares));
}

/* The terms of an item are not neighbours: a block takes 32 items by 8 terms at a time. LINE: they are neighbours, and
 * a block of one row of threads adds up one item. */
template <bool LINE>
static __global__ void __launch_bounds__(ELEMENT_THREADS) mean_kernel(Job j, Elements mean, Middle m, double *parts) {
    const int64_t items = m.before * m.after, share = (m.terms + gridDim.y - 1) / gridDim.y;
    const int64_t first = share * blockIdx.y, end = first + share < m.terms ? first + share : m.terms;
    const int64_t stride = LINE ? 1 : WARP, step = LINE ? (int64_t)ELEMENT_THREADS : (int64_t)CHANNEL_ROWS;
    const int64_t mine = LINE ? threadIdx.x : threadIdx.y;
    if (j.head.state->overflow) return;
    const OptimStep &s = block_step(j.head);
    for (int64_t at = (int64_t)blockIdx.x * stride; at < items; at += gridDim.x * stride) {
        const int64_t item = LINE ? at : at + threadIdx.x;
        const int64_t from = item / m.after * m.terms * m.after + item % m.after;
        double sum = 0;
        for (int64_t k = first + mine; k < end && item < items; k += step) {
            const float g = element_at(j.t.g, from + k * m.after) * s.unscale;
            sum += (double)g * (double)g;
        }
        sum = LINE ? block_sum(sum) : down_sum(sum);
        if (mine != 0 || item >= items) continue;
        if (gridDim.y == 1) mean_store(s, mean, item, sum / (double)m.terms);
        else parts[blockIdx.y * items + item] = sum;
    }
}

static __global__ void mean_finish(Job j, Elements mean, Middle m, const double *parts, int n) {
    const int64_t items = m.before * m.after, item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    double sum = 0;
    if (j.head.state->overflow) return;
    const OptimStep &s = block_step(j.head);
    if (item >= items) return;
    for (int i = 0; i < n; i++) sum += parts[i * items + item];
    mean_store(s, mean, item, sum / (double)m.terms);
}

/* Adds up n sums of parts of each mean. */
static int finish_run(const KArgs *a, Err *e, const Job &j, const Elements &mean, const Middle &m, const double *parts, int n) {
    const unsigned blocks = (unsigned)((m.before * m.after + FINISH_THREADS - 1) / FINISH_THREADS);
    return launch_op(a, e, mean_finish, blocks, FINISH_THREADS, j, mean, m, parts, n);
}

static int mean_run(const KArgs *a, Err *e, const Job &j, const Elements &mean, const Middle &m) {
    const size_t head = head_bytes(a);
    const int parts = mean_parts(m, a->workspace_bytes - head);
    const int64_t items = m.before * m.after, blocks = m.after == 1 ? items : (items + WARP - 1) / WARP;
    const dim3 grid(blocks_for(a, blocks, 1), (unsigned)parts);
    double *at = (double *)((char *)a->workspace + head);
    int code = m.after == 1 ? launch_op(a, e, mean_kernel<true>, grid, dim3(ELEMENT_THREADS), j, mean, m, at)
                            : launch_op(a, e, mean_kernel<false>, grid, dim3(WARP, CHANNEL_ROWS), j, mean, m, at);
    if (code || parts == 1) return code;
    return finish_run(a, e, j, mean, m, at, parts);
}

/* Of a small parameter, by one block: a warp adds up an item, or a thread where there are few terms. */
static __device__ void small_means(const OptimStep &s, const Factors &t, const Elements &mean, const Middle &m) {
    const int lanes = m.terms < WARP ? 1 : WARP, lane = (int)threadIdx.x % lanes;
    for (int64_t item = threadIdx.x / lanes; item < m.before * m.after; item += ELEMENT_THREADS / lanes) {
        const int64_t from = item / m.after * m.terms * m.after + item % m.after;
        double sum = 0;
        for (int64_t k = lane; k < m.terms; k += lanes) {
            const float g = element_at(t.g, from + k * m.after) * s.unscale;
            sum += (double)g * (double)g;
        }
        if (lanes > 1) sum = warp_sum(sum);
        if (lane == 0) mean_store(s, mean, item, sum / (double)m.terms);
    }
}

/* ---- the update */

/* The mean of row_var over the matrix (o, i) */
static __device__ float matrix_mean(const Factors &t, int64_t o, int64_t i) {
    double sum = 0;
    for (int64_t r = 0; r < t.f.averaged; r++) sum += element_at(t.row_var, (o * t.f.averaged + r) * t.f.inner + i);
    return adafactor_clamp((float)(sum / (double)t.f.averaged), t.eps);
}

/* The same of the only matrix, by one block */
static __device__ float only_mean(const Factors &t) {
    double sum = 0;
    for (int64_t r = threadIdx.x; r < t.f.averaged; r += ELEMENT_THREADS) sum += element_at(t.row_var, r);
    return adafactor_clamp((float)(block_sum(sum) / (double)t.f.averaged), t.eps);
}

static __device__ float expected(const Factors &t, const Scalars *c, int64_t at) {
    if (t.variance.data) return element_at(t.variance, at);
    const int64_t plane = t.f.columns * t.f.inner, row = at / plane, o = row / t.f.rows;
    const int64_t i = t.f.inner > 1 ? at % t.f.inner : 0;
    const float mean = t.f.outer * t.f.inner == 1 ? c->mean : matrix_mean(t, o, i);
    return element_at(t.row, row * t.f.inner + i) * element_at(t.column, o * plane + at % plane) / mean;
}

static __device__ float update_of(const Factors &t, const Scalars *c, float unscale, int64_t at) {
    return element_at(t.g, at) * unscale / adafactor_root(expected(t, c, at), t.eps);
}

/* The thread's elements: from `first` on, `stride` apart */
typedef struct Share { int64_t first, stride; } Share;

static __device__ Share share_of_grid() {
    return Share{(int64_t)blockIdx.x * blockDim.x + threadIdx.x, (int64_t)gridDim.x * blockDim.x};
}

/* The block's squares of weights and of the update */
typedef struct Sizes { double weight, update; } Sizes;

static __device__ Sizes block_sizes(const Factors &t, const Scalars *c, float unscale, Share share) {
    Sizes s = {0, 0};
    for (int64_t i = share.first; i < t.count; i += share.stride) {
        const double w = element_at(t.weight, i), u = update_of(t, c, unscale, i);
        s.weight += w * w;
        s.update += u * u;
    }
    return Sizes{block_sum(s.weight), block_sum(s.update)};
}

static __device__ float rate_of(const OptimStep &s, const Factors &t, const Sizes &of) {
    return adafactor_rate(&s, of.weight / (double)t.count, of.update / (double)t.count);
}

static __device__ void apply(const OptimStep &s, const Factors &t, const Scalars *c, Share share) {
    const float keep = 1.0f - s.rule.lr * s.rule.weight_decay, rate = c->rate;
    for (int64_t i = share.first; i < t.count; i += share.stride) {
        const float w = element_at(t.weight, i) * keep - rate * update_of(t, c, s.unscale, i);
        dtype_store(t.weight.type, t.weight.data, (size_t)i, w);
        if (t.copy.data) dtype_store(t.copy.type, t.copy.data, (size_t)i, w);
    }
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) matrix_kernel(Job j) {
    if (j.head.state->overflow) return;
    const float mean = only_mean(j.t);
    if (threadIdx.x == 0) j.scalars->mean = mean;
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) size_kernel(Job j) {
    if (j.head.state->overflow) return;
    const Sizes s = block_sizes(j.t, j.scalars, block_step(j.head).unscale, share_of_grid());
    if (threadIdx.x) return;
    j.sums[blockIdx.x] = s.weight;
    j.sums[gridDim.x + blockIdx.x] = s.update;
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) size_finish(Job j, int n) {
    Sizes s = {0, 0};
    if (j.head.state->overflow) return;
    const OptimStep &step = block_step(j.head);
    for (int i = (int)threadIdx.x; i < n; i += ELEMENT_THREADS) {
        s.weight += j.sums[i];
        s.update += j.sums[n + i];
    }
    s.weight = block_sum(s.weight);
    s.update = block_sum(s.update);
    if (threadIdx.x == 0) j.scalars->rate = rate_of(step, j.t, s);
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) apply_kernel(Job j) {
    if (j.head.state->overflow) return;
    apply(block_step(j.head), j.t, j.scalars, share_of_grid());
}

/* ---- a single matrix: threads walk down the rows of their columns */

/* What belongs to a column */
struct ColumnMean {
    enum { PARAMS = 1 };
    Elements column;
    __device__ void prepare(int64_t c, float *params) const { params[0] = element_at(column, c); }
};

/* Calls each(row, inside) for the rows of the block's part, IN_FLIGHT at a time and one after the other: all threads of a warp as
 * often. inside: the row is there, and so are the thread's columns. before(k, row): to load what the k-th of these calls wants */
template <typename Before, typename Each>
static __device__ inline void matrix_walk(const AdafactorShape &f, int64_t c, Before before, Each each) {
    const int64_t part = (f.rows + gridDim.y - 1) / gridDim.y, begin = part * blockIdx.y, step = blockDim.y;
    const int64_t end = begin + part < f.rows ? begin + part : f.rows;
    for (int64_t top = begin; top < end; top += IN_FLIGHT * step) {
        UNROLLED(IN_FLIGHT)
        for (int k = 0; k < IN_FLIGHT; k++)
            if (top + k * step + threadIdx.y < end && c < f.columns) before(k, top + k * step + threadIdx.y);
        UNROLLED(IN_FLIGHT)
        for (int k = 0; k < IN_FLIGHT; k++) {
            const int64_t row = top + k * step + threadIdx.y;
            each(k, row, row < end && c < f.columns);
        }
    }
}

template <int N> static __device__ inline int64_t first_column() { return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; }

/* of_rows[blocks across][rows], of_columns[blocks down][columns]: sums of squares */
template <int N>
static __global__ void __launch_bounds__(COLUMN_THREADS, 2) matrix_means(Job j, bool whole, double *of_rows, double *of_columns) {
    const AdafactorShape &f = j.t.f;
    const int64_t c = first_column<N>();
    double sum[N][1] = {};
    float g[IN_FLIGHT][N];
    if (j.head.state->overflow) return;
    const float unscale = block_step(j.head).unscale;
    matrix_walk(f, c, [&](int k, int64_t row) { some_load<N>(j.t.g, row * f.columns + c, j.t.count, whole, g[k]); },
                [&](int k, int64_t row, bool inside) {
                    double of_row = 0;
                    for (int n = 0; n < N && inside; n++) {
                        const double x = (double)(g[k][n] * unscale);
                        sum[n][0] += x * x;
                        of_row += x * x;
                    }
                    for (unsigned bit = blockDim.x / 2; bit; bit /= 2) of_row += __shfl_xor_sync(0xffffffffu, of_row, bit);
                    if (inside && threadIdx.x == 0) of_rows[blockIdx.x * f.rows + row] = of_row;
                });
    channels_store<N, 1>(of_columns, f.columns, sum);
}

/* APPLY: the update; else its size, and the weights' */
template <int N, bool APPLY> static __global__ void __launch_bounds__(COLUMN_THREADS, 2) matrix_update(Job j, bool whole) {
    const AdafactorShape &f = j.t.f;
    const Factors &t = j.t;
    const int64_t c = first_column<N>();
    float g[IN_FLIGHT][N], w[IN_FLIGHT][N], of_row[IN_FLIGHT], of_column[N][1] = {};
    Sizes sizes = {0, 0};
    if (j.head.state->overflow) return;
    const OptimStep &s = block_step(j.head);
    const float keep = 1.0f - s.rule.lr * s.rule.weight_decay, rate = APPLY ? j.scalars->rate : 0, mean = j.scalars->mean;
    params_load<N>(ColumnMean{t.column}, f.columns, of_column);
    matrix_walk(f, c,
                [&](int k, int64_t row) {
                    some_load<N>(t.g, row * f.columns + c, t.count, whole, g[k]);
                    some_load<N>(t.weight, row * f.columns + c, t.count, whole, w[k]);
                    of_row[k] = element_at(t.row, row);
                },
                [&](int k, int64_t row, bool inside) {
                    if (!inside) return;
                    for (int n = 0; n < N; n++) {
                        const float u = g[k][n] * s.unscale / adafactor_root(of_row[k] * of_column[n][0] / mean, t.eps);
                        sizes.weight += (double)w[k][n] * (double)w[k][n];
                        sizes.update += (double)u * (double)u;
                        w[k][n] = w[k][n] * keep - rate * u;
                    }
                    if (!APPLY) return;
                    some_store<N>(t.weight, row * f.columns + c, t.count, whole, w[k]);
                    if (t.copy.data) some_store<N>(t.copy, row * f.columns + c, t.count, whole, w[k]);
                });
    if (APPLY) return;
    const Sizes all = {block_sum(sizes.weight), block_sum(sizes.update)};
    if (threadIdx.x || threadIdx.y) return;
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    j.sums[block] = all.weight;
    j.sums[gridDim.x * gridDim.y + block] = all.update;
}

static __host__ __device__ inline Middle rows_of(const AdafactorShape &f) { return {f.outer * f.rows, f.columns, f.inner}; }
static __host__ __device__ inline Middle columns_of(const AdafactorShape &f) { return {f.outer, f.rows, f.columns * f.inner}; }
static __host__ __device__ inline Middle vector_of(const Factors &t) { return {1, 1, t.count}; }

/* A block has a parameter; what one phase writes, the next one reads. */
static __global__ void __launch_bounds__(ELEMENT_THREADS) small_kernel(const __grid_constant__ Jobs j) {
    __shared__ Scalars scalars;
    const Factors &t = j.tensor[blockIdx.x];
    const Share share = {threadIdx.x, ELEMENT_THREADS};
    if (j.head.state->overflow) return;
    const OptimStep &step = block_step(j.head);
    if (t.variance.data) {
        small_means(step, t, t.variance, vector_of(t));
    } else {
        small_means(step, t, t.row, rows_of(t.f));
        small_means(step, t, t.column, columns_of(t.f));
    }
    __syncthreads();
    if (!t.variance.data && t.f.outer * t.f.inner == 1) {
        const float mean = only_mean(t);
        if (threadIdx.x == 0) scalars.mean = mean;
        __syncthreads();
    }
    const Sizes s = block_sizes(t, &scalars, step.unscale, share);
    if (threadIdx.x == 0) scalars.rate = rate_of(step, t, s);
    __syncthreads();
    apply(step, t, &scalars, share);
}

/* ---- on the host */

extern "C" int k_cuda_adafactor_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *) {
    const AdafactorShape f = adafactor_of(a);
    const size_t head = a->adafactor.w.count <= SMALL ? 0 : head_bytes(a);
    *state = NULL;
    *workspace = head;
    if (!head || a->adafactor.w.shape.rank == 1) return OK;
    if (is_matrix(a, f) && head + matrix_bytes(f) <= limit) {
        *workspace = head + matrix_bytes(f);
        return OK;
    }
    const Middle both[2] = {rows_of(f), columns_of(f)};
    for (int k = 0; k < 2; k++) {
        const int parts = mean_parts(both[k], limit > head ? limit - head : 0);
        const size_t bytes = head + (size_t)(both[k].before * both[k].after) * (size_t)parts * sizeof(double);
        if (parts > 1 && bytes > *workspace) *workspace = bytes;
    }
    return OK;
}

static Factors factors_of(const KArgs *a) {
    const View *master = &a->out[op_master(a->kind)];
    assert(a->adafactor.g.count == a->adafactor.w.count);
    Factors t = {};
    t.f = adafactor_of(a);
    t.g = elements_of(&a->adafactor.g);
    t.weight = elements_of(master->data ? master : &a->adafactor.w);
    if (master->data) t.copy = elements_of(&a->adafactor.w);
    t.row = elements_of(&a->out[t.f.row]);
    t.column = elements_of(&a->out[t.f.column]);
    t.row_var = elements_of(&a->out[FACTORS_ROW]);
    t.variance = elements_of(&a->adafactor.variance);
    t.count = a->adafactor.w.count;
    t.eps = adafactor_eps(&a->attr->optim.rule, t.weight.type);
    return t;
}

/* Both means of a matrix at once */
static int matrix_means_run(const KArgs *a, Err *e, const Job &j, const Tiling &tiling, bool whole) {
    const AdafactorShape &f = j.t.f;
    double *const of_rows = (double *)((char *)a->workspace + head_bytes(a)), *const of_columns = of_rows + tiling.grid.x * f.rows;
    int code = launch_op(a, e, matrix_lanes(f) > 1 ? matrix_means<QUAD> : matrix_means<1>, tiling.grid,
                         dim3(tiling.across, COLUMN_THREADS / tiling.across), j, whole, of_rows, of_columns);
    if (!code) code = finish_run(a, e, j, j.t.row, rows_of(f), of_rows, (int)tiling.grid.x);
    return code ? code : finish_run(a, e, j, j.t.column, columns_of(f), of_columns, (int)tiling.grid.y);
}

static int means_run(const KArgs *a, Err *e, const Job &j) {
    if (j.t.variance.data) return mean_run(a, e, j, j.t.variance, vector_of(j.t));
    const int code = mean_run(a, e, j, j.t.row, rows_of(j.t.f));
    return code ? code : mean_run(a, e, j, j.t.column, columns_of(j.t.f));
}

template <bool APPLY> static int matrix_update_run(const KArgs *a, Err *e, const Job &j, const Tiling &tiling, bool whole) {
    return launch_op(a, e, matrix_lanes(j.t.f) > 1 ? matrix_update<QUAD, APPLY> : matrix_update<1, APPLY>, tiling.grid,
                     dim3(tiling.across, COLUMN_THREADS / tiling.across), j, whole);
}

static int matrix_run(const KArgs *a, const Job &j, Err *e) {
    const Tiling tiling = matrix_tiling(j.t.f);
    const Elements all[] = {j.t.g, j.t.weight, j.t.copy};
    bool whole = true;
    for (const Elements &x : all) whole = whole && (!x.data || elements_aligned(x));
    int code = a->workspace_bytes >= head_bytes(a) + matrix_bytes(j.t.f) ? matrix_means_run(a, e, j, tiling, whole) : means_run(a, e, j);
    if (!code) code = launch_op(a, e, matrix_kernel, 1, ELEMENT_THREADS, j);
    if (!code) code = matrix_update_run<false>(a, e, j, tiling, whole);
    if (!code) code = launch_op(a, e, size_finish, 1, ELEMENT_THREADS, j, size_parts(a));
    return code ? code : matrix_update_run<true>(a, e, j, tiling, whole);
}

static int large_run(const KArgs *a, const Factors &t, Err *e) {
    Scalars *const scalars = (Scalars *)a->workspace;
    const Job j = {update_head(a), t, scalars, (double *)(scalars + 1)};
    assert(a->workspace_bytes >= head_bytes(a));
    if (is_matrix(a, t.f)) return matrix_run(a, j, e);
    int code = means_run(a, e, j);
    if (!code) code = launch_op(a, e, size_kernel, (unsigned)size_parts(a), ELEMENT_THREADS, j);
    if (!code) code = launch_op(a, e, size_finish, 1, ELEMENT_THREADS, j, size_parts(a));
    return code ? code : launch_op(a, e, apply_kernel, blocks_for(a, t.count, ELEMENT_THREADS), ELEMENT_THREADS, j);
}

static int small_enqueue(CudaDevice *c, OpKind kind, const void *launched, Err *e) {
    const Jobs *j = (const Jobs *)launched;
    return cuda_check(c, launch(small_kernel, dim3((unsigned)j->head.n), dim3(ELEMENT_THREADS), c->stream, *j), op_info(kind)->name, e);
}

extern "C" int k_cuda_adafactor(const KArgs *a, Err *e) {
    const QueueHead head = update_head(a);
    const Factors t = factors_of(a);
    void *waits;
    if (t.count > SMALL) {
        const Jobs *waiting = (const Jobs *)queue_waiting(cuda_of(a), a->kind);
        bool free = true;
        for (int k = 0; waiting && k < waiting->head.n; k++)
            free = free && !workspace_holds(a, waiting->tensor[k].g.data, waiting->tensor[k].count, waiting->tensor[k].g.type);
        const int code = free ? OK : cuda_flush(cuda_of(a), e);
        return code ? code : large_run(a, t, e);
    }
    const int code = queue_join(a, &head, Jobs::TENSORS, small_enqueue, &waits, e);
    if (code) return code;
    Jobs *j = (Jobs *)waits;
    j->tensor[j->head.n++] = t;
    return OK;
}
