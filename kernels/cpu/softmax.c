/* softmax.c: softmax and its logarithm along lines of n elements. Sums over a part of a line are in fp32, sums over parts in double. */
#include "row_chunks.h"

#include <string.h>

FUSED HOT static void part_softmax(float *y, const float *x, float most, float factor, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = exp_flushed(x[i] - most) * factor;
}

HOT static void part_log_softmax(float *y, const float *x, float most, float log_sum, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - most - log_sum;
}

/* The line of n elements from `at` on */
static void softmax_line(const KArgs *a, int64_t at, int64_t n) {
    float from[PART], to[PART], most = -INFINITY;
    double sum = 0;
    EACH_PART(i, m, n) most = part_max(most, block_load(&a->softmax.x, at + i, m, from), m);
    EACH_PART(i, m, n) sum += (double)part_exp_sum(block_load(&a->softmax.x, at + i, m, from), most, m);
    float factor = (float)(1 / sum), log_sum = (float)log(sum); /* cppcheck-suppress invalidFunctionArg ; n >= 1 */
    EACH_PART(i, m, n) {
        const float *x = block_load(&a->softmax.x, at + i, m, from);
        if (a->attr->softmax.log) part_log_softmax(to, x, most, log_sum, m);
        else part_softmax(to, x, most, factor, m);
        block_store(&a->softmax.y, at + i, m, to);
    }
}

HOT static float part_dot(const float *dy, const float *y, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += dy[i] * y[i];
    return sum;
}

HOT static float part_sum(const float *dy, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += dy[i];
    return sum;
}

FUSED HOT static void part_softmax_dx(float *dx, const float *dy, const float *y, float sum, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - sum);
}

FUSED HOT static void part_log_softmax_dx(float *dx, const float *dy, const float *y, float sum, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - exp_flushed(y[i]) * sum;
}

static void softmax_dx_line(const KArgs *a, int64_t at, int64_t n) {
    float gradient[PART], from[PART], to[PART];
    bool log = a->attr->softmax.log;
    double sum = 0;
    EACH_PART(i, m, n) {
        const float *dy = block_load(&a->softmax_dx.dy, at + i, m, gradient);
        sum += (double)(log ? part_sum(dy, m) : part_dot(dy, block_load(&a->softmax_dx.y, at + i, m, from), m));
    }
    EACH_PART(i, m, n) {
        const float *dy = block_load(&a->softmax_dx.dy, at + i, m, gradient);
        const float *y = block_load(&a->softmax_dx.y, at + i, m, from);
        if (log) part_log_softmax_dx(to, dy, y, (float)sum, m);
        else part_softmax_dx(to, dy, y, (float)sum, m);
        block_store(&a->softmax_dx.dx, at + i, m, to);
    }
}

static void lines_piece(const KArgs *a, int64_t begin, int64_t end) {
    const int64_t n = a->in[0].shape.dim[a->attr->softmax.axis];
    for (int64_t line = begin; line < end; line++) (a->kind == OP_softmax ? softmax_line : softmax_dx_line)(a, line * n, n);
}

/* ---- lines beside each other, whose elements lie `inner` apart */

/* The first elements of w lines from `at` on; each has n, `inner` apart. */
typedef struct Columns { int64_t at, w, n, inner; } Columns;
#define EACH_ROW(c, i) for (int64_t i = 0; i < (c)->n; i++)
/* Sums of each line: in fp32 over a part of it, and of the parts */
typedef struct Sums { float part[COLUMNS_MOST]; double all[COLUMNS_MOST]; } Sums;

static void add_part(Sums *s, int64_t n) {
    block_sum(s->all, s->part, n);
    memset(s->part, 0, sizeof s->part);
}

/* of: what a line's sum makes of its elements: log(sum), or 1 / sum */
FUSED HOT static void row_softmax(float *y, const float *x, const float *most, const float *of, bool log, int64_t n) {
    if (log) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = x[i] - most[i] - of[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = exp_flushed(x[i] - most[i]) * of[i];
    }
}

static void softmax_columns(const KArgs *a, const Columns *c) {
    const View *x = &a->softmax.x;
    float from[COLUMNS_MOST], to[COLUMNS_MOST], most[COLUMNS_MOST], of[COLUMNS_MOST];
    Sums sums = {{0}, {0}};
    block_fill(most, -INFINITY, c->w);
    EACH_ROW(c, i) larger(most, block_load(x, c->at + i * c->inner, c->w, from), c->w);
    EACH_ROW(c, i) {
        add_exponentials(sums.part, block_load(x, c->at + i * c->inner, c->w, from), most, c->w);
        if ((i + 1) % PART == 0 || i + 1 == c->n) add_part(&sums, c->w);
    }
    for (int64_t k = 0; k < c->w; k++) of[k] = (float)(a->attr->softmax.log ? log(sums.all[k]) : 1 / sums.all[k]);
    EACH_ROW(c, i) {
        const int64_t at = c->at + i * c->inner;
        float *y = block_target(&a->softmax.y, at, to);
        row_softmax(y, block_load(x, at, c->w, from), most, of, a->attr->softmax.log, c->w);
        block_store(&a->softmax.y, at, c->w, y);
    }
}

HOT static void add_gradients(float *sum, const float *dy, const float *y, bool log, int64_t n) {
    if (log) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) sum[i] += dy[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) sum[i] += dy[i] * y[i];
    }
}

FUSED HOT static void row_softmax_dx(float *dx, const float *dy, const float *y, const float *sum, bool log, int64_t n) {
    if (log) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - exp_flushed(y[i]) * sum[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - sum[i]);
    }
}

static void softmax_dx_columns(const KArgs *a, const Columns *c) {
    float gradient[COLUMNS_MOST], from[COLUMNS_MOST], to[COLUMNS_MOST], sum[COLUMNS_MOST];
    const bool log = a->attr->softmax.log;
    Sums sums = {{0}, {0}};
    EACH_ROW(c, i) {
        const int64_t at = c->at + i * c->inner;
        add_gradients(sums.part, block_load(&a->softmax_dx.dy, at, c->w, gradient), block_load(&a->softmax_dx.y, at, c->w, from), log, c->w);
        if ((i + 1) % PART == 0 || i + 1 == c->n) add_part(&sums, c->w);
    }
    for (int64_t k = 0; k < c->w; k++) sum[k] = (float)sums.all[k];
    EACH_ROW(c, i) {
        const int64_t at = c->at + i * c->inner;
        float *dx = block_target(&a->softmax_dx.dx, at, to);
        row_softmax_dx(dx, block_load(&a->softmax_dx.dy, at, c->w, gradient), block_load(&a->softmax_dx.y, at, c->w, from), sum, log, c->w);
        block_store(&a->softmax_dx.dx, at, c->w, dx);
    }
}

/* Items are groups of lines that begin beside each other: so many lines at most, groups across. */
typedef struct Groups { int64_t outer, inner, each, across; } Groups;

static Groups groups_of(const KArgs *a) {
    Groups g;
    view_split(&a->in[0], a->attr->softmax.axis, &g.outer, &g.inner);
    g.each = columns_together(g.outer * g.inner);
    g.across = div_up(g.inner, g.each);
    return g;
}

static void columns_piece(const KArgs *a, int64_t begin, int64_t end) {
    const Groups g = groups_of(a);
    const int64_t n = a->in[0].shape.dim[a->attr->softmax.axis];
    for (int64_t item = begin; item < end; item++) {
        const int64_t first = item % g.across * g.each;
        const Columns c = {item / g.across * n * g.inner + first, min_i64(g.each, g.inner - first), n, g.inner};
        (a->kind == OP_softmax ? softmax_columns : softmax_dx_columns)(a, &c);
    }
}

/* ---- short lines, several at a time: calls for each of their parts would cost more than the work */

/* `lines` lines of n elements, one after the other; y may be x, dx may be dy */
FUSED HOT static void block_softmax(float *y, const float *x, int64_t lines, int64_t n, bool log) {
    for (const float *end = x + lines * n; x < end; x += n, y += n) {
        float most = -INFINITY, sum = 0;
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
        if (log) {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += exp_flushed(x[i] - most);
            const float log_sum = logf(sum); /* cppcheck-suppress invalidFunctionArg ; n >= 1 */
#pragma omp simd
            for (int64_t i = 0; i < n; i++) y[i] = x[i] - most - log_sum;
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += y[i] = exp_flushed(x[i] - most);
            const float factor = 1 / sum;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) y[i] *= factor;
        }
    }
}

FUSED HOT static void block_softmax_dx(float *dx, const float *dy, const float *y, int64_t lines, int64_t n, bool log) {
    for (const float *end = y + lines * n; y < end; y += n, dy += n, dx += n) {
        float sum = 0;
        if (log) {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += dy[i];
#pragma omp simd
            for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - exp_flushed(y[i]) * sum;
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += dy[i] * y[i];
#pragma omp simd
            for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - sum);
        }
    }
}

static void block_piece(const KArgs *a, int64_t begin, int64_t end) {
    int64_t n = a->in[0].shape.dim[a->attr->softmax.axis], at = begin * n, count = (end - begin) * n;
    float first[BLOCK], second[BLOCK], scratch[BLOCK], *to = block_target(&a->out[0], at, scratch);
    const float *in = block_load(&a->in[0], at, count, first);
    bool log = a->attr->softmax.log;
    if (a->kind == OP_softmax) block_softmax(to, in, end - begin, n, log);
    else block_softmax_dx(to, in, block_load(&a->softmax_dx.y, at, count, second), end - begin, n, log);
    block_store(&a->out[0], at, count, to);
}

int k_cpu_softmax(const KArgs *a, Err *e) {
    (void)e;
    assert(0 <= a->attr->softmax.axis && a->attr->softmax.axis < a->in[0].shape.rank);
    assert(a->in[0].count == a->out[0].count && (a->kind == OP_softmax || a->softmax_dx.y.count == a->out[0].count));
    const Groups g = groups_of(a);
    const int64_t n = a->in[0].shape.dim[a->attr->softmax.axis];
    if (g.inner > 1) range_run(a, g.outer * g.across, max_i64(1, BLOCK / (n * min_i64(g.each, g.inner))), columns_piece);
    else range_run(a, g.outer, max_i64(1, BLOCK / n), n <= PART ? block_piece : lines_piece);
    return OK;
}

int k_cpu_softmax_dx(const KArgs *a, Err *e) { return k_cpu_softmax(a, e); }
