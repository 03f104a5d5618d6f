/* adafactor.cu: Adafactor's update. It computes the means of squares per row and per column, the size of the update,
 * then the update. A small parameter is one block's, and many of them one launch (queue.h). Of a large one each of the three is a
 * kernel or more; long sums are made in parts that follow from the shape alone and are added in order. Its workspace:
 *
 *   Scalars | the weights' and the update's squares [2][size_parts] | parts of the means [mean_parts][items] */
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

/* Blocks that share the sums over all elements; the bytes of workspace before the parts of the means */
static int size_parts(int64_t count) { return (int)sum_parts(count, sizeof(double), PARTS_MAX * sizeof(double)); }
static size_t head_bytes(int64_t count) { return sizeof(Scalars) + 2 * (size_t)size_parts(count) * sizeof(double); }

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

static int mean_run(const KArgs *a, Err *e, const Job &j, const Elements &mean, const Middle &m) {
    const size_t head = head_bytes(j.t.count);
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
    const int64_t count = a->adafactor.w.count;
    const size_t head = count <= SMALL ? 0 : head_bytes(count);
    *state = NULL;
    *workspace = head;
    const Middle both[2] = {rows_of(f), columns_of(f)};
    for (int k = 0; k < 2 && head && a->adafactor.w.shape.rank > 1; k++) {
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

static int means_run(const KArgs *a, Err *e, const Job &j) {
    if (j.t.variance.data) return mean_run(a, e, j, j.t.variance, vector_of(j.t));
    int code = mean_run(a, e, j, j.t.row, rows_of(j.t.f));
    if (!code) code = mean_run(a, e, j, j.t.column, columns_of(j.t.f));
    if (!code && j.t.f.outer * j.t.f.inner == 1) code = launch_op(a, e, matrix_kernel, 1, ELEMENT_THREADS, j);
    return code;
}

static int large_run(const KArgs *a, const Factors &t, Err *e) {
    Scalars *const scalars = (Scalars *)a->workspace;
    const Job j = {update_head(a), t, scalars, (double *)(scalars + 1)};
    const int parts = size_parts(t.count);
    assert(a->workspace_bytes >= head_bytes(t.count));
    int code = means_run(a, e, j);
    if (!code) code = launch_op(a, e, size_kernel, (unsigned)parts, ELEMENT_THREADS, j);
    if (!code) code = launch_op(a, e, size_finish, 1, ELEMENT_THREADS, j, parts);
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
