/* broadcast.c: y = x s or x + s, where s is broadcast over a run of dimensions (core/math/broadcast.h), and sums over the run: the
 * gradients of s and of biases. x is seen as rows of `inner` elements, of which `run` share a row of s. */
#include "parallel.h"

#include <string.h>

static Broadcast of(const View *x, const View *s) {
    Broadcast r = {1, 1, 1};
    const bool fits = broadcast_read(&x->shape, &s->shape, x->channels_last, &r);
    assert(fits);
    return (void)fits, r;
}

HOT static void broadcast_row(float *y, const float *x, const float *s, int64_t n, bool add) {
    if (add) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = x[i] + s[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * s[i];
    }
}

HOT static void broadcast_one(float *y, const float *x, float s, int64_t n, bool add) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = add ? x[i] + s : x[i] * s;
}

/* n elements from `at` on, all in one row of x; or all in one run, if a row is one element */
static void broadcast_part(const KArgs *a, const Broadcast *r, int64_t at, int64_t n) {
    float x[BLOCK], s[BLOCK], y[BLOCK], *to = block_target(&a->broadcast.y, at, y);
    const float *from = block_load(&a->broadcast.x, at, n, x);
    const int64_t place = at / (r->run * r->inner) * r->inner + at % r->inner;
    if (r->inner == 1) broadcast_one(to, from, *block_load(&a->broadcast.s, place, 1, s), n, a->attr->broadcast.add);
    else broadcast_row(to, from, block_load(&a->broadcast.s, place, n, s), n, a->attr->broadcast.add);
    block_store(&a->broadcast.y, at, n, to);
}

static void broadcast_piece(const KArgs *a, int64_t begin, int64_t end) {
    const Broadcast r = of(&a->broadcast.x, &a->broadcast.s);
    const int64_t row = r.inner == 1 ? r.run : r.inner;
    for (int64_t at = begin; at < end;) {
        int64_t n = min_i64(end - at, row - at % row);
        broadcast_part(a, &r, at, n);
        at += n;
    }
}

int k_cpu_broadcast(const KArgs *a, Err *e) {
    (void)e;
    assert(a->broadcast.x.count == a->broadcast.y.count);
    assert(a->broadcast.x.channels_last == a->broadcast.s.channels_last);
    blocks_run(a, a->broadcast.y.count, broadcast_piece);
    return OK;
}

/* ---- sums over the run: the gradient of s, and of a bias, whose features lie innermost in every layout */

HOT static void add_products(double *sum, const float *dy, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += (double)dy[i] * (double)x[i];
}

/* Of `count` numbers, `step` apart */
HOT static double total(const double *x, int64_t count, int64_t step) {
    double all = 0;
    for (int64_t i = 0; i < count; i++) all += x[i * step];
    return all;
}

/* to = the sum of dy x over the run, or of dy where x has no elements. A column is what is summed into one number; at most `each` of them are
 * side by side, and several rows where a row has few. An item is such columns of a part of the run: there are several parts where there is
 * little else to share among threads, whose sums are kept at `sums`, (parts, columns). grain: items of a piece */
typedef struct Sums { const View *dy, *x, *to; Broadcast of; int64_t each, across, parts, grain; double *sums; } Sums;

/* sum[i] += dy x, or dy, of elements [at, at + n); n is at most COLUMNS_MOST */
static void add_elements(const Sums *s, int64_t at, int64_t n, double *sum) {
    float one[COLUMNS_MOST], two[COLUMNS_MOST];
    const float *dy = block_load(s->dy, at, n, one);
    if (s->x->count) add_products(sum, dy, block_load(s->x, at, n, two), n);
    else block_sum(sum, dy, n);
}

static void store_sums(const Sums *s, int64_t first, int64_t n, const double *sum) {
    float values[COLUMNS_MOST];
    for (int64_t i = 0; i < n; i++) values[i] = (float)sum[i];
    block_store(s->to, first, n, values);
}

static void sums_item(const Sums *s, int64_t item) {
    const Broadcast *of = &s->of;
    const int64_t part = item % s->parts, outer = item / s->parts / s->across, c = item / s->parts % s->across * s->each;
    const int64_t n = min_i64(s->each, of->inner - c), together = n == of->inner ? max_i64(1, COLUMNS_LEAST / n) : 1;
    const int64_t end = of->run * (part + 1) / s->parts, column = outer * of->inner + c;
    double sum[COLUMNS_MOST];
    memset(sum, 0, (size_t)(together * n) * sizeof *sum);
    for (int64_t r = of->run * part / s->parts; r < end; r += together)
        add_elements(s, (outer * of->run + r) * of->inner + c, min_i64(together, end - r) * n, sum);
    for (int64_t i = 0; i < n && together > 1; i++) sum[i] = total(sum + i, together, n);
    if (s->parts == 1) store_sums(s, column, n, sum);
    else memcpy(s->sums + part * s->to->count + column, sum, (size_t)n * sizeof *sum);
}

static void sums_piece(const void *of, int64_t i) {
    const Sums *s = of;
    const int64_t items = s->of.outer * s->across * s->parts;
    for (int64_t item = i * s->grain; item < min_i64(items, (i + 1) * s->grain); item++) sums_item(s, item);
}

static void sums_run(const View *dy, const View *x, const View *to, Broadcast of) {
    double sums[COLUMN_PIECES * COLUMNS_LEAST]; /* where more columns are taken together, there are items enough without parts */
    Sums s = {.dy = dy, .x = x, .to = to, .of = of, .each = columns_together(to->count), .sums = sums};
    s.across = div_up(of.inner, s.each);
    s.parts = max_i64(1, min_i64(COLUMN_PIECES / (of.outer * s.across), dy->count / BLOCK));
    s.grain = max_i64(1, BLOCK / (of.run / s.parts * min_i64(s.each, of.inner)));
    assert(s.parts == 1 || s.parts * to->count <= COLUMN_PIECES * COLUMNS_LEAST);
    pieces_run(&s, div_up(of.outer * s.across * s.parts, s.grain), sums_piece);
    for (int64_t i = to->count; s.parts > 1 && i < s.parts * to->count; i++) sums[i % to->count] += sums[i];
    for (int64_t i = 0; s.parts > 1 && i < to->count; i += s.each) store_sums(&s, i, min_i64(s.each, to->count - i), sums + i);
}

int k_cpu_broadcast_ds(const KArgs *a, Err *e) {
    (void)e;
    assert(!a->broadcast_ds.x.count || a->broadcast_ds.x.count == a->broadcast_ds.dy.count);
    sums_run(&a->broadcast_ds.dy, &a->broadcast_ds.x, &a->broadcast_ds.ds, of(&a->broadcast_ds.dy, &a->broadcast_ds.ds));
    return OK;
}

int k_cpu_bias_db(const KArgs *a, Err *e) {
    const View *dy = &a->bias_db.dy, *db = &a->bias_db.db;
    (void)e;
    assert(dy->count % db->count == 0);
    sums_run(dy, &(View){0}, db, (Broadcast){1, dy->count / db->count, db->count});
    return OK;
}
