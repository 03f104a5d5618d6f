/* attention.cu: y = dropout(softmax(q k^T / sqrt(D))) v for each sample and head, and its gradient. A warp has one row:
 * lanes have its columns, 32 at a time, when scores are made, and its features when it is summed up, so that the matrix
 * of scores exists nowhere and nothing is added up by two warps. The gradient has one kernel in which rows are queries
 * and one in which they are keys; both compute the scores again. */
#include "elements.h"

enum { ATTENTION_WARPS = 4, FEATURES = 8 /* of a lane; wider heads go through the columns several times */ };

typedef struct Attention {
    AttentionAttr attr;
    Elements qkv, y, dy, dqkv;
    float *lse, *inner;     /* (N, heads, T); inner: <dy, y> of each row */
    const uint32_t *calls;  /* NULL: no dropout */
    int64_t samples, steps, channels, width; /* N, T, C, D */
    uint64_t seed;
    float scale;
} Attention;

static Attention attention_of(const KArgs *a, const View *qkv, const View *y, const View *lse, const View *calls) {
    Attention t = {};
    t.attr = a->attr->attention;
    int time = t.attr.batch_first ? 1 : 0;
    t.qkv = elements_of(qkv);
    t.y = elements_of(y);
    t.lse = (float *)lse->data;
    t.calls = (const uint32_t *)calls->data;
    t.samples = y->shape.dim[1 - time];
    t.steps = y->shape.dim[time];
    t.channels = y->shape.dim[2];
    t.width = t.channels / t.attr.heads;
    t.seed = a->seed;
    t.scale = 1.0f / sqrtf((float)t.width);
    return t;
}

/* One warp's row: of which sample and head, and which step. */
typedef struct Row { int64_t head, sample, of_sample, step; bool there; } Row;

static __device__ inline Row row_here(const Attention &t) {
    const int64_t i = (int64_t)blockIdx.x * ATTENTION_WARPS + threadIdx.x / WARP;
    Row r;
    r.head = i / t.steps;
    r.sample = r.head / t.attr.heads;
    r.of_sample = r.head % t.attr.heads;
    r.step = i % t.steps;
    r.there = i < t.samples * t.attr.heads * t.steps;
    return r;
}

/* Elements of step s of this row's head: in y, and in qkv (part 0: q, 1: k, 2: v). */
static __device__ inline int64_t place(const Attention &t, const Row &r, int64_t s) {
    const int64_t row = t.attr.batch_first ? r.sample * t.steps + s : s * t.samples + r.sample;
    return row * t.channels + r.of_sample * t.width;
}
static __device__ inline int64_t place3(const Attention &t, const Row &r, int64_t s, int part) {
    const int64_t row = t.attr.batch_first ? r.sample * t.steps + s : s * t.samples + r.sample;
    return (3 * row + part) * t.channels + r.of_sample * t.width;
}

static __device__ inline float dot(Elements a, int64_t i, Elements b, int64_t j, int64_t n) {
    float sum = 0.0f;
    for (int64_t d = 0; d < n; d++) sum = fmaf(element_at(a, i + d), element_at(b, j + d), sum);
    return sum;
}

/* What dropout multiplies the probability of query s for key u by; rows begin at multiples of four draws. */
static __device__ inline float kept(const Attention &t, const Row &r, int64_t s, int64_t u) {
    if (!t.calls) return 1.0f;
    const uint64_t row = dropout_row(r.head * t.steps + s, t.steps);
    return dropout_factor(t.attr.p, t.seed, t.attr.id, *t.calls, row + (uint64_t)u);
}

static __device__ inline float score(const Attention &t, const Row &r, int64_t s, int64_t u) {
    return t.scale * dot(t.qkv, place3(t, r, s, 0), t.qkv, place3(t, r, u, 1), t.width);
}

/* acc[i] += factor of the lane that has it times feature first + lane + 32 i of x's rows; row j is at start + j stride
 * */
static __device__ inline void gather(float *acc, float factor, int n, Elements x, int64_t start, int64_t stride,
                                     int64_t first, int64_t width) {
    const int lane = (int)threadIdx.x % WARP;
    for (int j = 0; j < n; j++) {
        const float f = __shfl_sync(0xffffffffu, factor, j);
        for (int i = 0; i < FEATURES; i++) {
            const int64_t d = first + lane + i * WARP;
            if (d < width) acc[i] = fmaf(f, element_at(x, start + j * stride + d), acc[i]);
        }
    }
}

static __device__ inline void scatter(Elements x, int64_t start, int64_t first, int64_t width, const float *acc) {
    for (int i = 0; i < FEATURES; i++) {
        const int64_t d = first + threadIdx.x % WARP + i * WARP;
        if (d < width) dtype_store(x.type, x.data, (size_t)(start + d), acc[i]);
    }
}

static __device__ inline int here(int64_t begin, int64_t end) {
    return end - begin < WARP ? (int)(end - begin) : (int)WARP;
}

/* ---- forward */

static __global__ void __launch_bounds__(ATTENTION_WARPS *WARP) forward_kernel(const __grid_constant__ Attention t) {
    const Row r = row_here(t);
    const int lane = (int)threadIdx.x % WARP;
    if (!r.there) return;
    const int64_t end = t.attr.causal ? r.step + 1 : t.steps, stride = place3(t, r, 1, 2) - place3(t, r, 0, 2);
    for (int64_t first = 0; first < t.width; first += FEATURES * WARP) {
        float top = -INFINITY, sum = 0.0f, acc[FEATURES] = {0};
        for (int64_t u = 0; u < end; u += WARP) {
            const bool seen = u + lane < end;
            const float s = seen ? score(t, r, r.step, u + lane) : -INFINITY;
            const float before = top;
            top = fmaxf(top, warp_max(s));
            float p = seen ? expf(s - top) : 0.0f;
            const float shrink = expf(before - top);
            sum = fmaf(sum, shrink, warp_sum(p));
            if (seen) p *= kept(t, r, r.step, u + lane);
            for (int i = 0; i < FEATURES; i++) acc[i] *= shrink;
            gather(acc, p, here(u, end), t.qkv, place3(t, r, u, 2), stride, first, t.width);
        }
        for (int i = 0; i < FEATURES; i++) acc[i] /= sum;
        scatter(t.y, place(t, r, r.step), first, t.width, acc);
        if (t.lse && lane == 0) t.lse[r.head * t.steps + r.step] = top + logf(sum);
    }
}

/* ---- gradient */

/* Of query s and key u: the probability that dropout left, and the gradient of the score. */
typedef struct Slope { float p, ds; } Slope;

static __device__ inline Slope slope(const Attention &t, const Row &r, int64_t s, int64_t u, float inner) {
    const float p = expf(score(t, r, s, u) - t.lse[r.head * t.steps + s]), keep = kept(t, r, s, u);
    const float dp = keep * dot(t.dy, place(t, r, s), t.qkv, place3(t, r, u, 2), t.width);
    Slope d = {p * keep, t.scale * p * (dp - inner)};
    return d;
}

static __global__ void __launch_bounds__(ATTENTION_WARPS *WARP) query_kernel(const __grid_constant__ Attention t) {
    const Row r = row_here(t);
    const int lane = (int)threadIdx.x % WARP;
    if (!r.there) return;
    const int64_t end = t.attr.causal ? r.step + 1 : t.steps, mine = place(t, r, r.step);
    const int64_t stride = place3(t, r, 1, 1) - place3(t, r, 0, 1);
    float inner = 0.0f;
    for (int64_t d = lane; d < t.width; d += WARP)
        inner = fmaf(element_at(t.dy, mine + d), element_at(t.y, mine + d), inner);
    inner = warp_sum(inner);
    if (lane == 0) t.inner[r.head * t.steps + r.step] = inner;
    for (int64_t first = 0; first < t.width; first += FEATURES * WARP) {
        float acc[FEATURES] = {0};
        for (int64_t u = 0; u < end; u += WARP) {
            const float ds = u + lane < end ? slope(t, r, r.step, u + lane, inner).ds : 0.0f;
            gather(acc, ds, here(u, end), t.qkv, place3(t, r, u, 1), stride, first, t.width);
        }
        scatter(t.dqkv, place3(t, r, r.step, 0), first, t.width, acc);
    }
}

static __global__ void __launch_bounds__(ATTENTION_WARPS *WARP) key_kernel(const __grid_constant__ Attention t) {
    const Row r = row_here(t);
    const int lane = (int)threadIdx.x % WARP;
    if (!r.there) return;
    const int64_t stride = place(t, r, 1) - place(t, r, 0);
    for (int64_t first = 0; first < t.width; first += FEATURES * WARP) {
        float dk[FEATURES] = {0}, dv[FEATURES] = {0};
        for (int64_t s = t.attr.causal ? r.step : 0; s < t.steps; s += WARP) {
            const int n = here(s, t.steps);
            Slope d = {0.0f, 0.0f};
            if (lane < n) d = slope(t, r, s + lane, r.step, t.inner[r.head * t.steps + s + lane]);
            gather(dk, d.ds, n, t.qkv, place3(t, r, s, 0), 3 * stride, first, t.width);
            gather(dv, d.p, n, t.dy, place(t, r, s), stride, first, t.width);
        }
        scatter(t.dqkv, place3(t, r, r.step, 1), first, t.width, dk);
        scatter(t.dqkv, place3(t, r, r.step, 2), first, t.width, dv);
    }
}

/* ---- ops */

static int64_t rows_of(const KArgs *a, const View *y) {
    return y->count / y->shape.dim[2] * a->attr->attention.heads;
}

static int run(const KArgs *a, Err *e, void (*kernel)(Attention), const Attention &t, int64_t rows) {
    const unsigned blocks = (unsigned)((rows + ATTENTION_WARPS - 1) / ATTENTION_WARPS);
    return launch_op(a, e, kernel, blocks, ATTENTION_WARPS * WARP, t);
}

int k_cuda_attention_prepare(const KArgs *, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = 0;
    return OK;
}

int k_cuda_attention(const KArgs *a, Err *e) {
    return run(a, e, forward_kernel, attention_of(a, &a->in[0], &a->out[0], &a->out[1], &a->in[1]),
               rows_of(a, &a->out[0]));
}

int k_cuda_attention_dx_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = (size_t)rows_of(a, &a->in[2]) * sizeof(float);
    return OK;
}

int k_cuda_attention_dx(const KArgs *a, Err *e) {
    const int64_t rows = rows_of(a, &a->in[2]);
    if (a->workspace_bytes < (size_t)rows * sizeof(float))
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", (size_t)rows * sizeof(float),
                       a->workspace_bytes);
    Attention t = attention_of(a, &a->in[1], &a->in[2], &a->in[3], &a->in[4]);
    t.dy = elements_of(&a->in[0]);
    t.dqkv = elements_of(&a->out[0]);
    t.inner = (float *)a->workspace;
    int code = run(a, e, query_kernel, t, rows);
    return code ? code : run(a, e, key_kernel, t, rows);
}
