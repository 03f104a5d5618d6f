/* broadcast.c: y = x s or x + s, where s is broadcast over a run of dimensions (core/math/broadcast.h), and the
 * gradient of s, a sum over the run. x is seen as rows of `inner` elements, of which `run` share a row of s. */
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

/* ---- the gradient of s */

HOT static void add_products(double *sum, const float *dy, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += (double)dy[i] * (double)x[i];
}

HOT static double total(const double *sum, int64_t n) {
    double all = 0;
    for (int64_t i = 0; i < n; i++) all += sum[i];
    return all;
}

/* sum[i] += dy x, or dy where there is no x, of elements [at, at + n); n is at most COLUMNS_MOST */
static void add_row(const KArgs *a, int64_t at, int64_t n, double *sum) {
    float one[COLUMNS_MOST], two[COLUMNS_MOST];
    const float *dy = block_load(&a->broadcast_ds.dy, at, n, one);
    if (a->broadcast_ds.x.count) add_products(sum, dy, block_load(&a->broadcast_ds.x, at, n, two), n);
    else block_sum(sum, dy, n);
}

/* Elements that are summed side by side: columns of a row, or parts of a run, if a row is one element. */
static int64_t columns_of(const Broadcast *r) { return columns_together(r->inner == 1 ? 1 : r->outer * r->inner); }

/* An item is such columns of all rows that share a row of s; or a whole run. */
static void sums_piece(const KArgs *a, int64_t begin, int64_t end) {
    const Broadcast r = of(&a->broadcast_ds.dy, &a->broadcast_ds.ds);
    const int64_t each = columns_of(&r), across = div_up(r.inner, each);
    for (int64_t item = begin; item < end; item++) {
        const int64_t outer = item / across, c = item % across * each, n = min_i64(each, r.inner - c);
        const int64_t first = outer * r.run * r.inner + c;
        double sum[COLUMNS_MOST];
        float values[COLUMNS_MOST];
        memset(sum, 0, (size_t)each * sizeof *sum);
        if (r.inner == 1) {
            for (int64_t k = 0; k < r.run; k += each) add_row(a, first + k, min_i64(each, r.run - k), sum);
            sum[0] = total(sum, each);
        }
        for (int64_t k = 0; r.inner > 1 && k < r.run; k++) add_row(a, first + k * r.inner, n, sum);
        for (int64_t i = 0; i < n; i++) values[i] = (float)sum[i];
        block_store(&a->broadcast_ds.ds, outer * r.inner + c, n, values);
    }
}

int k_cpu_broadcast_ds(const KArgs *a, Err *e) {
    const Broadcast r = of(&a->broadcast_ds.dy, &a->broadcast_ds.ds);
    (void)e;
    assert(!a->broadcast_ds.x.count || a->broadcast_ds.x.count == a->broadcast_ds.dy.count);
    const int64_t each = columns_of(&r);
    range_run(a, r.outer * div_up(r.inner, each), max_i64(1, BLOCK / (r.run * min_i64(each, r.inner))), sums_piece);
    return OK;
}
