/* attention.c: y = dropout(softmax(scale q k^T)) v for each sample and head, and its gradient. Scores exist for one
 * tile of rows and a block of columns at a time. The blocks of a row go from left to right; the row keeps its largest
 * score and the sum of exponentials relative to it (Dao et al. 2022, "FlashAttention"). The gradient computes the scores
 * again, and the probabilities from them and from lse, the logarithm of that sum.
 *
 *                       a span: packed, stays in the second cache
 *   keys          |  block  |  block  |  block  |  block  |
 *   queries  tile |  s: scores, then probabilities        |   tiles: gemm_tiles.h; UNIT rows are cut into tiles, so
 *            tile |                                       |   that a tile never has rows of two units
 *
 * Keys and values are packed, as fp32, a span at a time, for all queries that see the span. Forward, a tile of queries
 * is done with a block at once: its scores stay in the first cache. Backward, the probabilities and their gradients of
 * QUERIES rows are kept, since these are the terms of the sums that are added to dk and dv.
 *
 * A thread takes one head of k and v of one sample at a time, with the heads of q that share it; forward, where there
 * are fewer of them than threads, some of its queries. All sums have an order of their own, that of the keys or that of
 * the queries: so neither the threads nor the spans change a bit. Tiles of keys that no query of a tile sees are left
 * out: those after it if causal, those before its window or its sequence. */
#include "program/attention.h"

#include "cpu.h"
#include "dropout.h"
#include "fp32_product.h"
#include "fp32_workspace.h"
#include "gemm_tiles.h"
#define REGISTER_LANES
#include "lanes.h"
#include "vector_math.h"

/* UNIT: rows that are cut into tiles. QUERIES: rows whose probabilities the gradient keeps. KEYS: of a block.
 * SPAN_NUMBERS: of the keys of a span, if these are at least a block. */
enum { UNIT = 64, QUERIES = 64, KEYS = 256, SPAN_NUMBERS = 1 << 15 };
enum { UNIT_TILES = (UNIT + GEMM_ROWS - 1) / GEMM_ROWS };

/* A head's rows in an operand, from element `at` on; v: NULL if there are none */
typedef struct Rows { const View *v; int64_t at, step; } Rows;

/* One sample's head: rows of (queries, D) or (keys, D) */
typedef struct Head {
    const AttentionAttr *attr;
    int64_t queries, keys, width; /* T, S, D */
    Rows q, k, v, y;
    const int32_t *positions; /* (queries), of sequences in a row; NULL: it is one sequence */
    const float *bias;        /* (queries, keys); NULL: none */
    int64_t index;            /* of this head among all samples' */
    uint64_t seed;
    uint32_t call;
    float *lse;
    Rows dy, dq, dk, dv;      /* back */
    float *dbias;
    bool bias_later;          /* dbias already holds the sums over other samples or heads */
} Head;

/* Which of the queries, keys or sums [from, end) there are */
typedef struct Range { int64_t from, end; } Range;

static Range cut(Range r, int64_t at, int64_t n) { /* what of r lies in [at, at + n), counted from there */
    const int64_t end = max_i64(0, min_i64(r.end - at, n));
    return (Range){min_i64(end, max_i64(0, r.from - at)), end};
}

/* ---- operands */

/* A sample's rows, from `feature` on; v is (N, T, F) or (T, N, F). */
static Rows rows_of(const View *v, bool batch_first, int64_t sample, int64_t feature) {
    int64_t n = v->shape.dim[2], row = batch_first ? sample * v->shape.dim[1] : sample;
    return (Rows){v, row * n + feature, batch_first ? n : v->shape.dim[1] * n};
}

/* How many heads of q share one of k and v */
static int64_t group_of(const AttentionAttr *a) { return a->heads / a->kv_heads; }

/* part[3]: the head's q, k and v. qkv[3]: the operands, or their gradients */
static void find_parts(const View *qkv, const Head *h, Rows *part) {
    int64_t sample = h->index / h->attr->heads, head = h->index % h->attr->heads;
    for (int k = 0; k < 3; k++) {
        AttentionPart p = attention_part(qkv, k, h->attr, h->width);
        int64_t own = k ? head / group_of(h->attr) : head;
        part[k] = rows_of(&qkv[p.operand], h->attr->batch_first, sample, p.feature + own * h->width);
    }
}

static float *bias_of(const View *bias, const AttentionAttr *a, int64_t index) {
    return bias->count ? (float *)bias->data + attention_bias_at(bias, index / a->heads, index % a->heads) : NULL;
}

/* The sizes that all heads of an op share */
static Head sizes_of(const KArgs *a) {
    const AttentionAttr *attr = &a->attr->attention;
    const AttentionOperands o = attention_operands(a);
    const View *qkv = o.qkv, *y = o.y;
    const int time = attr->batch_first ? 1 : 0;
    assert(attr->heads > 0 && attr->kv_heads > 0 && attr->heads % attr->kv_heads == 0);
    assert(y->shape.rank == 3 && y->shape.dim[2] % attr->heads == 0 && 0 <= attr->p && attr->p <= 1);
    Head h = {.attr = attr, .queries = y->shape.dim[time], .width = y->shape.dim[2] / attr->heads, .seed = a->seed};
    h.keys = qkv[attention_part(qkv, 1, attr, h.width).operand].shape.dim[time];
    return h;
}

/* Head `index` of all samples' */
static Head head_of(const KArgs *a, int64_t index) {
    const AttentionAttr *attr = &a->attr->attention;
    const AttentionOperands o = attention_operands(a);
    Head h = sizes_of(a);
    Rows part[3];
    h.index = index;
    h.bias = bias_of(o.bias, attr, index);
    h.positions = attention_positions(o.positions, index / attr->heads);
    find_parts(o.qkv, &h, part);
    h.q = part[0], h.k = part[1], h.v = part[2];
    h.y = rows_of(o.y, attr->batch_first, index / attr->heads, index % attr->heads * h.width);
    h.lse = o.lse->count ? (float *)o.lse->data + index * h.queries : NULL;
    h.call = o.calls->count ? *(const uint32_t *)o.calls->data : 0;
    return h;
}

/* The keys that queries [i, i + rows) see, at least one of them each. */
static Range seen(const Head *h, int64_t i, int64_t rows) {
    return (Range){attention_first(h->attr, h->positions, i), attention_end(h->attr, i + rows - 1, h->keys)};
}

/* Where sums of rows are made: where they lie, if they are fp32, else in `scratch` (rows, D). */
static Matrix sums_of(const Rows *r, int64_t width, float *scratch) {
    return r->v->dtype == DT_F32 ? matrix((float *)r->v->data + r->at, r->step) : matrix(scratch, width);
}

static void leave_rows(const Rows *r, int64_t row, int64_t rows, int64_t width, const float *sums) {
    for (int64_t k = 0; k < rows && r->v->dtype != DT_F32; k++)
        block_store(r->v, r->at + (row + k) * r->step, width, sums + k * width);
}

static float *row_at(Matrix m, int64_t i) { return m.at + i * m.stride; }

static void clear_rows(Matrix m, int64_t row, int64_t rows, int64_t width) {
    for (int64_t k = row; k < row + rows; k++) memset(row_at(m, k), 0, (size_t)width * sizeof(float));
}

/* ---- packed operands, and the sums of tiles */

/* Tile `tile` of `rows` rows: tiles of a unit have even begins, and heights as like as can be. */
static int64_t tile_begin(int64_t tile, int64_t rows) {
    const int64_t unit = tile / UNIT_TILES * UNIT, left = min_i64(UNIT, rows - unit), tiles = div_up(left, GEMM_ROWS);
    const int64_t in_unit = tile % UNIT_TILES;
    return in_unit >= tiles ? rows : unit + (in_unit ? div_up(left, 2) * in_unit / tiles * 2 : 0);
}
static int64_t tiles_in(int64_t rows) { return rows / UNIT * UNIT_TILES + div_up(rows % UNIT, GEMM_ROWS); }

/* A span of keys, or a block of queries, packed. Of a sum over features (turned): rows, as columns of panels (D,
 * GEMM_COLUMNS), one after the other; of a sum over rows: features, as columns of panels (capacity, GEMM_COLUMNS). */
static void pack_turned(const Rows *r, int64_t row, int64_t rows, int64_t width, float *to) {
    for (int64_t k = 0; k < rows; k += GEMM_COLUMNS)
        gemm_turn(r->v->dtype, r->v->data, r->at + (row + k) * r->step, r->step, min_i64(GEMM_COLUMNS, rows - k), width,
                  width, to + k * width, GEMM_COLUMNS);
}

static void pack_plain(const Rows *r, int64_t row, int64_t rows, int64_t width, int64_t capacity, float *to) {
    gemm_panels(r->v->dtype, r->v->data, r->at + row * r->step, r->step, rows, width, to, capacity * GEMM_COLUMNS);
}

/* Rows as first factors of sums over features: pieces of GEMM_DEPTH features, each of `capacity` rows */
static void pack_rows(const Rows *r, int64_t row, int64_t rows, int64_t width, int64_t capacity, float *to) {
    for (int64_t f = 0; f < width; f += GEMM_DEPTH)
        gemm_copy(r->v->dtype, r->v->data, r->at + row * r->step + f, r->step, rows, min_i64(GEMM_DEPTH, width - f),
                  to + div_up(f, GEMM_DEPTH) * capacity * GEMM_STEP, GEMM_STEP);
}

/* s (rows, GEMM_STEP): columns of `range`, and those of their panels, become scale a b^T. a: of pack_rows; b: of
 * pack_turned, from the column 0 of s on */
static void scores(const float *a, int64_t capacity, int64_t rows, const float *b, int64_t width, float scale, Range range,
                   float *s) {
    for (int64_t c = range.from / GEMM_COLUMNS * GEMM_COLUMNS; c < range.end; c += GEMM_COLUMNS)
        for (int64_t f = 0; f < width; f += GEMM_DEPTH)
            gemm_tile(&(GemmTile){.a = a + div_up(f, GEMM_DEPTH) * capacity * GEMM_STEP, .b = b + c * width + f * GEMM_COLUMNS,
                .depth = min_i64(GEMM_DEPTH, width - f), .rows = rows,
                .columns = range.end - c > GEMM_LANES ? GEMM_COLUMNS : GEMM_LANES, .c = s + c, .c_step = GEMM_STEP,
                .scale = scale, .add = f > 0});
}

/* c (rows, D) = scale a b over the terms of `range`; add: += . a: rows of s, or its columns if turned; b: of pack_plain */
static void products(const float *a, bool turned, int64_t rows, const float *b, int64_t capacity, int64_t width, float scale,
                     Range range, Matrix c, int64_t row, bool add) {
    for (int64_t f = 0; f < width && range.end > range.from; f += GEMM_COLUMNS)
        gemm_tile(&(GemmTile){.a = a + range.from * (turned ? GEMM_STEP : 1), .turned = turned,
            .b = b + f * capacity + range.from * GEMM_COLUMNS, .depth = range.end - range.from, .rows = rows,
            .columns = min_i64(GEMM_COLUMNS, width - f), .c = row_at(c, row) + f, .c_step = c.stride, .scale = scale,
            .add = add});
}

/* ---- workspace */

/* A thread's part. Narrow: for operands of 16 bits */
typedef struct Space {
    int64_t span;               /* keys, a multiple of KEYS if there are more than it has */
    int64_t rows;               /* back: queries whose probabilities are kept, at most */
    float *k_turned, *v_turned, *k_plain, *v_plain;
    float *q_rows, *dy_rows;    /* of a tile */
    float *q_plain, *dy_plain;  /* of `rows` queries */
    float *s, *ds;              /* forward of a tile, back of `rows` queries; and a row more, that may be read */
    float *max, *sum;           /* forward (group, queries) */
    float *sums[3];             /* narrow: of y (group, queries, D); of dq (group, queries, D), dk, dv (span, D) */
} Space;

enum { TILE_CAPACITY = GEMM_ROWS + 1 }; /* with the row more */

static Space take_space(const Head *h, bool back, bool narrow, Room *r) {
    const int64_t d = h->width, padded = div_up(d, GEMM_COLUMNS) * GEMM_COLUMNS, group = group_of(h->attr);
    const int64_t most = max_i64(1, SPAN_NUMBERS / d / KEYS) * KEYS, factor = div_up(d, GEMM_DEPTH) * TILE_CAPACITY * GEMM_STEP;
    Space s = {.span = min_i64(most, div_up(h->keys, GEMM_COLUMNS) * GEMM_COLUMNS), .rows = min_i64(QUERIES, h->queries)};
    const int64_t kept = ((back ? s.rows : GEMM_ROWS) + 1) * GEMM_STEP;
    s.k_turned = room_take(r, s.span * d);
    s.q_rows = room_take(r, factor);
    s.s = room_take(r, kept);
    if (back) {
        s.v_turned = room_take(r, s.span * d);
        s.k_plain = room_take(r, s.span * padded);
        s.dy_rows = room_take(r, factor);
        s.q_plain = room_take(r, s.rows * padded);
        s.dy_plain = room_take(r, s.rows * padded);
        s.ds = room_take(r, kept);
    } else {
        s.v_plain = room_take(r, s.span * padded);
        s.max = room_take(r, group * h->queries);
        s.sum = room_take(r, group * h->queries);
    }
    for (int k = 0; narrow && k < (back ? 3 : 1); k++)
        s.sums[k] = room_take(r, d * (k ? s.span : group * h->queries));
    return s;
}

/* ---- scores */

/* exp_flushed of each lane */
INLINE V exp_lanes(V x) {
    float y[LANES];
    store(y, x);
#pragma omp simd
    for (int l = 0; l < LANES; l++) y[l] = exp_flushed(y[l]);
    return load(y);
}

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

/* factors[zone]: what dropout multiplies probabilities by, of row `row`, from column `column` on */
static void draw(const Head *h, float *factors, int64_t row, int64_t column, Range zone) {
    const uint64_t begin = dropout_row(h->index * h->queries + row, h->keys) + (uint64_t)(column + zone.from);
    dropout_factors(factors + zone.from, h->attr->p, h->seed, h->attr->id, h->call, begin, zone.end - zone.from);
}

/* The columns that the softmax of a tile goes over, whose queries see the keys of `of`: whole vectors. A key that a query does not
 * see gets the probability 0; wider: of the columns before and after, too, which share a tile of keys with one that is seen. */
static Range zone_of(Range of, int64_t wider, int64_t n) {
    return (Range){max_i64(0, of.from - wider) / LANES * LANES, div_up(min_i64(n, of.end + wider), LANES) * LANES};
}

/* x, numbers j to j + LANES of a row: those outside of the range become `other`. */
INLINE V only(V x, int64_t j, Range of, float other) {
    const LaneInts at = lane_numbers() + (int32_t)j, in = (at >= (int32_t)of.from) & (at < (int32_t)of.end);
    return (V)(((LaneInts)x & in) | ((LaneInts)((V){0} + other) & ~in));
}

/* What the zone of a row has outside of the range becomes x. */
INLINE void fill_outside(float *s, Range of, Range zone, float x) {
    for (int64_t j = zone.from; j < min_i64(of.from, zone.end); j += LANES) store(s + j, only(load(s + j), j, of, x));
    for (int64_t j = max_i64(of.end / LANES * LANES, zone.from); j < zone.end; j += LANES) store(s + j, only(load(s + j), j, of, x));
}
_Static_assert(GEMM_STEP >= KEYS + LANES, "a row of scores has room for a vector after its last key");

HOT static void scale_row(float *y, int64_t n, float by) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) y[j] *= by;
}

/* ---- forward */

/* The rows of a tile are gone through several times, so that what is done with one row need not wait for what became of
 * the one before it. */

/* Scores that a query does not see, outside of[row], become -inf. most[row]: the largest score */
FUSED HOT static void largest(float *s, int64_t rows, Range zone, const Range *of, float *most) {
    for (int64_t r = 0; r < rows; r++, s += GEMM_STEP) {
        V top = (V){0} - INFINITY;
        fill_outside(s, of[r], zone, -INFINITY);
        for (int64_t j = zone.from; j < zone.end; j += LANES) top = lanes_larger(load(s + j), top);
        most[r] = lanes_largest(top);
    }
}

/* Turns scores into exponentials relative to max[row], the largest score so far, which most[row] may exceed; sum[row]: of
 * exponentials so far. shrink[row]: what sums so far have been, or must be, multiplied by */
FUSED HOT static void exponentials(float *s, int64_t rows, Range zone, const float *most, float *max, float *sum, float *shrink) {
    for (int64_t r = 0; r < rows; r++, s += GEMM_STEP) {
        const float before = max[r], now = before < most[r] ? most[r] : before, base = now > -INFINITY ? now : 0.0f;
        V total = {0};
        for (int64_t j = zone.from; j < zone.end; j += LANES) {
            const V e = exp_lanes(load(s + j) - base);
            store(s + j, e);
            total += e;
        }
        shrink[r] = -INFINITY < before && before < now ? exp_flushed(before - now) : 1.0f; /* sums begin with 0 */
        sum[r] = sum[r] * shrink[r] + lanes_sum(total);
        max[r] = now;
    }
}

/* Turns the scores of queries [i, i + rows) for keys [c, c + n), of which they see those of `all`, into exponentials
 * relative to the largest so far; those of keys that a query does not see into 0. max, sum: by query; y: its sums */
static void softmax_tile(const Head *h, int64_t i, int64_t rows, int64_t c, int64_t n, Range all, float *s, float *max,
                         float *sum, Matrix y) {
    const Range zone = zone_of(all, 0, n);
    float most[GEMM_ROWS], shrink[GEMM_ROWS], factors[KEYS];
    Range of[GEMM_ROWS];
    for (int64_t r = 0; r < rows; r++) {
        of[r] = cut(seen(h, i + r, 1), c, n);
        if (h->attr->cap > 0.0f || h->bias) settle(h, i + r, c, of[r].end, s + r * GEMM_STEP, NULL);
    }
    largest(s, rows, zone, of, most);
    exponentials(s, rows, zone, most, max + i, sum + i, shrink);
    for (int64_t r = 0; r < rows; r++)
        if (shrink[r] != 1.0f) scale_row(row_at(y, i + r), h->width, shrink[r]);
    for (int64_t r = 0; r < rows && h->attr->p > 0; r++) {
        float *here = s + r * GEMM_STEP + zone.from;
        draw(h, factors, i + r, c, zone);
        block_multiply(here, here, factors + zone.from, zone.end - zone.from);
    }
}

/* Adds the products of queries [i, i + rows) with the span's keys and values, [at, at + n), to y, which is not yet divided
 * by its sum. */
static void forward_tile(const Head *h, const Space *w, int64_t i, int64_t rows, int64_t at, int64_t n, float *max,
                         float *sum, Matrix y) {
    const Range sees = seen(h, i, rows);
    if (sees.end <= at || sees.from >= at + n) return;
    pack_rows(&h->q, i, rows, h->width, TILE_CAPACITY, w->q_rows);
    for (int64_t c = 0; c < n; c += KEYS) {
        const int64_t keys = min_i64(KEYS, n - c);
        const Range of = cut(sees, at + c, keys);
        if (of.end == of.from) continue;
        scores(w->q_rows, TILE_CAPACITY, rows, w->k_turned + c * h->width, h->width, h->attr->scale, of, w->s);
        softmax_tile(h, i, rows, at + c, keys, of, w->s, max, sum, y);
        products(w->s, false, rows, w->v_plain + c * GEMM_COLUMNS, w->span, h->width, 1.0f, of, y, i, at + c > sees.from);
    }
}

static void forward_end(const Head *h, int64_t begin, int64_t end, const float *max, const float *sum, Matrix y) {
    for (int64_t i = begin; i < end; i++) {
        scale_row(row_at(y, i), h->width, 1.0f / sum[i]);
        if (h->lse) h->lse[i] = max[i] + logf(sum[i]);
    }
    leave_rows(&h->y, begin, end - begin, h->width, row_at(y, begin));
}

/* The span of keys from `at` on, for queries [begin, end) of head k of those that share k and v */
static void forward_span(const Head *h, const Space *w, int64_t k, int64_t at, int64_t begin, int64_t end) {
    const int64_t n = min_i64(w->span, h->keys - at), own = k * h->queries;
    float *max = w->max + own, *sum = w->sum + own;
    const Matrix y = sums_of(&h->y, h->width, w->sums[0] ? w->sums[0] + own * h->width : NULL);
    if (!k) {
        pack_turned(&h->k, at, n, h->width, w->k_turned);
        pack_plain(&h->v, at, n, h->width, w->span, w->v_plain);
    }
    if (!at) {
        for (int64_t i = begin; i < end; i++) max[i] = -INFINITY, sum[i] = 0.0f;
    }
    for (int64_t t = 1, i = begin, next; i < end; t++, i = next) {
        next = begin + tile_begin(t, end - begin);
        forward_tile(h, w, i, next - i, at, n, max, sum, y);
        if (at + n == h->keys) forward_end(h, i, next, max, sum, y);
    }
}

/* Queries [begin, end) of the heads that share one of k and v, of which `first` is the first */
static void forward_group(const KArgs *a, int64_t first, int64_t begin, int64_t end, const Space *w) {
    const Head of = sizes_of(a);
    for (int64_t at = 0; at < of.keys; at += w->span)
        for (int64_t k = 0; k < group_of(of.attr); k++) {
            const Head h = head_of(a, first + k);
            forward_span(&h, w, k, at, begin, end);
        }
}

/* ---- gradient */

/* Turns the scores of a tile into probabilities, and dp, the gradients of the probabilities after dropout, into those of the
 * scores; then applies dropout to the probabilities. Both are 0 outside of[row]. factors: of a row's dropout, those of the next
 * row after factors_step; inner[row]: <dy, y> */
FUSED HOT static void slopes(float *s, float *dp, int64_t rows, Range zone, const Range *of, const float *factors,
                             int64_t factors_step, const float *lse, const float *inner) {
    for (int64_t r = 0; r < rows; r++, s += GEMM_STEP, dp += GEMM_STEP, factors += factors_step) {
        fill_outside(s, of[r], zone, -INFINITY);
        fill_outside(dp, of[r], zone, 0.0f);
        for (int64_t j = zone.from; j < zone.end; j += LANES) {
            const V p = exp_lanes(load(s + j) - lse[r]), f = load(factors + j);
            store(dp + j, p * (load(dp + j) * f - inner[r]));
            store(s + j, p * f);
        }
    }
}

/* <a, b>, where GEMM_COLUMNS numbers of a lie in each panel, and panels are so far apart */
INLINE float dot(const float *a, int64_t panel, const float *b, int64_t n) {
    const int64_t whole = n / LANES * LANES;
    V sum = {0};
    float rest = 0.0f;
    for (int64_t j = 0; j < whole; j += LANES) sum += load(a + j / GEMM_COLUMNS * panel + j % GEMM_COLUMNS) * load(b + j);
    for (int64_t j = whole; j < n; j++) rest += a[j / GEMM_COLUMNS * panel + j % GEMM_COLUMNS] * b[j];
    return lanes_sum(sum) + rest;
}

/* inner[rows] becomes <dy, y> of each query from i on, whose dy have been packed. */
FUSED HOT static void inner_of(const Head *h, const Space *w, int64_t i, int64_t rows, float *inner) {
    float scratch[GEMM_DEPTH];
    for (int64_t r = 0; r < rows; r++) {
        inner[r] = 0.0f;
        for (int64_t f = 0; f < h->width; f += GEMM_DEPTH) {
            const int64_t n = min_i64(GEMM_DEPTH, h->width - f);
            const float *y = block_load(h->y.v, h->y.at + (i + r) * h->y.step + f, n, scratch);
            inner[r] += dot(w->dy_plain + f * w->rows + r * GEMM_COLUMNS, w->rows * GEMM_COLUMNS, y, n);
        }
    }
}

/* Adds ds[n], the gradients of query i's scores for keys from c on, to the bias's. */
static void add_to_bias(const Head *h, int64_t i, int64_t c, int64_t n, const float *ds) {
    float *to = h->dbias ? h->dbias + i * h->keys + c : NULL;
    for (int64_t j = 0; j < n && to; j++) to[j] = (h->bias_later ? to[j] : 0.0f) + ds[j];
}

/* The bias of keys that a query does not see has no gradient. */
static void clear_bias(const Head *h) {
    if (!h->dbias || h->bias_later) return;
    for (int64_t i = 0; i < h->queries; i++) {
        const Range of = seen(h, i, 1);
        float *row = h->dbias + i * h->keys;
        block_fill(row, 0.0f, of.from);
        block_fill(row + of.end, 0.0f, h->keys - of.end);
    }
}

/* Turns the scores s of queries [i, i + rows) for keys [c, c + n), of which they see those of `all`, and the gradients ds
 * of the probabilities, into probabilities after dropout and the gradients of scores before they are scaled. inner: by
 * query of the tile */
static void slopes_tile(const Head *h, int64_t i, int64_t rows, int64_t c, int64_t n, Range all, float *s, float *ds,
                        const float *inner) {
    const bool settled = h->attr->cap > 0.0f || h->bias, drops = h->attr->p > 0;
    const Range zone = zone_of(all, GEMM_ROWS, n);
    float factors[GEMM_ROWS * KEYS], slope[GEMM_ROWS * KEYS];
    Range of[GEMM_ROWS];
    assert(0 < rows && rows <= GEMM_ROWS);
    for (int64_t r = 0; r < rows; r++) {
        of[r] = cut(seen(h, i + r, 1), c, n);
        if (settled) settle(h, i + r, c, of[r].end, s + r * GEMM_STEP, slope + r * KEYS);
        if (drops) draw(h, factors + r * KEYS, i + r, c, zone);
    }
    if (!drops) block_fill(factors + zone.from, 1.0f, zone.end - zone.from);
    slopes(s, ds, rows, zone, of, factors, drops ? KEYS : 0, h->lse + i, inner);
    for (int64_t r = 0; r < rows && (settled || h->dbias); r++) {
        float *own = ds + r * GEMM_STEP + of[r].from;
        const int64_t seen_here = of[r].end - of[r].from;
        add_to_bias(h, i + r, c + of[r].from, seen_here, own);
        if (settled) block_multiply(own, own, slope + r * KEYS + of[r].from, seen_here);
    }
}

/* Adds to dk and dv, whose row 0 is key c, what queries [i, i + rows) have with keys [c, c + n). */
static void add_to_keys(const Head *h, const Space *w, int64_t i, int64_t rows, int64_t c, int64_t n, Matrix dk, Matrix dv) {
    Range r = {0, 0}; /* the queries that see a key of the tile */
    for (int64_t t = 0; t < tiles_in(n); t++) {
        const int64_t key = tile_begin(t, n), next = tile_begin(t + 1, n);
        while (r.from < rows && seen(h, i + r.from, 1).end <= c + key) r.from++;
        while (r.end < rows && seen(h, i + r.end, 1).from < c + next) r.end++;
        products(w->s + key, true, next - key, w->dy_plain, w->rows, h->width, 1.0f, r, dv, key, true);
        products(w->ds + key, true, next - key, w->q_plain, w->rows, h->width, h->attr->scale, r, dk, key, true);
    }
}

/* The parts of queries [i, i + rows) and the span's keys, [at, at + n), in dq, dk and dv; row 0 of these two is key at. */
static void back_block(const Head *h, const Space *w, int64_t i, int64_t rows, int64_t at, int64_t n, Matrix dq, Matrix dk,
                       Matrix dv) {
    const Range sees = seen(h, i, rows);
    const float scale = h->attr->scale;
    const int64_t d = h->width;
    float inner[QUERIES];
    if (sees.end <= at || sees.from >= at + n) return;
    pack_plain(&h->q, i, rows, d, w->rows, w->q_plain);
    pack_plain(&h->dy, i, rows, d, w->rows, w->dy_plain);
    inner_of(h, w, i, rows, inner);
    for (int64_t c = 0; c < n; c += KEYS) {
        const int64_t keys = min_i64(KEYS, n - c);
        const Range all = cut(sees, at + c, keys);
        for (int64_t t = 0; t < tiles_in(rows) && all.end > all.from; t++) {
            const int64_t row = tile_begin(t, rows), height = tile_begin(t + 1, rows) - row;
            const Range of = cut(seen(h, i + row, height), at + c, keys);
            float *s = w->s + row * GEMM_STEP, *ds = w->ds + row * GEMM_STEP;
            if (of.end == of.from) continue;
            pack_rows(&h->q, i + row, height, d, TILE_CAPACITY, w->q_rows);
            pack_rows(&h->dy, i + row, height, d, TILE_CAPACITY, w->dy_rows);
            scores(w->q_rows, TILE_CAPACITY, height, w->k_turned + c * d, d, scale, of, s);
            scores(w->dy_rows, TILE_CAPACITY, height, w->v_turned + c * d, d, 1.0f, of, ds);
            slopes_tile(h, i + row, height, at + c, keys, of, s, ds, inner + row);
            products(ds, false, height, w->k_plain + c * GEMM_COLUMNS, w->span, d, scale, of, dq, i + row,
                     at + c > seen(h, i + row, height).from);
        }
        if (all.end > all.from)
            add_to_keys(h, w, i, rows, at + c, keys, matrix(row_at(dk, c), dk.stride), matrix(row_at(dv, c), dv.stride));
    }
}

/* The span of keys from `at` on, for head k of those that share k and v */
static void back_span(const Head *h, const Space *w, int64_t k, int64_t at) {
    const int64_t n = min_i64(w->span, h->keys - at), d = h->width;
    Matrix dq = sums_of(&h->dq, d, w->sums[0] ? w->sums[0] + k * h->queries * d : NULL);
    Matrix dk = sums_of(&h->dk, d, w->sums[1]), dv = sums_of(&h->dv, d, w->sums[2]);
    if (!w->sums[1]) dk.at = row_at(dk, at), dv.at = row_at(dv, at); /* sums in the workspace are the span's */
    if (!k) {
        pack_turned(&h->k, at, n, d, w->k_turned);
        pack_turned(&h->v, at, n, d, w->v_turned);
        pack_plain(&h->k, at, n, d, w->span, w->k_plain);
        clear_rows(dk, 0, n, d);
        clear_rows(dv, 0, n, d);
    }
    for (int64_t i = 0; i < h->queries; i += w->rows)
        back_block(h, w, i, min_i64(w->rows, h->queries - i), at, n, dq, dk, dv);
    if (at + n == h->keys) leave_rows(&h->dq, 0, h->queries, d, dq.at);
    if (k + 1 < group_of(h->attr)) return;
    leave_rows(&h->dk, at, n, d, dk.at);
    leave_rows(&h->dv, at, n, d, dv.at);
}

/* The heads that share one of k and v, of which `first` is the first. later: by head, are there sums in its bias's
 * gradient? */
static void back_group(const KArgs *a, int64_t first, bool later_first, bool later_rest, const Space *w) {
    const Head of = sizes_of(a);
    for (int64_t at = 0; at < of.keys; at += w->span)
        for (int64_t k = 0; k < group_of(of.attr); k++) {
            Head h = head_of(a, first + k);
            Rows part[3];
            find_parts(a->out, &h, part);
            h.dq = part[0], h.dk = part[1], h.dv = part[2];
            h.dy = (Rows){&a->attention_dx.dy, h.y.at, h.y.step};
            h.dbias = bias_of(&a->attention_dx.dbias, h.attr, h.index);
            h.bias_later = k ? later_rest : later_first;
            if (!at) clear_bias(&h);
            back_span(&h, w, k, at);
        }
}

/* ---- both */

static bool is_back(const KArgs *a) { return a->kind == OP_attention_dx; }

/* What the threads share: heads of k and v of all samples, or (back) samples and heads whose gradients of the bias are one
 * sum, and, forward, where there are few of these, parts of the queries */
typedef struct Work { int64_t own_samples, own_heads, pieces, parts, part_rows, threads; } Work;

static Work work_of(const KArgs *a) {
    static const View none;
    const View *dbias = is_back(a) ? &a->attention_dx.dbias : &none;
    const Head h = sizes_of(a);
    const int64_t samples = attention_operands(a).y->shape.dim[h.attr->batch_first ? 0 : 1];
    const int64_t heads = h.attr->kv_heads, threads = ((CpuDevice *)a->device)->threads;
    Work w = {.own_samples = dbias->count && dbias->shape.dim[0] == 1 ? samples : 1,
              .own_heads = dbias->count && dbias->shape.dim[1] == 1 ? heads : 1};
    w.pieces = samples / w.own_samples * (heads / w.own_heads);
    w.part_rows = div_up(div_up(h.queries, is_back(a) ? 1 : div_up(threads, w.pieces)), UNIT) * UNIT;
    w.parts = div_up(h.queries, w.part_rows);
    w.threads = min_i64(threads, w.pieces * w.parts);
    return w;
}

/* The op with a bias in fp32, and the threads' spaces. each: floats from a thread's space to the next one's */
typedef struct Opened { KArgs wide; Work work; char *spaces; size_t each; } Opened;

static KArgs only_bias(const KArgs *a) {
    KArgs b = {.kind = a->kind, .attr = a->attr};
    if (is_back(a)) b.attention_dx.bias = a->attention_dx.bias, b.attention_dx.dbias = a->attention_dx.dbias;
    else b.attention.bias = a->attention.bias;
    return b;
}

static bool is_narrow(const KArgs *a) { return attention_operands(a).y->dtype != DT_F32; }

static Opened open(const KArgs *a, Room *r) {
    const Head sizes = sizes_of(a);
    const KArgs bias = only_bias(a);
    Opened o = {.wide = *a, .work = work_of(a)};
    KArgs wide;
    Room one = {NULL, 0};
    fp32_enter(&bias, r, &wide);
    if (is_back(a)) o.wide.attention_dx.bias = wide.attention_dx.bias, o.wide.attention_dx.dbias = wide.attention_dx.dbias;
    else o.wide.attention.bias = wide.attention.bias;
    take_space(&sizes, is_back(a), is_narrow(a), &one);
    o.each = one.used;
    o.spaces = (char *)room_take(r, o.work.threads * (int64_t)(one.used / sizeof(float)));
    return o;
}

static Space space_of(const Opened *o) {
    const Head sizes = sizes_of(&o->wide);
    Room own = {o->spaces + (size_t)omp_get_thread_num() * o->each, 0};
    return take_space(&sizes, is_back(&o->wide), is_narrow(&o->wide), &own);
}

static int prepare(const KArgs *a, void **state, size_t *workspace) {
    Room r = {NULL, 0};
    open(a, &r);
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

static int check_room(const KArgs *a, Err *e) {
    Room needed = {NULL, 0};
    open(a, &needed);
    return room_check(&needed, a, e);
}

int k_cpu_attention(const KArgs *a, Err *e) {
    assert(operand_is_fp32(&a->attention.lse) && (a->attr->attention.p == 0 || a->attention.calls.data));
    const int code = check_room(a, e);
    if (code) return code;
    Room r = {a->workspace, 0};
    const Opened o = open(a, &r);
    const Head h = sizes_of(a);
    const int64_t all = o.work.pieces * o.work.parts;
#pragma omp parallel for schedule(static) num_threads(threads_within(o.work.threads)) if (all > 1)
    for (int64_t i = 0; i < all; i++) {
        const Space w = space_of(&o);
        const int64_t begin = i % o.work.parts * o.work.part_rows;
        forward_group(&o.wide, i / o.work.parts * group_of(h.attr), begin, min_i64(begin + o.work.part_rows, h.queries), &w);
    }
    return OK;
}

int k_cpu_attention_dx(const KArgs *a, Err *e) {
    assert(operand_is_fp32(&a->attention_dx.lse) && (a->attr->attention.p == 0 || a->attention_dx.calls.data));
    assert(a->attention_dx.dy.count == a->attention_dx.y.count);
    const int code = check_room(a, e);
    if (code) return code;
    Room r = {a->workspace, 0};
    const Opened o = open(a, &r);
    const View *bias = &o.wide.attention_dx.dbias;
    const Work *work = &o.work;
    const int64_t heads = a->attr->attention.kv_heads, rest = heads / work->own_heads;
#pragma omp parallel for schedule(static) num_threads(threads_within(work->threads)) if (work->pieces > 1)
    for (int64_t i = 0; i < work->pieces; i++) {
        const Space w = space_of(&o);
        for (int64_t k = 0; k < work->own_samples * work->own_heads; k++) {
            const int64_t head = i % rest * work->own_heads + k % work->own_heads;
            const int64_t sample = i / rest * work->own_samples + k / work->own_heads;
            const bool one = bias->count && bias->shape.dim[1] == 1, later = k / work->own_heads > 0; /* sums of all heads */
            back_group(&o.wide, (sample * heads + head) * group_of(&a->attr->attention), later || (one && k > 0), later || one, &w);
        }
    }
    const KArgs narrow = only_bias(a), wide = only_bias(&o.wide);
    fp32_leave(&narrow, &wide);
    return OK;
}
