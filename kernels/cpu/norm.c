/* norm.c: normalisation of (rows, C) operands: over all rows per channel (batchnorm), or over groups of the channels
 * of a sample, which is one row or, for an image, H W rows (norm). Statistics are fp32, summed in double. */
#include <math.h>

#include "cpu.h"
#define REGISTER_LANES
#include "lanes.h"
#include "norm_parts.h"

static int prepare_sums(const KArgs *a, const View *x, void **state, size_t *workspace, Err *e) {
    int64_t channels = norm_channels(a, x);
    *state = NULL;
    *workspace = slabs_workspace(x->count / channels, channels);
    return norm_check(a, x, e);
}

void load_param(const View *v, int64_t first, int64_t n, float value, float *to) {
    for (int64_t i = 0; i < n; i++) to[i] = v->data ? ((const float *)v->data)[first + i] : value;
}

/* The same without a copy: where they lie, or, if there is none, `absent`, which block_fill has filled. */
static const float *param_at(const View *v, int64_t first, const float *absent) {
    return v->data ? (const float *)v->data + first : absent;
}

/* y = x scale + shift, each per channel */
HOT static void scale_tile(float *y, int64_t to, const float *x, int64_t from, const float *scale, const float *shift,
                           int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * from;
        float *out = y + r * to;
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) out[c] = in[c] * scale[c] + shift[c];
    }
}

/* ---- batch normalisation, forward */

HOT void add_squares(double *sum, double *squares, const float *x, int64_t stride, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * stride;
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) {
            double value = in[c];
            sum[c] += value;
            squares[c] += value * value;
        }
    }
}

static void statistics_slab(const KArgs *a, int64_t begin, int64_t end, double *sums) {
    float scratch[BLOCK];
    int64_t channels = norm_channels(a, &a->batchnorm.x), stride;
    Tile t;
    for (bool more = tile_start(&t, channels, begin, end); more; more = tile_next(&t, begin, end)) {
        const float *x = tile_load(&a->batchnorm.x, &t, scratch, &stride);
        add_squares(sums + t.first, sums + channels + t.first, x, stride, t.rows, t.cols);
    }
}

/* running = (1 - m) running + m batch, with the unbiased variance; m is 1 / batches if momentum is below 0, for a mean
 * over all batches */
static void update_running(const KArgs *a, int64_t c, double mean, double var, int64_t rows) {
    float *running_mean = a->batchnorm.running_mean.data, *running_var = a->batchnorm.running_var.data;
    const int32_t *batches = a->batchnorm.batches.data;
    float m = a->attr->norm.momentum < 0 ? 1.0f / (float)*batches : a->attr->norm.momentum;
    running_mean[c] = (1 - m) * running_mean[c] + m * (float)mean;
    running_var[c] = (1 - m) * running_var[c] + m * (float)(var * (double)rows / (double)max_i64(rows - 1, 1));
}

static void statistics(const KArgs *a, int64_t rows, int64_t channels) {
    const double *sums = slabs_run(a, rows, channels, statistics_slab);
    float *mean_to = a->batchnorm.mean.data, *istd_to = a->batchnorm.istd.data;
    if (a->batchnorm.batches.data) ++*(int32_t *)a->batchnorm.batches.data;
    for (int64_t c = 0; c < channels; c++) {
        double mean = sums[c] / (double)rows, var = fmax(sums[channels + c] / (double)rows - mean * mean, 0);
        if (isnan(sums[channels + c])) var = NAN; /* fmax would hide it */
        mean_to[c] = (float)mean;
        istd_to[c] = (float)(1 / sqrt(var + (double)a->attr->norm.eps));
        if (a->batchnorm.running_mean.data) update_running(a, c, mean, var, rows);
    }
}

/* y = x scale + shift of channels [first, first + n) */
static void coefficients(const KArgs *a, int64_t first, int64_t n, float *scale, float *shift) {
    const bool eval = a->kind == OP_batchnorm_eval, made = a->kind == OP_batchnorm;
    const float *mean = made ? a->batchnorm.mean.data : a->batchnorm_again.mean.data;
    const float *spread = made ? a->batchnorm.istd.data : eval ? a->batchnorm_eval.var.data : a->batchnorm_again.istd.data;
    load_param(&a->batchnorm.w, first, n, 1, scale);
    load_param(&a->batchnorm.b, first, n, 0, shift);
    for (int64_t i = 0; i < n; i++) {
        scale[i] *= eval ? 1 / sqrtf(spread[first + i] + a->attr->norm.eps) : spread[first + i];
        shift[i] -= mean[first + i] * scale[i];
    }
}

static void batch_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK], to[BLOCK], scale[TILE_COLS], shift[TILE_COLS];
    int64_t x_stride, y_stride;
    Tile t;
    bool more = tile_start(&t, norm_channels(a, &a->batchnorm.x), begin, end);
    for (; more; more = tile_next(&t, begin, end)) {
        if (t.row == begin) coefficients(a, t.first, t.cols, scale, shift);
        const float *x = tile_load(&a->batchnorm.x, &t, from, &x_stride);
        float *y = tile_target(&a->batchnorm.y, &t, to, &y_stride);
        scale_tile(y, y_stride, x, x_stride, scale, shift, t.rows, t.cols);
        tile_store(&a->batchnorm.y, &t, y);
    }
}

int k_cpu_batchnorm_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit;
    return prepare_sums(a, &a->batchnorm.x, state, workspace, e);
}

int k_cpu_batchnorm(const KArgs *a, Err *e) {
    int64_t channels = norm_channels(a, &a->batchnorm.x), rows = a->batchnorm.x.count / channels;
    const View *w = &a->batchnorm.w, *b = &a->batchnorm.b, *mean = &a->batchnorm.mean, *istd = &a->batchnorm.istd;
    (void)e, (void)w, (void)b, (void)mean, (void)istd;
    assert(a->batchnorm.y.count == a->batchnorm.x.count && a->attr->norm.eps >= 0);
    assert(operand_is_vector(w, channels) && operand_is_vector(b, channels));
    assert(operand_is_vector(mean, channels) && operand_is_vector(istd, channels));
    assert(operand_is_vector(&a->batchnorm.running_mean, channels));
    assert(operand_is_vector(&a->batchnorm.running_var, channels));
    assert(!a->batchnorm.running_mean.data == !a->batchnorm.running_var.data);
    assert(a->attr->norm.momentum >= 0 || !a->batchnorm.running_mean.data || a->batchnorm.batches.data);
    statistics(a, rows, channels);
    range_run(a, rows, channel_grain(channels), batch_piece);
    return OK;
}

/* Statistics are operands. */
static int scale_channels(const KArgs *a, const View *mean, const View *spread, Err *e) {
    const View *x = &a->batchnorm.x, *w = &a->batchnorm.w, *b = &a->batchnorm.b;
    const int64_t channels = norm_channels(a, x);
    const int code = norm_check(a, x, e);
    assert(a->batchnorm.y.count == x->count && operand_is_vector(w, channels) && operand_is_vector(b, channels));
    assert(operand_is_vector(mean, channels) && operand_is_vector(spread, channels));
    (void)w, (void)b, (void)mean, (void)spread;
    if (!code) range_run(a, x->count / channels, channel_grain(channels), batch_piece);
    return code;
}

int k_cpu_batchnorm_eval(const KArgs *a, Err *e) { return scale_channels(a, &a->batchnorm_eval.mean, &a->batchnorm_eval.var, e); }
int k_cpu_batchnorm_again(const KArgs *a, Err *e) { return scale_channels(a, &a->batchnorm_again.mean, &a->batchnorm_again.istd, e); }

/* ---- batch normalisation, backward: dx = k (dy - db/M - (x - mean) istd dw/M), k = w istd
 *      = dy k + (x - mean) slope + shift, with slope = -k istd dw/M and shift = -k db/M */

HOT void batch_dx_tile(float *dx, int64_t to, const float *dy, int64_t dy_from, const float *x, int64_t x_from,
                       const float *mean, const float *coef, int64_t rows, int64_t cols) {
    const float *k = coef, *slope = coef + TILE_COLS, *shift = coef + 2 * TILE_COLS;
    for (int64_t r = 0; r < rows; r++) {
        const float *g = dy + r * dy_from, *in = x + r * x_from;
        float *out = dx + r * to;
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) out[c] = g[c] * k[c] + (in[c] - mean[c]) * slope[c] + shift[c];
    }
}

static void batch_dx_coefficients(const KArgs *a, int64_t first, int64_t n, float *coef) {
    const float *istd = a->batchnorm_dx.istd.data, *dw = a->batchnorm_dx.dw.data, *db = a->batchnorm_dx.db.data;
    float rows = (float)(a->batchnorm_dx.dy.count / norm_channels(a, &a->batchnorm_dx.x));
    load_param(&a->batchnorm_dx.w, first, n, 1, coef);
    for (int64_t i = 0; i < n; i++) {
        coef[i] *= istd[first + i];
        coef[TILE_COLS + i] = -coef[i] * istd[first + i] * dw[first + i] / rows;
        coef[2 * TILE_COLS + i] = -coef[i] * db[first + i] / rows;
    }
}

static void batch_dx_piece(const KArgs *a, int64_t begin, int64_t end) {
    float gradient[BLOCK], from[BLOCK], to[BLOCK], coef[3 * TILE_COLS];
    const float *mean = a->batchnorm_dx.mean.data;
    int64_t dy_stride, x_stride, dx_stride;
    Tile t;
    bool more = tile_start(&t, norm_channels(a, &a->batchnorm_dx.x), begin, end);
    for (; more; more = tile_next(&t, begin, end)) {
        if (t.row == begin) batch_dx_coefficients(a, t.first, t.cols, coef);
        const float *dy = tile_load(&a->batchnorm_dx.dy, &t, gradient, &dy_stride);
        const float *x = tile_load(&a->batchnorm_dx.x, &t, from, &x_stride);
        float *dx = tile_target(&a->batchnorm_dx.dx, &t, to, &dx_stride);
        batch_dx_tile(dx, dx_stride, dy, dy_stride, x, x_stride, mean + t.first, coef, t.rows, t.cols);
        tile_store(&a->batchnorm_dx.dx, &t, dx);
    }
}

int k_cpu_batchnorm_dx(const KArgs *a, Err *e) {
    int64_t channels = norm_channels(a, &a->batchnorm_dx.x);
    int code = norm_check(a, &a->batchnorm_dx.x, e);
    assert(a->batchnorm_dx.dy.count == a->batchnorm_dx.x.count && a->batchnorm_dx.dx.count == a->batchnorm_dx.x.count);
    assert(operand_is_vector(&a->batchnorm_dx.w, channels) && operand_is_vector(&a->batchnorm_dx.mean, channels));
    assert(operand_is_vector(&a->batchnorm_dx.istd, channels));
    assert(operand_is_vector(&a->batchnorm_dx.dw, channels) && operand_is_vector(&a->batchnorm_dx.db, channels));
    if (!code) range_run(a, a->batchnorm_dx.dy.count / channels, channel_grain(channels), batch_dx_piece);
    return code;
}

/* ---- within a sample, a group at a time, in runs of its channels */

Groups groups_of(const KArgs *a, const View *x, const View *istd) {
    int64_t channels = norm_channels(a, x), groups = a->attr->norm.groups;
    assert(groups > 0 && channels % groups == 0 && istd->count % groups == 0 && operand_is_fp32(istd));
    return (Groups){channels, groups, x->count / channels / (istd->count / groups), channels / groups};
}

/* Runs `one` over groups, or `columns` over columns of them, whichever pays. */
static void groups_run(const KArgs *a, const Groups *g, int64_t groups, RangeFn *one, RangeFn *columns) {
    int64_t items = groups / g->groups * norm_column_blocks(g);
    if (norm_by_columns(g)) range_run(a, items, channel_grain(g->rows * min_i64(g->channels, TILE_COLS)), columns);
    else range_run(a, groups, channel_grain(g->rows * g->size), one);
}

/* RMSNorm has no mean: 0 */
static float mean_at(const View *mean, int64_t item) {
    return mean->data ? ((const float *)mean->data)[item] : 0;
}

/* Group `item` (numbered through all samples): its rows and channels */
typedef struct Group { int64_t row, row_end, first, end; } Group;

static Group group_at(const Groups *g, int64_t item) {
    const int64_t row = item / g->groups * g->rows, first = item % g->groups * g->size;
    return (Group){row, row + g->rows, first, first + g->size};
}

/* A part of one row of a group: channels [first, first + n) of row `row`, n at most TILE_COLS */
typedef struct Run { int64_t row, first, n; } Run;

/* The first run of a group, and the one after it. */
static bool run_start(Run *r, const Group *of) {
    *r = (Run){of->row, of->first, min_i64(TILE_COLS, of->end - of->first)};
    return true;
}

static bool run_next(Run *r, const Group *of) {
    r->first += r->n;
    if (r->first == of->end) {
        r->first = of->first;
        if (++r->row == of->row_end) return false;
    }
    r->n = min_i64(TILE_COLS, of->end - r->first);
    return true;
}

#define EACH_RUN(r, of) for (bool more = run_start(&(r), &(of)); more; more = run_next(&(r), &(of)))

static int64_t run_at(const Run *r, const Groups *g) { return r->row * g->channels + r->first; }

/* Sum of x - mean, or of its squares. PARTS sums of each lane: one would wait for itself with each addition. */
INLINE float run_total(const float *x, float mean, int64_t n, bool squares) {
    enum { PARTS = 4, STEP = PARTS * LANES };
    const V one = (V){0} + 1;
    V sum[PARTS] = {{0}};
    float rest = 0;
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP)
#pragma GCC unroll 4
        for (int k = 0; k < PARTS; k++) {
            const V from = load(x + i + k * LANES) - mean;
            sum[k] += from * (squares ? from : one);
        }
    for (; i + LANES <= n; i += LANES) {
        const V from = load(x + i) - mean;
        sum[0] += from * (squares ? from : one);
    }
    for (; i < n; i++) rest += squares ? (x[i] - mean) * (x[i] - mean) : x[i] - mean;
    return lanes_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

FUSED HOT static float run_sum(const float *x, int64_t n) { return run_total(x, 0, n, false); }
FUSED HOT static float run_squares(const float *x, float mean, int64_t n) { return run_total(x, mean, n, true); }

HOT static void run_scale(float *y, const float *x, float mean, float istd, const float *w, const float *b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * istd * w[i] + b[i];
}

/* Small groups are gone through TOGETHER at a time, step by step: the steps of one wait for each other's roots and quotients. */
enum { TOGETHER = 16, TOGETHER_NUMBERS = 1 << 12 };

static int64_t groups_together(const Groups *g) { return max_i64(1, min_i64(TOGETHER, TOGETHER_NUMBERS / (g->rows * g->size))); }

static void group_mean(const KArgs *a, const Groups *g, int64_t item) {
    float scratch[TILE_COLS];
    double sum = 0;
    const Group of = group_at(g, item);
    Run r;
    EACH_RUN(r, of) sum += run_sum(block_load(&a->norm.x, run_at(&r, g), r.n, scratch), r.n);
    ((float *)a->norm.mean.data)[item] = (float)(sum / (double)(g->rows * g->size));
}

static void group_istd(const KArgs *a, const Groups *g, int64_t item) {
    float scratch[TILE_COLS];
    double squares = 0;
    const float mean = mean_at(&a->norm.mean, item);
    const Group of = group_at(g, item);
    Run r;
    EACH_RUN(r, of) squares += run_squares(block_load(&a->norm.x, run_at(&r, g), r.n, scratch), mean, r.n);
    ((float *)a->norm.istd.data)[item] = (float)(1 / sqrt(squares / (double)(g->rows * g->size) + (double)a->attr->norm.eps));
}

static void norm_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[TILE_COLS], to[TILE_COLS], one[TILE_COLS], zero[TILE_COLS];
    const Groups g = groups_of(a, &a->norm.x, &a->norm.istd);
    block_fill(one, 1, min_i64(TILE_COLS, g.size));
    block_fill(zero, 0, min_i64(TILE_COLS, g.size));
    for (int64_t first = begin, next; first < end; first = next) {
        next = min_i64(first + groups_together(&g), end);
        for (int64_t item = first; item < next && a->norm.mean.data; item++) group_mean(a, &g, item);
        for (int64_t item = first; item < next; item++) group_istd(a, &g, item);
        for (int64_t item = first; item < next; item++) {
            const Group of = group_at(&g, item);
            Run r;
            EACH_RUN(r, of) {
                float *y = block_target(&a->norm.y, run_at(&r, &g), to);
                run_scale(y, block_load(&a->norm.x, run_at(&r, &g), r.n, from), mean_at(&a->norm.mean, item),
                          ((const float *)a->norm.istd.data)[item], param_at(&a->norm.w, r.first, one),
                          param_at(&a->norm.b, r.first, zero), r.n);
                block_store(&a->norm.y, run_at(&r, &g), r.n, y);
            }
        }
    }
}

int k_cpu_norm(const KArgs *a, Err *e) {
    const Groups g = groups_of(a, &a->norm.x, &a->norm.istd);
    int code = norm_check(a, &a->norm.x, e);
    assert(a->norm.y.count == a->norm.x.count && operand_is_vector(&a->norm.mean, a->norm.istd.count));
    assert(operand_is_vector(&a->norm.w, g.channels) && operand_is_vector(&a->norm.b, g.channels));
    if (!code) groups_run(a, &g, a->norm.istd.count, norm_piece, norm_columns);
    return code;
}

/* ---- backward */

typedef struct Sums { float plain, centred; } Sums;

/* sums of dy w and of dy w (x - mean) */
HOT static Sums run_slopes(const float *dy, const float *x, float mean, const float *w, int64_t n) {
    float plain = 0, centred = 0;
#pragma omp simd reduction(+ : plain, centred)
    for (int64_t i = 0; i < n; i++) {
        plain += dy[i] * w[i];
        centred += dy[i] * w[i] * (x[i] - mean);
    }
    return (Sums){plain, centred};
}

HOT static void run_dx(float *dx, const float *dy, const float *x, const float *w, float mean, float istd, float plain,
                       float centred, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = istd * (dy[i] * w[i] - plain - (x[i] - mean) * centred);
}

/* Means over a group: of dy w, if a mean was taken off x, else 0; and of dy w (x - mean). */
static Sums group_slopes(const KArgs *a, const Groups *g, int64_t item, const float *one) {
    float gradient[TILE_COLS], from[TILE_COLS], mean = mean_at(&a->norm_dx.mean, item);
    double plain = 0, centred = 0, count = (double)(g->rows * g->size);
    const Group of = group_at(g, item);
    Run r;
    EACH_RUN(r, of) {
        const float *dy = block_load(&a->norm_dx.dy, run_at(&r, g), r.n, gradient);
        const float *x = block_load(&a->norm_dx.x, run_at(&r, g), r.n, from);
        Sums s = run_slopes(dy, x, mean, param_at(&a->norm_dx.w, r.first, one), r.n);
        plain += (double)s.plain;
        centred += (double)s.centred;
    }
    return (Sums){a->norm_dx.mean.data ? (float)(plain / count) : 0, (float)(centred / count)};
}

static void norm_dx_piece(const KArgs *a, int64_t begin, int64_t end) {
    float gradient[TILE_COLS], from[TILE_COLS], to[TILE_COLS], one[TILE_COLS];
    Sums slopes[TOGETHER] = {{0, 0}};
    const Groups g = groups_of(a, &a->norm_dx.x, &a->norm_dx.istd);
    block_fill(one, 1, min_i64(TILE_COLS, g.size));
    for (int64_t first = begin, next; first < end; first = next) {
        next = min_i64(first + groups_together(&g), end);
        for (int64_t item = first; item < next; item++) slopes[item - first] = group_slopes(a, &g, item, one);
        for (int64_t item = first; item < next; item++) {
            const float mean = mean_at(&a->norm_dx.mean, item), istd = ((const float *)a->norm_dx.istd.data)[item];
            const Sums s = slopes[item - first];
            const Group of = group_at(&g, item);
            Run r;
            EACH_RUN(r, of) {
                const float *dy = block_load(&a->norm_dx.dy, run_at(&r, &g), r.n, gradient);
                const float *x = block_load(&a->norm_dx.x, run_at(&r, &g), r.n, from);
                float *dx = block_target(&a->norm_dx.dx, run_at(&r, &g), to);
                run_dx(dx, dy, x, param_at(&a->norm_dx.w, r.first, one), mean, istd, s.plain, s.centred * istd * istd, r.n);
                block_store(&a->norm_dx.dx, run_at(&r, &g), r.n, dx);
            }
        }
    }
}

int k_cpu_norm_dx(const KArgs *a, Err *e) {
    const Groups g = groups_of(a, &a->norm_dx.x, &a->norm_dx.istd);
    int code = norm_check(a, &a->norm_dx.x, e);
    assert(a->norm_dx.dy.count == a->norm_dx.x.count && a->norm_dx.dx.count == a->norm_dx.x.count);
    assert(operand_is_vector(&a->norm_dx.w, g.channels) && operand_is_vector(&a->norm_dx.mean, a->norm_dx.istd.count));
    if (!code) groups_run(a, &g, a->norm_dx.istd.count, norm_dx_piece, norm_dx_columns);
    return code;
}

/* ---- parameters: sums over rows of dy (x - mean) istd and of dy */

HOT void add_slopes(double *dw, double *db, const float *dy, int64_t dy_from, const float *x, int64_t x_from,
                    const float *mean, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *g = dy + r * dy_from, *in = x + r * x_from;
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) {
            dw[c] += (double)(g[c] * (in[c] - mean[c]));
            db[c] += (double)g[c];
        }
    }
}

HOT static void add_run_slopes(double *dw, double *db, const float *dy, const float *x, float mean, float istd,
                               int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dw[i] += (double)(dy[i] * ((x[i] - mean) * istd));
        db[i] += (double)dy[i];
    }
}

/* One mean per channel; istd is multiplied in at the end. */
static void batch_slab(const KArgs *a, int64_t begin, int64_t end, double *sums) {
    float gradient[BLOCK], from[BLOCK];
    int64_t channels = norm_channels(a, &a->norm_dw.x), dy_stride, x_stride;
    Tile t;
    for (bool more = tile_start(&t, channels, begin, end); more; more = tile_next(&t, begin, end)) {
        const float *dy = tile_load(&a->norm_dw.dy, &t, gradient, &dy_stride);
        const float *x = tile_load(&a->norm_dw.x, &t, from, &x_stride);
        add_slopes(sums + t.first, sums + channels + t.first, dy, dy_stride, x, x_stride,
                   (const float *)a->norm_dw.mean.data + t.first, t.rows, t.cols);
    }
}

/* One mean per group of a sample. */
static void group_slab(const KArgs *a, int64_t begin, int64_t end, double *sums) {
    float gradient[TILE_COLS], from[TILE_COLS];
    const Groups g = groups_of(a, &a->norm_dw.x, &a->norm_dw.istd);
    const float *istd = a->norm_dw.istd.data;
    for (int64_t row = begin; row < end; row++)
        for (int64_t first = 0, n; first < g.channels; first += n) {
            int64_t group = first / g.size, item = row / g.rows * g.groups + group;
            n = min_i64(TILE_COLS, (group + 1) * g.size - first);
            const float *dy = block_load(&a->norm_dw.dy, row * g.channels + first, n, gradient);
            const float *x = block_load(&a->norm_dw.x, row * g.channels + first, n, from);
            add_run_slopes(sums + first, sums + g.channels + first, dy, x, mean_at(&a->norm_dw.mean, item), istd[item],
                           n);
        }
}

int k_cpu_norm_dw_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit;
    return prepare_sums(a, &a->norm_dw.x, state, workspace, e);
}

int k_cpu_norm_dw(const KArgs *a, Err *e) {
    bool batch = a->attr->norm.groups == 0;
    int64_t channels = norm_channels(a, &a->norm_dw.x);
    SlabFn *slab = batch_slab;
    assert(a->norm_dw.dy.count == a->norm_dw.x.count && operand_is_vector(&a->norm_dw.mean, a->norm_dw.istd.count));
    assert(operand_is_vector(&a->norm_dw.dw, channels) && operand_is_vector(&a->norm_dw.db, channels));
    assert(!batch || (a->norm_dw.mean.data && a->norm_dw.istd.count == channels));
    if (!batch) {
        const Groups g = groups_of(a, &a->norm_dw.x, &a->norm_dw.istd);
        slab = norm_by_columns(&g) ? norm_dw_columns : group_slab;
    }
    const double *sums = slabs_run(a, a->norm_dw.x.count / channels, channels, slab);
    float *dw = a->norm_dw.dw.data, *db = a->norm_dw.db.data;
    (void)e;
    for (int64_t c = 0; c < channels; c++) {
        dw[c] = (float)(batch ? sums[c] * (double)((const float *)a->norm_dw.istd.data)[c] : sums[c]);
        if (db) db[c] = (float)sums[channels + c];
    }
    return OK;
}
