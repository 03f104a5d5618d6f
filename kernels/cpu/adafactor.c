/* adafactor.c: Adafactor's update, in three passes over the gradient: means of squares per row and per column, the size
 * of the update, the update. Long sums are in double. */
#include "cpu.h"
#include "parallel.h"
#include "program/adafactor.h"

enum { PARTS = 64 };

typedef struct Job {
    OptimStep step;
    AdafactorShape f;
    View g, weight, copy, row, column, row_var, variance; /* copy: 16-bit weights; data NULL: absent */
    float eps, mean; /* mean: of row_var if the parameter is one matrix, else 0; a mean itself is at least eps */
} Job;

static Job job_of(const KArgs *a) {
    assert(a->adafactor.g.count == a->adafactor.w.count);
    const View *master = &a->out[op_master(a->kind)];
    const AdafactorShape f = adafactor_of(a);
    Job j = {.f = f, .g = a->adafactor.g, .weight = master->data ? *master : a->adafactor.w, .row = a->out[f.row],
             .column = a->out[f.column], .row_var = a->out[FACTORS_ROW], .variance = a->adafactor.variance};
    j.step = optim_step(&a->attr->optim.rule, a->adafactor.state.data, a->adafactor.lr.data, a->adafactor.square.data);
    if (master->data) j.copy = a->adafactor.w;
    j.eps = adafactor_eps(&j.step.rule, j.weight.dtype);
    return j;
}

/* ---- means of squares along the middle of (before, n, after) */

HOT static double add_squares(const float *x, float factor, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (double)(x[i] * factor) * (double)(x[i] * factor);
    return sum;
}

HOT static void add_each_square(const float *x, float factor, double *sums, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sums[i] += (double)(x[i] * factor) * (double)(x[i] * factor);
}

/* Items [first, first + n) of the mean, n at most BLOCK: term k of item `first` is element from + k stride of g. */
static void mean_block(const Job *j, const View *mean, int64_t from, int64_t stride, int64_t terms, int64_t first,
                       int64_t n) {
    double sums[BLOCK] = {0};
    float scratch[BLOCK];
    for (int64_t k = 0; k < terms; k++)
        add_each_square(block_load(&j->g, from + k * stride, n, scratch), j->step.unscale, sums, n);
    float *old = block_load(mean, first, n, scratch);
    for (int64_t i = 0; i < n; i++) old[i] = adafactor_mean(&j->step, old[i], (float)(sums[i] / (double)terms));
    block_store(mean, first, n, old);
}

/* Item `first`, if its terms are neighbours: after == 1 */
static void mean_one(const Job *j, const View *mean, int64_t terms, int64_t first) {
    float scratch[BLOCK];
    double sum = 0;
    for (int64_t k = 0; k < terms; k += BLOCK) {
        int64_t n = min_i64(BLOCK, terms - k);
        sum += add_squares(block_load(&j->g, first * terms + k, n, scratch), j->step.unscale, n);
    }
    float *old = block_load(mean, first, 1, scratch);
    *old = adafactor_mean(&j->step, *old, (float)(sum / (double)terms));
    block_store(mean, first, 1, old);
}

typedef struct Means { const Job *j; const View *mean; int64_t terms, after, parts; } Means;

static void means_piece(const void *of, int64_t i) {
    const Means *m = of;
    const int64_t x = i / m->parts, y = i % m->parts * BLOCK, n = min_i64(BLOCK, m->after - y);
    if (m->after == 1) mean_one(m->j, m->mean, m->terms, x);
    else mean_block(m->j, m->mean, x * m->terms * m->after + y, m->after, m->terms, x * m->after + y, n);
}

static void mean_all(const Job *j, const View *mean, int64_t before, int64_t terms, int64_t after) {
    const Means m = {j, mean, terms, after, div_up(after, BLOCK)};
    pieces_run(&m, before * m.parts, means_piece);
}

/* ---- the update */

HOT static void divide(float *u, const float *g, const float *square, float unscale, float eps, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) u[i] = g[i] * unscale / adafactor_root(square[i], eps);
}

HOT static void broadcast(float *square, const float *column, const float *row, const float *mean, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) square[i] = row[i] * column[i] / mean[i];
}

/* mean[n]: of row_var of the matrices (o, i), (o, i + 1), ... */
static void matrix_means(const Job *j, int64_t o, int64_t i, int64_t n, float *mean) {
    double sums[BLOCK];
    float scratch[BLOCK];
    memset(sums, 0, (size_t)n * sizeof *sums);
    for (int64_t r = 0; r < j->f.averaged; r++)
        block_sum(sums, block_load(&j->row_var, (o * j->f.averaged + r) * j->f.inner + i, n, scratch), n);
    for (int64_t k = 0; k < n; k++) mean[k] = adafactor_clamp((float)(sums[k] / (double)j->f.averaged), j->eps);
}

/* square[...] = the expected squares of elements from `begin` on: of at most n elements, and of no more than stand in
 * one row and, where matrices lie beside each other (inner > 1), in one column. Returns how many. */
static int64_t expected(const Job *j, int64_t begin, int64_t n, float *square) {
    const AdafactorShape *f = &j->f;
    const int64_t plane = f->columns * f->inner, row = begin / plane, o = row / f->rows, p = begin % plane;
    const int64_t i = p % f->inner;
    float scratch[3][BLOCK], *of_row = scratch[1], *mean = scratch[2];
    n = min_i64(n, f->inner == 1 ? plane - p : f->inner - i);
    if (f->inner == 1) {
        block_fill(of_row, *block_load(&j->row, row, 1, of_row), n);
        if (j->mean == 0.0f) matrix_means(j, o, 0, 1, mean);
        block_fill(mean, j->mean == 0.0f ? mean[0] : j->mean, n);
    } else {
        of_row = block_load(&j->row, row * f->inner + i, n, of_row);
        matrix_means(j, o, i, n, mean);
    }
    broadcast(square, block_load(&j->column, o * plane + p, n, scratch[0]), of_row, mean, n);
    return n;
}

/* u[n]: the update of elements [begin, begin + n), before the rate */
static void update_of(const Job *j, int64_t begin, int64_t n, float *u) {
    float scratch[2][BLOCK], *square = scratch[1];
    const float *g = block_load(&j->g, begin, n, scratch[0]);
    if (j->variance.data) square = block_load(&j->variance, begin, n, square);
    for (int64_t k = 0; k < n && !j->variance.data;) k += expected(j, begin + k, n - k, square + k);
    divide(u, g, square, j->step.unscale, j->eps, n);
}

/* The sums of squares of the weight and of its update, by part */
typedef struct Squares { const Job *j; int64_t count, grain; double (*part)[2]; } Squares;

static void squares_piece(const void *of, int64_t p) {
    const Squares *s = of;
    const int64_t end = min_i64((p + 1) * s->grain, s->count);
    float scratch[BLOCK], u[BLOCK];
    for (int64_t begin = p * s->grain; begin < end; begin += BLOCK) {
        const int64_t n = min_i64(BLOCK, end - begin);
        update_of(s->j, begin, n, u);
        s->part[p][0] += add_squares(block_load(&s->j->weight, begin, n, scratch), 1.0f, n);
        s->part[p][1] += add_squares(u, 1.0f, n);
    }
}

/* The rate that the whole update is multiplied by. Parts follow from the count alone and are added in order. */
static float rate_of(const Job *j) {
    const int64_t count = j->weight.count, grain = div_up(div_up(count, PARTS), BLOCK) * BLOCK;
    double part[PARTS][2] = {{0}}, weight = 0, update = 0;
    const Squares s = {j, count, grain, part};
    pieces_run(&s, div_up(count, grain), squares_piece);
    for (int p = 0; p < PARTS; p++) {
        weight += part[p][0];
        update += part[p][1];
    }
    return adafactor_rate(&j->step, weight / (double)count, update / (double)count);
}

typedef struct Applied { const Job *j; float rate, keep; } Applied;

static void apply_block(const void *of, int64_t b) {
    const Applied *p = of;
    const Job *j = p->j;
    float scratch[BLOCK], u[BLOCK];
    const int64_t begin = b * BLOCK, n = min_i64(BLOCK, j->weight.count - begin);
    float *w = block_load(&j->weight, begin, n, scratch);
    update_of(j, begin, n, u);
    for (int64_t i = 0; i < n; i++) w[i] = w[i] * p->keep - p->rate * u[i];
    block_store(&j->weight, begin, n, w);
    if (j->copy.data) block_store(&j->copy, begin, n, w);
}

static void apply(const Job *j, float rate) {
    const Applied p = {j, rate, 1.0f - j->step.rule.lr * j->step.rule.weight_decay};
    pieces_run(&p, div_up(j->weight.count, BLOCK), apply_block);
}

int k_cpu_adafactor_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)a, (void)limit, (void)e;
    *state = NULL;
    *workspace = 0;
    return OK;
}

int k_cpu_adafactor(const KArgs *a, Err *e) {
    const StepState *state = a->adafactor.state.data;
    (void)e;
    if (state->overflow) return OK;
    Job j = job_of(a);
    const AdafactorShape *f = &j.f;
    if (j.variance.data) {
        mean_all(&j, &j.variance, 1, 1, j.g.count);
    } else {
        mean_all(&j, &j.row, f->outer * f->rows, f->columns, f->inner);
        mean_all(&j, &j.column, f->outer, f->rows, f->columns * f->inner);
        if (f->outer * f->inner == 1) matrix_means(&j, 0, 0, 1, &j.mean);
    }
    apply(&j, rate_of(&j));
    return OK;
}
