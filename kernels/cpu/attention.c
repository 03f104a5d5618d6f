/* attention.c: y = dropout(softmax(scale q k^T)) v for each sample and head, and its gradient. Scores exist for one
 * tile of rows and columns at a time. The tiles of a row go from left to right; the row keeps its largest score and
 * the sum of exponentials relative to it (Dao et al. 2022, "FlashAttention"). The gradient computes the scores again,
 * and the probabilities from them and from lse, the logarithm of that sum.
 *
 * A thread takes one head of one sample at a time. Where several heads of q share one of k and v, the gradient takes
 * these heads one after the other on one thread, so that dk and dv are their sum in that order. Tiles of keys that no
 * query of a tile sees are left out: those after it if causal, those before its window or its sequence. */
#include "program/attention.h"
#include "cpu.h"
#include "vector_math.h"
#include "fp32_workspace.h"

enum { TILE = 64 };

/* One sample's head: matrices of (queries, D) or (keys, D) */
typedef struct Head {
    const AttentionAttr *attr;
    int64_t queries, keys, width; /* T, S, D */
    Matrix q, k, v, y, dq, dk, dv, dy;
    const int32_t *positions; /* (queries), of sequences in a row; NULL: it is one sequence */
    const float *bias;       /* (queries, keys); NULL: none */
    float *dbias;
    bool bias_later;         /* dbias already holds the sums over other samples or heads */
    float *lse;
    int64_t index;           /* of this head among all samples' */
    bool later;              /* dk and dv already hold the sums over other heads of q */
    uint64_t seed;
    uint32_t call;
} Head;

/* A sample's rows, from `feature` on; v is (N, T, F) or (T, N, F) in fp32. */
static Matrix steps_of(const View *v, bool batch_first, int64_t sample, int64_t feature) {
    int64_t n = v->shape.dim[2], row = batch_first ? sample * v->shape.dim[1] : sample;
    return matrix((float *)v->data + row * n + feature, batch_first ? n : v->shape.dim[1] * n);
}

/* How many heads of q share one of k and v */
static int64_t group_of(const AttentionAttr *a) { return a->heads / a->kv_heads; }

/* part[3]: the head's q, k and v. qkv[3]: the operands, or their gradients */
static void find_parts(const View *qkv, const Head *h, Matrix *part) {
    int64_t sample = h->index / h->attr->heads, head = h->index % h->attr->heads;
    for (int k = 0; k < 3; k++) {
        AttentionPart p = attention_part(qkv, k, h->attr, h->width);
        int64_t own = k ? head / group_of(h->attr) : head;
        part[k] = steps_of(&qkv[p.operand], h->attr->batch_first, sample, p.feature + own * h->width);
    }
}

static float *bias_of(const View *bias, const AttentionAttr *a, int64_t index) {
    return bias->count ? (float *)bias->data + attention_bias_at(bias, index / a->heads, index % a->heads) : NULL;
}

/* Head `index` of all samples'. */
static Head head_of(const KArgs *a, const View *qkv, const View *y, const View *bias, const View *positions,
                    int64_t index) {
    const AttentionAttr *attr = &a->attr->attention;
    const int time = attr->batch_first ? 1 : 0;
    Head h = {.attr = attr, .queries = y->shape.dim[time], .width = y->shape.dim[2] / attr->heads, .seed = a->seed};
    Matrix part[3];
    h.keys = qkv[attention_part(qkv, 1, attr, h.width).operand].shape.dim[time];
    h.index = index;
    h.bias = bias_of(bias, attr, index);
    h.positions = attention_positions(positions, index / attr->heads);
    find_parts(qkv, &h, part);
    h.q = part[0], h.k = part[1], h.v = part[2];
    h.y = steps_of(y, attr->batch_first, index / attr->heads, index % attr->heads * h.width);
    return h;
}

static float *row_at(Matrix m, int64_t i) { return m.at + i * m.stride; }
static Matrix from_row(Matrix m, int64_t i) { return matrix(row_at(m, i), m.stride); }
static Matrix across(Matrix m, int64_t i) { return transposed(row_at(m, i), m.stride); }

static int64_t first_key(const Head *h, int64_t i) { return attention_first(h->attr, h->positions, i); }

/* Of the keys [c, c + n), query i sees those from *from to the end that is returned. There may be none. */
static int64_t seen(const Head *h, int64_t i, int64_t c, int64_t n, int64_t *from) {
    const int64_t end = max_i64(0, min_i64(n, attention_end(h->attr, i, h->keys) - c));
    *from = min_i64(end, max_i64(0, first_key(h, i) - c));
    return end;
}

/* The keys that queries [row, row + rows) see end here, and begin in this tile. */
static int64_t columns_of(const Head *h, int64_t row, int64_t rows) {
    return attention_end(h->attr, row + rows - 1, h->keys);
}
static int64_t first_column(const Head *h, int64_t row) { return first_key(h, row) / TILE * TILE; }

/* Caps the scores s[n] of query i for keys from c on, and adds the bias. slope[n], or NULL: the caps' derivatives */
HOT static void settle(const Head *h, int64_t i, int64_t c, int64_t n, float *s, float *slope) {
    for (int64_t j = 0; j < n && slope; j++) slope[j] = 1.0f;
    for (int64_t j = 0; j < n && h->attr->cap > 0.0f; j++) {
        s[j] = attention_cap(h->attr, s[j]);
        if (slope) slope[j] = attention_cap_slope(h->attr, s[j]);
    }
    const float *bias = h->bias ? h->bias + i * h->keys + c : NULL;
    for (int64_t j = 0; j < n && bias; j++) s[j] += bias[j];
}

/* factors[n], rounded up to a multiple of 4: what dropout multiplies probabilities by, from (row, column) on */
static void draw(const Head *h, float *factors, int64_t row, int64_t column, int64_t n) {
    uint64_t begin = dropout_row(h->index * h->queries + row, h->keys) + (uint64_t)column;
    dropout_factors(factors, h->attr->p, h->seed, h->attr->id, h->call, begin, (int64_t)align_up((size_t)n, 4));
}

/* ---- forward */

/* By row of a tile: the largest score so far, and the sum of exponentials relative to it */
typedef struct Softmax { float max[TILE], sum[TILE]; } Softmax;

/* Turns scores s[n] into exponentials relative to the new *max; returns the factor that earlier sums must be multiplied
 * by. */
HOT static float exponentials(float *s, int64_t n, float *max, float *sum) {
    float top = *max, total = 0.0f;
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < n; j++) top = s[j] > top ? s[j] : top;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < n; j++) {
        s[j] = exp_flushed(s[j] - top);
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

/* Adds the products of queries [i, i + rows) with keys and values [c, c + n) to y, which is not yet divided by its
 * sum. */
static int forward_tile(const Head *h, int64_t i, int64_t rows, int64_t c, int64_t n, Softmax *m) {
    float s[TILE * TILE], factors[TILE];
    const bool later = c > first_column(h, i);
    Matrix y = from_row(h->y, i);
    int status = product(rows, n, h->width, h->attr->scale, from_row(h->q, i), across(h->k, c), false, matrix(s, TILE));
    for (int64_t r = 0; r < rows && !status; r++) {
        float *row = s + r * TILE;
        int64_t from, end = seen(h, i + r, c, n, &from);
        settle(h, i + r, c, end, row, NULL);
        float shrink = end > from ? exponentials(row + from, end - from, &m->max[r], &m->sum[r]) : 1.0f;
        memset(row, 0, (size_t)from * sizeof *row);
        memset(row + end, 0, (size_t)(n - end) * sizeof *row);
        if (later) scale_row(row_at(y, r), h->width, shrink);
        if (h->attr->p == 0) continue;
        draw(h, factors, i + r, c, n);
        multiply(row, factors, n);
    }
    return status ? status : product(rows, h->width, n, 1.0f, matrix(s, TILE), from_row(h->v, c), later, y);
}

static int forward_head(const Head *h) {
    int status = 0;
    for (int64_t i = 0; i < h->queries && !status; i += TILE) {
        int64_t rows = min_i64(TILE, h->queries - i), columns = columns_of(h, i, rows);
        Softmax m;
        for (int64_t r = 0; r < rows; r++) m.max[r] = -INFINITY, m.sum[r] = 0.0f;
        for (int64_t c = first_column(h, i); c < columns && !status; c += TILE)
            status = forward_tile(h, i, rows, c, min_i64(TILE, columns - c), &m);
        for (int64_t r = 0; r < rows; r++) {
            scale_row(row_at(h->y, i + r), h->width, 1.0f / m.sum[r]);
            if (h->lse) h->lse[i + r] = m.max[r] + logf(m.sum[r]);
        }
    }
    return status;
}

/* ---- gradient */

/* Turns scores into probabilities, and `dp`, the gradients of the probabilities after dropout, into those of the
 * scores; then applies dropout to the probabilities. inner: <dy, y> of the row */
HOT static void slopes_row(float *s, float *dp, const float *factors, int64_t n, float lse, float inner) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float p = exp_flushed(s[j] - lse);
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

/* Adds ds[n], the gradients of query i's scores for keys from c on, to the bias's. */
static void add_to_bias(const Head *h, int64_t i, int64_t c, int64_t n, const float *ds) {
    float *to = h->dbias ? h->dbias + i * h->keys + c : NULL;
    for (int64_t j = 0; j < n && to; j++) to[j] = (h->bias_later ? to[j] : 0.0f) + ds[j];
}

/* The bias of keys that query i does not see has no gradient. */
static void clear_bias(const Head *h) {
    if (!h->dbias || h->bias_later) return;
    for (int64_t i = 0; i < h->queries; i++) {
        const int64_t end = attention_end(h->attr, i, h->keys);
        float *row = h->dbias + i * h->keys;
        memset(row, 0, (size_t)first_key(h, i) * sizeof *row);
        memset(row + end, 0, (size_t)(h->keys - end) * sizeof *row);
    }
}

/* The parts of queries [i, i + rows) and keys [c, c + n) in dq, dk and dv. The first query tile that sees a key tile
 * writes dk and dv; later ones and other heads add. */
static int back_tile(const Head *h, int64_t i, int64_t rows, int64_t c, int64_t n, const float *inner) {
    float s[TILE * TILE], dp[TILE * TILE], factors[TILE], slope[TILE];
    const bool settled = h->attr->cap > 0.0f || h->bias, later = c > first_column(h, i);
    const float scale = h->attr->scale;
    const int64_t d = h->width;
    const bool add = h->later || i > (h->attr->causal ? c : 0);
    Matrix q = from_row(h->q, i), dy = from_row(h->dy, i);
    int status = product(rows, n, d, scale, q, across(h->k, c), false, matrix(s, TILE));
    if (!status) status = product(rows, n, d, 1.0f, dy, across(h->v, c), false, matrix(dp, TILE));
    for (int64_t j = 0; j < TILE; j++) factors[j] = 1.0f;
    for (int64_t r = 0; r < rows && !status; r++) {
        int64_t from, end = seen(h, i + r, c, n, &from);
        float *row = s + r * TILE, *drow = dp + r * TILE;
        if (settled) settle(h, i + r, c, end, row, slope);
        if (h->attr->p > 0) draw(h, factors, i + r, c, n);
        slopes_row(row + from, drow + from, factors + from, end - from, h->lse[i + r], inner[r]);
        add_to_bias(h, i + r, c + from, end - from, drow + from);
        if (settled) multiply(drow + from, slope + from, end - from);
        for (int k = 0; k < 2; k++) {
            float *one = k ? drow : row;
            memset(one, 0, (size_t)from * sizeof *one);
            memset(one + end, 0, (size_t)(n - end) * sizeof *one);
        }
    }
    if (!status) status = product(n, d, rows, 1.0f, transposed(s, TILE), dy, add, from_row(h->dv, c));
    if (!status)
        status = product(rows, d, n, scale, matrix(dp, TILE), from_row(h->k, c), later, from_row(h->dq, i));
    return status ? status : product(n, d, rows, scale, transposed(dp, TILE), q, add, from_row(h->dk, c));
}

/* No query of a causal head sees the keys after the last query: their gradients are 0. */
static void clear_unseen(const Head *h) {
    for (int64_t c = columns_of(h, 0, h->queries); c < h->keys; c++) {
        memset(row_at(h->dk, c), 0, (size_t)h->width * sizeof(float));
        memset(row_at(h->dv, c), 0, (size_t)h->width * sizeof(float));
    }
}

static int back_head(const Head *h) {
    int status = 0;
    if (!h->later) clear_unseen(h);
    clear_bias(h);
    for (int64_t i = 0; i < h->queries && !status; i += TILE) {
        int64_t rows = min_i64(TILE, h->queries - i), columns = columns_of(h, i, rows);
        float inner[TILE];
        for (int64_t r = 0; r < rows; r++)
            inner[r] = dot(row_at(h->dy, i + r), row_at(h->y, i + r), h->width);
        for (int64_t c = first_column(h, i); c < columns && !status; c += TILE)
            status = back_tile(h, i, rows, c, min_i64(TILE, columns - c), inner);
    }
    return status;
}

/* ---- both */

/* Checks the operands, and makes *wide, the op over fp32 copies. */
static int open(const KArgs *a, const View *y, KArgs *wide, Err *e) {
    const AttentionAttr *attr = &a->attr->attention;
    assert(attr->heads > 0 && attr->kv_heads > 0 && attr->heads % attr->kv_heads == 0);
    assert(y->shape.rank == 3 && y->shape.dim[2] % attr->heads == 0 && 0 <= attr->p && attr->p <= 1);
    Room needed = {NULL, 0}, r = {a->workspace, 0};
    (void)attr, (void)y; /* with NDEBUG nothing reads them */
    fp32_enter(a, &needed, wide);
    int code = room_check(&needed, a, e);
    if (!code && a->workspace) fp32_enter(a, &r, wide);
    return code;
}

static int prepare(const KArgs *a, void **state, size_t *workspace) {
    Room r = {NULL, 0};
    KArgs wide;
    fp32_enter(a, &r, &wide);
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

static int64_t samples_in(const KArgs *a, const View *y) {
    return y->shape.dim[a->attr->attention.batch_first ? 0 : 1];
}

int k_cpu_attention(const KArgs *a, Err *e) {
    KArgs w;
    assert(operand_is_fp32(&a->attention.lse) && (a->attr->attention.p == 0 || a->attention.calls.data));
    int code = open(a, &a->attention.y, &w, e), status = 0;
    if (code) return code;
    int64_t all = samples_in(a, &w.attention.y) * a->attr->attention.heads;
#pragma omp parallel for schedule(static) reduction(| : status) if (all > 1)
    for (int64_t i = 0; i < all; i++) {
        Head h = head_of(&w, &w.attention.q, &w.attention.y, &w.attention.bias, &w.attention.positions, i);
        h.lse = w.attention.lse.count ? (float *)w.attention.lse.data + i * h.queries : NULL;
        h.call = w.attention.calls.count ? *(const uint32_t *)w.attention.calls.data : 0;
        status |= forward_head(&h);
    }
    fp32_leave(a, &w);
    return product_check(status, e);
}

/* The gradient's part of head `index` of q: its dq, and what it adds to dk and dv, and to the bias's */
static int back_one(const KArgs *w, int64_t index, bool later, bool bias_later) {
    Head h = head_of(w, &w->attention_dx.q, &w->attention_dx.y, &w->attention_dx.bias, &w->attention_dx.positions,
                     index);
    Matrix part[3];
    find_parts(w->out, &h, part);
    h.dq = part[0], h.dk = part[1], h.dv = part[2];
    h.dy = matrix((float *)w->attention_dx.dy.data + (h.y.at - (float *)w->attention_dx.y.data), h.y.stride);
    h.lse = (float *)w->attention_dx.lse.data + index * h.queries;
    h.call = w->attention_dx.calls.count ? *(const uint32_t *)w->attention_dx.calls.data : 0;
    h.later = later;
    h.dbias = bias_of(&w->attention_dx.dbias, h.attr, index);
    h.bias_later = bias_later;
    return back_head(&h);
}

int k_cpu_attention_dx(const KArgs *a, Err *e) {
    KArgs w;
    assert(operand_is_fp32(&a->attention_dx.lse) && (a->attr->attention.p == 0 || a->attention_dx.calls.data));
    assert(a->attention_dx.dy.count == a->attention_dx.y.count);
    int code = open(a, &a->attention_dx.y, &w, e), status = 0;
    if (code) return code;
    const AttentionAttr *attr = &a->attr->attention;
    const View *bias = &w.attention_dx.dbias;
    const int64_t samples = samples_in(a, &w.attention_dx.y), heads = attr->kv_heads, group = group_of(attr);
    /* one thread has all samples, and all heads, whose gradients of the bias are one sum */
    const int64_t own_samples = bias->count && bias->shape.dim[0] == 1 ? samples : 1;
    const int64_t own_heads = bias->count && bias->shape.dim[1] == 1 ? heads : 1, rest = heads / own_heads;
    const int64_t all = samples / own_samples * rest, span = own_heads * group, own = own_samples * span;
#pragma omp parallel for schedule(static) reduction(| : status) if (all > 1)
    for (int64_t i = 0; i < all; i++)
        for (int64_t k = 0; k < own; k++) {
            const int64_t in_group = k % group, head = i % rest * own_heads + k / group % own_heads;
            const int64_t sample = i / rest * own_samples + k / span;
            const bool first = k / span == 0 && (bias->shape.dim[1] > 1 || k == 0); /* to reach its bias */
            status |= back_one(&w, (sample * heads + head) * group + in_group, in_group > 0, !first);
        }
    fp32_leave(a, &w);
    return product_check(status, e);
}
