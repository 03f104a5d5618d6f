/* adafactor.cu: Adafactor's update. It computes the means of squares per row and per column, the size of the update,
 * then the update. Long sums are made in parts that follow from the shape alone and are added in order. The workspace:
 *
 *   Scalars | the weights' and the update's squares [2][size_parts] | parts of the means [mean_parts][items] */
#include "channels.h"
#include "program/adafactor.h"
#include "sums.h"

/* MEAN_TERMS: of a part, at least; MEAN_PARTS: at most. MEAN_BLOCKS: enough to keep a GPU busy. FINISH_THREADS: a
 * block's */
enum { MEAN_TERMS = 512, MEAN_PARTS = 64, MEAN_BLOCKS = 1024, FINISH_THREADS = 128 };

/* mean: of row_var, if the parameter is one matrix; rate: that the whole update is multiplied by */
typedef struct Scalars { float mean, rate; } Scalars;

typedef struct Job {
    OptimRule rule;
    const StepState *state;
    const float *lr, *square;
    AdafactorShape f;
    Elements g, weight, copy, row, column, row_var, variance; /* copy: 16-bit weights; data NULL: absent */
    int64_t count;
    float eps;
    Scalars *scalars;
    double *sums;  /* [2][blocks] */
} Job;

/* Blocks that share the sums over all elements; the bytes of workspace before the parts of the means */
static int size_parts(int64_t count) { return (int)sum_parts(count, sizeof(double), PARTS_MAX * sizeof(double)); }
static size_t head_bytes(int64_t count) { return sizeof(Scalars) + 2 * (size_t)size_parts(count) * sizeof(double); }

/* What is the same for all numbers, by one thread of the block; all of its threads must call it. */
static __device__ const OptimStep &block_step(const Job &j) {
    __shared__ OptimStep step;
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        const OptimStep now = optim_step(&j.rule, j.state, j.lr, j.square);
        step = now;
    }
    __syncthreads();
    return step;
}

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
    if (j.state->overflow) return;
    const OptimStep &s = block_step(j);
    for (int64_t at = (int64_t)blockIdx.x * stride; at < items; at += gridDim.x * stride) {
        const int64_t item = LINE ? at : at + threadIdx.x;
        const int64_t from = item / m.after * m.terms * m.after + item % m.after;
        double sum = 0;
        for (int64_t k = first + mine; k < end && item < items; k += step) {
            const float g = element_at(j.g, from + k * m.after) * s.unscale;
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
    if (j.state->overflow) return;
    const OptimStep &s = block_step(j);
    if (item >= items) return;
    for (int i = 0; i < n; i++) sum += parts[i * items + item];
    mean_store(s, mean, item, sum / (double)m.terms);
}

static int mean_run(const KArgs *a, Err *e, const Job &j, const Elements &mean, const Middle &m) {
    const size_t head = head_bytes(j.count);
    const int parts = mean_parts(m, a->workspace_bytes - head);
    const int64_t items = m.before * m.after, blocks = m.after == 1 ? items : (items + WARP - 1) / WARP;
    const dim3 grid(blocks_for(a, blocks, 1), (unsigned)parts);
    double *at = (double *)((char *)a->workspace + head);
    int code = m.after == 1 ? launch_op(a, e, mean_kernel<true>, grid, dim3(ELEMENT_THREADS), j, mean, m, at)
                            : launch_op(a, e, mean_kernel<false>, grid, dim3(WARP, CHANNEL_ROWS), j, mean, m, at);
    if (code || parts == 1) return code;
    const unsigned finish = (unsigned)((items + FINISH_THREADS - 1) / FINISH_THREADS);
    return launch_op(a, e, mean_finish, finish, FINISH_THREADS, j, mean, m, (const double *)at, parts);
}

/* ---- the update */

/* The mean of row_var over the matrix (o, i) */
static __device__ float matrix_mean(const Job &j, int64_t o, int64_t i) {
    double sum = 0;
    for (int64_t r = 0; r < j.f.averaged; r++) sum += element_at(j.row_var, (o * j.f.averaged + r) * j.f.inner + i);
    return adafactor_clamp((float)(sum / (double)j.f.averaged), j.eps);
}

/* The same of the only matrix, by one block, into j.scalars */
static __global__ void __launch_bounds__(ELEMENT_THREADS) matrix_kernel(Job j) {
    double sum = 0;
    if (j.state->overflow) return;
    for (int64_t r = threadIdx.x; r < j.f.averaged; r += ELEMENT_THREADS) sum += element_at(j.row_var, r);
    sum = block_sum(sum);
    if (threadIdx.x == 0) j.scalars->mean = adafactor_clamp((float)(sum / (double)j.f.averaged), j.eps);
}

static __device__ float expected(const Job &j, int64_t at) {
    if (j.variance.data) return element_at(j.variance, at);
    const int64_t plane = j.f.columns * j.f.inner, row = at / plane, o = row / j.f.rows;
    const int64_t i = j.f.inner > 1 ? at % j.f.inner : 0;
    const float mean = j.f.outer * j.f.inner == 1 ? j.scalars->mean : matrix_mean(j, o, i);
    return element_at(j.row, row * j.f.inner + i) * element_at(j.column, o * plane + at % plane) / mean;
}

static __device__ float update_of(const Job &j, float unscale, int64_t at) {
    return element_at(j.g, at) * unscale / adafactor_root(expected(j, at), j.eps);
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) size_kernel(Job j) {
    double weight = 0, update = 0;
    if (j.state->overflow) return;
    const float unscale = block_step(j).unscale;
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < j.count; i += stride) {
        const double w = element_at(j.weight, i), u = update_of(j, unscale, i);
        weight += w * w;
        update += u * u;
    }
    weight = block_sum(weight);
    update = block_sum(update);
    if (threadIdx.x) return;
    j.sums[blockIdx.x] = weight;
    j.sums[gridDim.x + blockIdx.x] = update;
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) size_finish(Job j, int n) {
    double weight = 0, update = 0;
    if (j.state->overflow) return;
    const OptimStep &step = block_step(j);
    for (int i = (int)threadIdx.x; i < n; i += ELEMENT_THREADS) {
        weight += j.sums[i];
        update += j.sums[n + i];
    }
    weight = block_sum(weight);
    update = block_sum(update);
    if (threadIdx.x) return;
    j.scalars->rate = adafactor_rate(&step, weight / (double)j.count, update / (double)j.count);
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) apply_kernel(Job j) {
    if (j.state->overflow) return;
    const OptimStep &step = block_step(j);
    const float keep = 1.0f - step.rule.lr * step.rule.weight_decay, rate = j.scalars->rate;
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < j.count; i += stride) {
        const float w = element_at(j.weight, i) * keep - rate * update_of(j, step.unscale, i);
        dtype_store(j.weight.type, j.weight.data, (size_t)i, w);
        if (j.copy.data) dtype_store(j.copy.type, j.copy.data, (size_t)i, w);
    }
}

/* ---- on the host */

static Middle rows_of(const AdafactorShape &f) { return {f.outer * f.rows, f.columns, f.inner}; }
static Middle columns_of(const AdafactorShape &f) { return {f.outer, f.rows, f.columns * f.inner}; }

extern "C" int k_cuda_adafactor_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *) {
    const AdafactorShape f = adafactor_of(a);
    *state = NULL;
    const size_t head = head_bytes(a->adafactor.w.count);
    *workspace = head;
    const Middle both[2] = {rows_of(f), columns_of(f)};
    for (int k = 0; k < 2 && a->adafactor.w.shape.rank > 1; k++) {
        const int parts = mean_parts(both[k], limit > head ? limit - head : 0);
        const size_t bytes = head + (size_t)(both[k].before * both[k].after) * (size_t)parts * sizeof(double);
        if (parts > 1 && bytes > *workspace) *workspace = bytes;
    }
    return OK;
}

static Job job_of(const KArgs *a) {
    const View *master = &a->out[op_master(a->kind)];
    assert(a->adafactor.g.count == a->adafactor.w.count && a->workspace_bytes >= head_bytes(a->adafactor.w.count));
    Job j = {};
    j.rule = a->attr->optim.rule;
    j.state = (const StepState *)a->adafactor.state.data;
    j.lr = (const float *)a->adafactor.lr.data;
    j.square = (const float *)a->adafactor.square.data;
    j.f = adafactor_of(a);
    j.g = elements_of(&a->adafactor.g);
    j.weight = elements_of(master->data ? master : &a->adafactor.w);
    if (master->data) j.copy = elements_of(&a->adafactor.w);
    j.row = elements_of(&a->out[j.f.row]);
    j.column = elements_of(&a->out[j.f.column]);
    j.row_var = elements_of(&a->out[FACTORS_ROW]);
    j.variance = elements_of(&a->adafactor.variance);
    j.count = a->adafactor.w.count;
    j.eps = adafactor_eps(&j.rule, j.weight.type);
    j.scalars = (Scalars *)a->workspace;
    j.sums = (double *)(j.scalars + 1);
    return j;
}

static int means_run(const KArgs *a, Err *e, const Job &j) {
    if (j.variance.data) return mean_run(a, e, j, j.variance, Middle{1, 1, j.count});
    int code = mean_run(a, e, j, j.row, rows_of(j.f));
    if (!code) code = mean_run(a, e, j, j.column, columns_of(j.f));
    if (!code && j.f.outer * j.f.inner == 1) code = launch_op(a, e, matrix_kernel, 1, ELEMENT_THREADS, j);
    return code;
}

extern "C" int k_cuda_adafactor(const KArgs *a, Err *e) {
    const Job j = job_of(a);
    const int parts = size_parts(j.count);
    int code = means_run(a, e, j);
    if (!code) code = launch_op(a, e, size_kernel, (unsigned)parts, ELEMENT_THREADS, j);
    if (!code) code = launch_op(a, e, size_finish, 1, ELEMENT_THREADS, j, parts);
    return code ? code : launch_op(a, e, apply_kernel, blocks_for(a, j.count, ELEMENT_THREADS), ELEMENT_THREADS, j);
}
