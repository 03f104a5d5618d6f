/* norm_columns.c: normalisation of images by groups of a few channels (GroupNorm, InstanceNorm). Channels side by side
 * make a tile; they are summed over rows, and these sums by group. */
#include <math.h>
#include <string.h>

#include "norm_parts.h"

bool norm_by_columns(const Groups *g) {
    return g->rows > 1 && (g->channels <= TILE_COLS || TILE_COLS % g->size == 0);
}

/* An item: rows [row, end) of a sample, and its channels [first, first + n), which are whole groups. item: the number
 * of the first group among all samples' */
typedef struct Columns { int64_t row, end, first, n, item; } Columns;

int64_t norm_column_blocks(const Groups *g) { return div_up(g->channels, TILE_COLS); }

static Columns columns_of(const Groups *g, int64_t item) {
    assert(norm_by_columns(g));
    int64_t sample = item / norm_column_blocks(g), first = item % norm_column_blocks(g) * TILE_COLS;
    return (Columns){sample * g->rows, (sample + 1) * g->rows, first, min_i64(TILE_COLS, g->channels - first),
                     sample * g->groups + first / g->size};
}

/* The tiles of the columns c, one after the other in t */
#define EACH_TILE(t, g, c)                                                                          \
    for (bool more = tile_start_at(&(t), (g)->channels, (c)->first, (c)->row, (c)->end); more;      \
         more = tile_next(&(t), (c)->row, (c)->end) && (t).first == (c)->first)

/* to[n]: for each channel the statistic of its group; `absent` if there is no such statistic */
static void broadcast(const View *v, const Groups *g, const Columns *c, float absent, float *to) {
    const float *stat = v->data;
    for (int64_t i = 0; i < c->n; i++) to[i] = stat ? stat[c->item + i / g->size] : absent;
}

/* y = (x - mean) scale + shift, each per channel */
HOT static void centre_tile(float *y, int64_t to, const float *x, int64_t from, const float *mean, const float *scale,
                            const float *shift, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * from;
        float *out = y + r * to;
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) out[c] = (in[c] - mean[c]) * scale[c] + shift[c];
    }
}

static void columns_statistics(const KArgs *a, const Groups *g, const Columns *c) {
    double sums[2 * TILE_COLS] = {0}, count = (double)(g->rows * g->size);
    float scratch[BLOCK], *mean_to = a->norm.mean.data, *istd_to = a->norm.istd.data;
    int64_t stride;
    Tile t;
    EACH_TILE(t, g, c) {
        const float *x = tile_load(&a->norm.x, &t, scratch, &stride);
        add_squares(sums, sums + TILE_COLS, x, stride, t.rows, t.cols);
    }
    for (int64_t group = 0; group < c->n / g->size; group++) {
        double sum = 0, squares = 0;
        for (int64_t i = group * g->size; i < (group + 1) * g->size; i++) {
            sum += sums[i];
            squares += sums[TILE_COLS + i];
        }
        double mean = mean_to ? sum / count : 0, var = squares / count - mean * mean;
        if (var < 0) var = 0; /* a NaN stays */
        if (mean_to) mean_to[c->item + group] = (float)mean;
        istd_to[c->item + group] = (float)(1 / sqrt(var + (double)a->attr->norm.eps));
    }
}

void norm_columns(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK], to[BLOCK], mean[TILE_COLS], scale[TILE_COLS], shift[TILE_COLS];
    const Groups g = groups_of(a, &a->norm.x, &a->norm.istd);
    int64_t x_stride, y_stride;
    for (int64_t item = begin; item < end; item++) {
        const Columns c = columns_of(&g, item);
        Tile t;
        columns_statistics(a, &g, &c);
        broadcast(&a->norm.mean, &g, &c, 0, mean);
        broadcast(&a->norm.istd, &g, &c, 1, scale);
        for (int64_t i = 0; i < c.n; i++) {
            if (a->norm.w.data) scale[i] *= ((const float *)a->norm.w.data)[c.first + i];
            shift[i] = a->norm.b.data ? ((const float *)a->norm.b.data)[c.first + i] : 0;
        }
        EACH_TILE(t, &g, &c) {
            const float *x = tile_load(&a->norm.x, &t, from, &x_stride);
            float *y = tile_target(&a->norm.y, &t, to, &y_stride);
            centre_tile(y, y_stride, x, x_stride, mean, scale, shift, t.rows, t.cols);
            tile_store(&a->norm.y, &t, y);
        }
    }
}

/* ---- backward */

/* Sums over rows of dy (x - mean) and of dy, per channel: sums[2][TILE_COLS] */
static void columns_slopes(const KArgs *a, const Groups *g, const Columns *c, const float *mean, double *sums) {
    float gradient[BLOCK], from[BLOCK];
    int64_t dy_stride, x_stride;
    Tile t;
    memset(sums, 0, 2 * TILE_COLS * sizeof *sums);
    EACH_TILE(t, g, c) {
        const float *dy = tile_load(&a->norm_dx.dy, &t, gradient, &dy_stride);
        const float *x = tile_load(&a->norm_dx.x, &t, from, &x_stride);
        add_slopes(sums, sums + TILE_COLS, dy, dy_stride, x, x_stride, mean, t.rows, t.cols);
    }
}

/* dx = dy k + (x - mean) slope + shift per channel, as in batch normalisation: coef[3][TILE_COLS] */
static void columns_coefficients(const KArgs *a, const Groups *g, const Columns *c, const double *sums, float *coef) {
    double count = (double)(g->rows * g->size);
    load_param(&a->norm_dx.w, c->first, c->n, 1, coef);
    for (int64_t first = 0; first < c->n; first += g->size) {
        double plain = 0, centred = 0, istd = (double)((const float *)a->norm_dx.istd.data)[c->item + first / g->size];
        for (int64_t i = first; i < first + g->size; i++) {
            centred += (double)coef[i] * sums[i];
            plain += a->norm_dx.mean.data ? (double)coef[i] * sums[TILE_COLS + i] : 0;
        }
        for (int64_t i = first; i < first + g->size; i++) {
            coef[i] *= (float)istd;
            coef[TILE_COLS + i] = (float)(-istd * istd * istd * centred / count);
            coef[2 * TILE_COLS + i] = (float)(-istd * plain / count);
        }
    }
}

void norm_dx_columns(const KArgs *a, int64_t begin, int64_t end) {
    float gradient[BLOCK], from[BLOCK], to[BLOCK], mean[TILE_COLS], coef[3 * TILE_COLS];
    double sums[2 * TILE_COLS];
    const Groups g = groups_of(a, &a->norm_dx.x, &a->norm_dx.istd);
    int64_t dy_stride, x_stride, dx_stride;
    for (int64_t item = begin; item < end; item++) {
        const Columns c = columns_of(&g, item);
        Tile t;
        broadcast(&a->norm_dx.mean, &g, &c, 0, mean);
        columns_slopes(a, &g, &c, mean, sums);
        columns_coefficients(a, &g, &c, sums, coef);
        EACH_TILE(t, &g, &c) {
            const float *dy = tile_load(&a->norm_dx.dy, &t, gradient, &dy_stride);
            const float *x = tile_load(&a->norm_dx.x, &t, from, &x_stride);
            float *dx = tile_target(&a->norm_dx.dx, &t, to, &dx_stride);
            batch_dx_tile(dx, dx_stride, dy, dy_stride, x, x_stride, mean, coef, t.rows, t.cols);
            tile_store(&a->norm_dx.dx, &t, dx);
        }
    }
}

/* A slab may begin and end within samples: of each sample it takes the rows that it has. */
void norm_dw_columns(const KArgs *a, int64_t begin, int64_t end, double *sums) {
    const Groups g = groups_of(a, &a->norm_dw.x, &a->norm_dw.istd);
    float mean[TILE_COLS], istd[TILE_COLS];
    double part[2 * TILE_COLS];
    int64_t blocks = norm_column_blocks(&g), last = ((end - 1) / g.rows + 1) * blocks;
    for (int64_t item = begin / g.rows * blocks; item < last; item++) {
        Columns c = columns_of(&g, item);
        c.row = max_i64(c.row, begin);
        c.end = min_i64(c.end, end);
        broadcast(&a->norm_dw.mean, &g, &c, 0, mean);
        broadcast(&a->norm_dw.istd, &g, &c, 1, istd);
        columns_slopes(a, &g, &c, mean, part);
        for (int64_t i = 0; i < c.n; i++) {
            sums[c.first + i] += part[i] * (double)istd[i];
            sums[g.channels + c.first + i] += part[TILE_COLS + i];
        }
    }
}
