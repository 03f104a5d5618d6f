/* attention.cu: y = dropout(softmax(q k^T / sqrt(D))) v for each sample and head, and its gradient. A warp has one row:
 * lanes have its columns, 32 at a time, when scores are made, and its features when it is summed up, so that the matrix
 * of scores exists nowhere and nothing is added up by two warps. The gradient has one kernel in which rows are queries
 * and one in which they are keys; both compute the scores again. */
#include "attention.h"
#include "elements.h"

enum { ATTENTION_WARPS = 4, FEATURES = 8 /* of a lane; wider heads go through the columns several times */ };

/* Steps of samples: sample n's step s begins at first + n of_sample + s of_step */
typedef struct Steps {
    Elements at;
    int64_t first, of_sample, of_step;
} Steps;

typedef struct Attention {
    AttentionAttr attr;
    Steps q, k, v, y, dq, dk, dv, dy;
    float *lse, *inner;     /* (N, heads, T); inner: <dy, y> of each row */
    const uint32_t *calls;  /* NULL: no dropout */
    int64_t samples, queries, keys, width; /* N, T, S, D */
    uint64_t seed;
    float scale;
} Attention;

/* v is (N, T, F) or (T, N, F), of which a part begins at `feature`. */
static Steps steps_of(const View *v, bool batch_first, int64_t feature) {
    const int64_t near = v->shape.dim[2], far = v->shape.dim[1] * near;
    Steps s = {elements_of(v), feature, batch_first ? far : near, batch_first ? near : far};
    return s;
}

static Steps part_of(const View *qkv, int part, int64_t channels, bool batch_first) {
    const AttentionPart p = attention_part(qkv, part, channels);
    return steps_of(&qkv[p.operand], batch_first, p.feature);
}

static Attention attention_of(const KArgs *a, const View *qkv, const View *y, const View *lse, const View *calls) {
    Attention t = {};
    t.attr = a->attr->attention;
    const int time = t.attr.batch_first ? 1 : 0;
    const int64_t channels = y->shape.dim[2];
    t.q = part_of(qkv, 0, channels, time);
    t.k = part_of(qkv, 1, channels, time);
    t.v = part_of(qkv, 2, channels, time);
    t.y = steps_of(y, time, 0);
    t.lse = (float *)lse->data;
    t.calls = (const uint32_t *)calls->data;
    t.samples = y->shape.dim[1 - time];
    t.queries = y->shape.dim[time];
    t.keys = qkv[attention_part(qkv, 1, channels).operand].shape.dim[time];
    t.width = channels / t.attr.heads;
    t.seed = a->seed;
    t.scale = 1.0f / sqrtf((float)t.width);
    return t;
}

/* One warp's row, of `steps` for each head: of which sample and head, and which step. */
typedef struct Row { int64_t head, sample, of_sample, step; bool there; } Row;

static __device__ inline Row row_here(const Attention &t, int64_t steps) {
    const int64_t i = (int64_t)blockIdx.x * ATTENTION_WARPS + threadIdx.x / WARP;
    Row r;
    r.head = i / steps;
    r.sample = r.head / t.attr.heads;
    r.of_sample = r.head % t.attr.heads;
    r.step = i % steps;
    r.there = i < t.samples * t.attr.heads * steps;
    return r;
}

/* The first element of step s of this row's head. */
static __device__ inline int64_t place(const Attention &t, const Steps &of, const Row &r, int64_t s) {
    return of.first + r.sample * of.of_sample + s * of.of_step + r.of_sample * t.width;
}

static __device__ inline float dot(Elements a, int64_t i, Elements b, int64_t j, int64_t n) {
    float sum = 0.0f;
    for (int64_t d = 0; d < n; d++) sum = fmaf(element_at(a, i + d), element_at(b, j + d), sum);
    return sum;
}

/* What dropout multiplies the probability of query s for key u by; rows begin at multiples of four draws. */
static __device__ inline float kept(const Attention &t, const Row &r, int64_t s, int64_t u) {
    if (!t.calls) return 1.0f;
    const uint64_t row = dropout_row(r.head * t.queries + s, t.keys);
    return dropout_factor(t.attr.p, t.seed, t.attr.id, *t.calls, row + (uint64_t)u);
}

static __device__ inline float score(const Attention &t, const Row &r, int64_t s, int64_t u) {
    return t.scale * dot(t.q.at, place(t, t.q, r, s), t.k.at, place(t, t.k, r, u), t.width);
}

/* acc[i] += factor of the lane that has it times feature first + lane + 32 i of n steps of x, from step s on */
static __device__ inline void gather(float *acc, float factor, int n, const Attention &t, const Steps &x, const Row &r,
                                     int64_t s, int64_t first) {
    const int64_t start = place(t, x, r, s);
    const int lane = (int)threadIdx.x % WARP;
    for (int j = 0; j < n; j++) {
        const float f = __shfl_sync(0xffffffffu, factor, j);
        for (int i = 0; i < FEATURES; i++) {
            const int64_t d = first + lane + i * WARP;
            if (d < t.width) acc[i] = fmaf(f, element_at(x.at, start + j * x.of_step + d), acc[i]);
        }
    }
}

/* Features first, ... of this row's step */
static __device__ inline void scatter(const Attention &t, const Steps &x, const Row &r, int64_t first,
                                      const float *acc) {
    const int64_t start = place(t, x, r, r.step);
    for (int i = 0; i < FEATURES; i++) {
        const int64_t d = first + threadIdx.x % WARP + i * WARP;
        if (d < t.width) dtype_store(x.at.type, x.at.data, (size_t)(start + d), acc[i]);
    }
}

/* Keys that query s sees. */
static __device__ inline int64_t seen(const Attention &t, int64_t s) {
    return t.attr.causal && s < t.keys ? s + 1 : t.keys;
}

static __device__ inline int here(int64_t begin, int64_t end) {
    return end - begin < WARP ? (int)(end - begin) : (int)WARP;
}

/* ---- forward */

static __global__ void __launch_bounds__(ATTENTION_WARPS *WARP) forward_kernel(const __grid_constant__ Attention t) {
    const Row r = row_here(t, t.queries);
    const int lane = (int)threadIdx.x % WARP;
    if (!r.there) return;
    const int64_t end = seen(t, r.step);
    for (int64_t first = 0; first < t.width; first += FEATURES * WARP) {
        float top = -INFINITY, sum = 0.0f, acc[FEATURES] = {0};
        for (int64_t u = 0; u < end; u += WARP) {
            const bool sees = u + lane < end;
            const float s = sees ? score(t, r, r.step, u + lane) : -INFINITY;
            const float before = top;
            top = fmaxf(top, warp_max(s));
            float p = sees ? expf(s - top) : 0.0f;
            const float shrink = expf(before - top);
            sum = fmaf(sum, shrink, warp_sum(p));
            if (sees) p *= kept(t, r, r.step, u + lane);
            for (int i = 0; i < FEATURES; i++) acc[i] *= shrink;
            gather(acc, p, here(u, end), t, t.v, r, u, first);
        }
        for (int i = 0; i < FEATURES; i++) acc[i] /= sum;
        scatter(t, t.y, r, first, acc);
        if (t.lse && lane == 0) t.lse[r.head * t.queries + r.step] = top + logf(sum);
    }
}

/* ---- gradient */

/* Of query s and key u: the probability that dropout left, and the gradient of the score. */
typedef struct Slope { float p, ds; } Slope;

static __device__ inline Slope slope(const Attention &t, const Row &r, int64_t s, int64_t u, float inner) {
    const float p = expf(score(t, r, s, u) - t.lse[r.head * t.queries + s]), keep = kept(t, r, s, u);
    const float dp = keep * dot(t.dy.at, place(t, t.dy, r, s), t.v.at, place(t, t.v, r, u), t.width);
    Slope d = {p * keep, t.scale * p * (dp - inner)};
    return d;
}

static __global__ void __launch_bounds__(ATTENTION_WARPS *WARP) query_kernel(const __grid_constant__ Attention t) {
    const Row r = row_here(t, t.queries);
    const int lane = (int)threadIdx.x % WARP;
    if (!r.there) return;
    const int64_t end = seen(t, r.step), dy = place(t, t.dy, r, r.step), y = place(t, t.y, r, r.step);
    float inner = 0.0f;
    for (int64_t d = lane; d < t.width; d += WARP)
        inner = fmaf(element_at(t.dy.at, dy + d), element_at(t.y.at, y + d), inner);
    inner = warp_sum(inner);
    if (lane == 0) t.inner[r.head * t.queries + r.step] = inner;
    for (int64_t first = 0; first < t.width; first += FEATURES * WARP) {
        float acc[FEATURES] = {0};
        for (int64_t u = 0; u < end; u += WARP) {
            const float ds = u + lane < end ? slope(t, r, r.step, u + lane, inner).ds : 0.0f;
            gather(acc, ds, here(u, end), t, t.k, r, u, first);
        }
        scatter(t, t.dq, r, first, acc);
    }
}

static __global__ void __launch_bounds__(ATTENTION_WARPS *WARP) key_kernel(const __grid_constant__ Attention t) {
    const Row r = row_here(t, t.keys);
    const int lane = (int)threadIdx.x % WARP;
    if (!r.there) return;
    for (int64_t first = 0; first < t.width; first += FEATURES * WARP) {
        float dk[FEATURES] = {0}, dv[FEATURES] = {0};
        for (int64_t s = t.attr.causal ? r.step : 0; s < t.queries; s += WARP) {
            const int n = here(s, t.queries);
            Slope d = {0.0f, 0.0f};
            if (lane < n) d = slope(t, r, s + lane, r.step, t.inner[r.head * t.queries + s + lane]);
            gather(dk, d.ds, n, t, t.q, r, s, first);
            gather(dv, d.p, n, t, t.dy, r, s, first);
        }
        scatter(t, t.dk, r, first, dk);
        scatter(t, t.dv, r, first, dv);
    }
}

/* ---- ops */

static int run(const KArgs *a, Err *e, void (*kernel)(Attention), const Attention &t, int64_t steps) {
    const int64_t rows = t.samples * t.attr.heads * steps;
    const unsigned blocks = (unsigned)((rows + ATTENTION_WARPS - 1) / ATTENTION_WARPS);
    return launch_op(a, e, kernel, blocks, ATTENTION_WARPS * WARP, t);
}

int k_cuda_attention_prepare(const KArgs *, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = 0;
    return OK;
}

int k_cuda_attention(const KArgs *a, Err *e) {
    const Attention t = attention_of(a, &a->in[0], &a->out[0], &a->out[1], &a->in[3]);
    return run(a, e, forward_kernel, t, t.queries);
}

/* lse has a number for each row, as `inner` has. */
int k_cuda_attention_dx_prepare(const KArgs *a, size_t, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = (size_t)a->in[5].count * sizeof(float);
    return OK;
}

int k_cuda_attention_dx(const KArgs *a, Err *e) {
    const size_t bytes = (size_t)a->in[5].count * sizeof(float);
    if (a->workspace_bytes < bytes)
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", bytes, a->workspace_bytes);
    Attention t = attention_of(a, &a->in[1], &a->in[4], &a->in[5], &a->in[6]);
    const bool batch_first = t.attr.batch_first;
    const int64_t channels = a->in[4].shape.dim[2];
    t.dy = steps_of(&a->in[0], batch_first, 0);
    t.dq = part_of(a->out, 0, channels, batch_first);
    t.dk = part_of(a->out, 1, channels, batch_first);
    t.dv = part_of(a->out, 2, channels, batch_first);
    t.inner = (float *)a->workspace;
    int code = run(a, e, query_kernel, t, t.queries);
    return code ? code : run(a, e, key_kernel, t, t.keys);
}
