/* attention.c: y = dropout(softmax(q k^T / sqrt(D))) v for each sample and head, and its gradient. Scores exist as one
 * tile of rows and columns at a time; going through the columns, each row keeps its largest score and the sum of
 * exponentials relative to it (Dao et al. 2022, "FlashAttention"). The gradient computes the scores again, and the
 * probabilities from them and lse, the logarithm of that sum.
 *
 * Rows of qkv are (q, k, v), each (heads, D). Samples and heads are shared among threads, one at a time. */
#include "cpu.h"
#include "vector_math.h"
#include "wide.h"

enum { TILE = 64 };

/* One sample's head: rows are `stride` apart. */
typedef struct Head {
    const AttentionAttr *attr;
    int64_t steps, width;    /* T, D */
    int64_t stride, stride3; /* of y, of qkv */
    float *q, *k, *v, *y, *dq, *dk, *dv, *dy, *lse;
    float scale;
    int64_t index;           /* of this head among all */
    uint64_t seed;
    uint32_t call;
} Head;

static Head head_of(const KArgs *a, const View *qkv, const View *y, int64_t sample, int64_t head) {
    const AttentionAttr *attr = &a->attr->attention;
    int time = attr->batch_first ? 1 : 0;
    int64_t channels = y->shape.dim[2], samples = y->shape.dim[1 - time];
    Head h = {.attr = attr, .steps = y->shape.dim[time], .width = channels / attr->heads, .seed = a->seed};
    h.stride = attr->batch_first ? channels : samples * channels;
    h.stride3 = 3 * h.stride;
    int64_t at = (attr->batch_first ? sample * h.steps : sample) * channels;
    h.q = (float *)qkv->data + 3 * at + head * h.width;
    h.k = h.q + channels;
    h.v = h.k + channels;
    h.y = (float *)y->data + at + head * h.width;
    h.scale = 1.0f / sqrtf((float)h.width);
    h.index = sample * attr->heads + head;
    return h;
}

static float *row_at(float *rows, int64_t stride, int64_t i) { return rows + i * stride; }

/* How many of the columns [c, c + n) row i sees. */
static int64_t seen(const Head *h, int64_t i, int64_t c, int64_t n) {
    return h->attr->causal ? min_i64(n, i - c + 1) : n;
}

static int64_t columns_of(const Head *h, int64_t row, int64_t rows) {
    return h->attr->causal ? row + rows : h->steps;
}

static void draw(const Head *h, float *factors, int64_t row, int64_t column, int64_t n) {
    uint64_t begin = dropout_row(h->index * h->steps + row, h->steps) + (uint64_t)column;
    dropout_factors(factors, h->attr->p, h->seed, h->attr->id, h->call, begin, (int64_t)align_up((size_t)n, 4));
}

/* ---- forward */

/* Row by row: the largest score so far, and the sum of exponentials relative to it */
typedef struct Softmax { float max[TILE], sum[TILE]; } Softmax;

/* Scores become exponentials; returns by how much what was summed before shrinks. */
HOT static float exponentials(float *s, int64_t n, float *max, float *sum) {
    float top = *max, total = 0.0f;
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < n; j++) top = s[j] > top ? s[j] : top;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < n; j++) {
        s[j] = expf(s[j] - top);
        total += s[j];
    }
    float shrink = expf(*max - top);
    *max = top;
    *sum = *sum * shrink + total;
    return shrink;
}

HOT static void scale_row(float *y, int64_t n, float by) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) y[j] *= by;
}

HOT static void multiply(float *s, const float *by, int64_t n) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) s[j] *= by[j];
}

/* Rows [i, i + rows) meet columns [c, c + n). */
static int forward_tile(const Head *h, int64_t i, int64_t rows, int64_t c, int64_t n, Softmax *m) {
    float s[TILE * TILE], factors[TILE];
    Matrix q = matrix(row_at(h->q, h->stride3, i), h->stride3), k = turned(row_at(h->k, h->stride3, c), h->stride3);
    Matrix v = matrix(row_at(h->v, h->stride3, c), h->stride3), y = matrix(row_at(h->y, h->stride, i), h->stride);
    int status = product(rows, n, h->width, h->scale, q, k, false, matrix(s, TILE));
    for (int64_t r = 0; r < rows && !status; r++) {
        float *row = s + r * TILE;
        int64_t some = seen(h, i + r, c, n);
        float shrink = exponentials(row, some, &m->max[r], &m->sum[r]);
        memset(row + some, 0, (size_t)(n - some) * sizeof *row);
        if (c) scale_row(row_at(y.at, y.stride, r), h->width, shrink);
        if (h->attr->p == 0) continue;
        draw(h, factors, i + r, c, n);
        multiply(row, factors, n);
    }
    return status ? status : product(rows, h->width, n, 1.0f, matrix(s, TILE), v, c > 0, y);
}

static int forward_head(const Head *h) {
    int status = 0;
    for (int64_t i = 0; i < h->steps && !status; i += TILE) {
        int64_t rows = min_i64(TILE, h->steps - i), columns = columns_of(h, i, rows);
        Softmax m;
        for (int64_t r = 0; r < rows; r++) m.max[r] = -INFINITY, m.sum[r] = 0.0f;
        for (int64_t c = 0; c < columns && !status; c += TILE)
            status = forward_tile(h, i, rows, c, min_i64(TILE, columns - c), &m);
        for (int64_t r = 0; r < rows; r++) {
            scale_row(row_at(h->y, h->stride, i + r), h->width, 1.0f / m.sum[r]);
            if (h->lse) h->lse[i + r] = m.max[r] + logf(m.sum[r]);
        }
    }
    return status;
}

/* ---- gradient */

/* Scores become probabilities and `dp`, gradients of what dropout left of these, becomes those of the scores; then the
 * probabilities what dropout leaves of them. inner: <dy, y> of the row */
HOT static void slopes_row(float *s, float *dp, const float *factors, int64_t n, float lse, float inner) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float p = expf(s[j] - lse);
        dp[j] = p * (dp[j] * factors[j] - inner);
        s[j] = p * factors[j];
    }
}

HOT static float dot(const float *a, const float *b, int64_t n) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) sum += a[j] * b[j];
    return sum;
}

/* dk and dv are first written where their tile of columns is first met: by the tile of rows `first`. */
static int back_tile(const Head *h, int64_t i, int64_t rows, int64_t c, int64_t n, const float *inner) {
    float s[TILE * TILE], dp[TILE * TILE], factors[TILE];
    int64_t d = h->width, w = h->stride3, first = h->attr->causal ? c : 0;
    Matrix q = matrix(row_at(h->q, w, i), w), dq = matrix(row_at(h->dq, w, i), w);
    Matrix dy = matrix(row_at(h->dy, h->stride, i), h->stride), k = matrix(row_at(h->k, w, c), w);
    Matrix dk = matrix(row_at(h->dk, w, c), w), dv = matrix(row_at(h->dv, w, c), w);
    int status = product(rows, n, d, h->scale, q, turned(k.at, w), false, matrix(s, TILE));
    if (!status) status = product(rows, n, d, 1.0f, dy, turned(row_at(h->v, w, c), w), false, matrix(dp, TILE));
    for (int64_t j = 0; j < TILE; j++) factors[j] = 1.0f;
    for (int64_t r = 0; r < rows && !status; r++) {
        int64_t some = seen(h, i + r, c, n);
        if (h->attr->p > 0) draw(h, factors, i + r, c, n);
        slopes_row(s + r * TILE, dp + r * TILE, factors, some, h->lse[i + r], inner[r]);
        memset(s + r * TILE + some, 0, (size_t)(n - some) * sizeof *s);
        memset(dp + r * TILE + some, 0, (size_t)(n - some) * sizeof *dp);
    }
    if (!status) status = product(n, d, rows, 1.0f, turned(s, TILE), dy, i > first, dv);
    if (!status) status = product(rows, d, n, h->scale, matrix(dp, TILE), k, c > 0, dq);
    return status ? status : product(n, d, rows, h->scale, turned(dp, TILE), q, i > first, dk);
}

static int back_head(const Head *h) {
    int status = 0;
    for (int64_t i = 0; i < h->steps && !status; i += TILE) {
        int64_t rows = min_i64(TILE, h->steps - i), columns = columns_of(h, i, rows);
        float inner[TILE];
        for (int64_t r = 0; r < rows; r++)
            inner[r] = dot(row_at(h->dy, h->stride, i + r), row_at(h->y, h->stride, i + r), h->width);
        for (int64_t c = 0; c < columns && !status; c += TILE)
            status = back_tile(h, i, rows, c, min_i64(TILE, columns - c), inner);
    }
    return status;
}

/* ---- both */

static int open(const KArgs *a, KArgs *wide, Err *e) {
    Room needed = {NULL, 0}, r = {a->workspace, 0};
    wide_enter(a, &needed, wide);
    int code = room_check(&needed, a, e);
    if (!code && a->workspace) wide_enter(a, &r, wide);
    return code;
}

static int prepare(const KArgs *a, void **state, size_t *workspace) {
    Room r = {NULL, 0};
    KArgs wide;
    wide_enter(a, &r, &wide);
    return room_prepared(&r, state, workspace);
}

int k_cpu_attention_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit;
    (void)e;
    return prepare(a, state, workspace);
}

int k_cpu_attention_dx_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit;
    (void)e;
    return prepare(a, state, workspace);
}

static int64_t heads_in(const KArgs *a, const View *y) {
    return y->shape.dim[a->attr->attention.batch_first ? 0 : 1] * a->attr->attention.heads;
}

int k_cpu_attention(const KArgs *a, Err *e) {
    KArgs w;
    int code = open(a, &w, e), status = 0;
    if (code) return code;
    int64_t heads = a->attr->attention.heads, all = heads_in(a, &w.out[0]);
#pragma omp parallel for schedule(static) reduction(| : status) if (all > 1)
    for (int64_t i = 0; i < all; i++) {
        Head h = head_of(&w, &w.in[0], &w.out[0], i / heads, i % heads);
        h.lse = w.out[1].count ? (float *)w.out[1].data + i * h.steps : NULL;
        h.call = w.in[1].count ? *(const uint32_t *)w.in[1].data : 0;
        status |= forward_head(&h);
    }
    wide_leave(a, &w);
    return product_check(status, e);
}

int k_cpu_attention_dx(const KArgs *a, Err *e) {
    KArgs w;
    int code = open(a, &w, e), status = 0;
    if (code) return code;
    int64_t heads = a->attr->attention.heads, all = heads_in(a, &w.in[2]);
#pragma omp parallel for schedule(static) reduction(| : status) if (all > 1)
    for (int64_t i = 0; i < all; i++) {
        Head h = head_of(&w, &w.in[1], &w.in[2], i / heads, i % heads);
        h.dq = (float *)w.out[0].data + (h.q - (float *)w.in[1].data);
        h.dk = h.dq + (h.k - h.q);
        h.dv = h.dq + (h.v - h.q);
        h.dy = (float *)w.in[0].data + (h.y - (float *)w.in[2].data);
        h.lse = (float *)w.in[3].data + i * h.steps;
        h.call = w.in[4].count ? *(const uint32_t *)w.in[4].data : 0;
        status |= back_head(&h);
    }
    wide_leave(a, &w);
    return product_check(status, e);
}
