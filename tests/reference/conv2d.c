#include "ref_conv.h"

#include <string.h>

static int64_t extent(int64_t size, int64_t pads, int64_t kernel, int64_t stride, int64_t dilation) {
    return (size + pads - dilation * (kernel - 1) - 1) / stride + 1;
}

int64_t ref_conv_oh(const RefConv *d) {
    return extent(d->h, d->pad[0] + d->pad[2], d->kh, d->stride[0], d->dilation[0]);
}

int64_t ref_conv_ow(const RefConv *d) {
    return extent(d->w, d->pad[1] + d->pad[3], d->kw, d->stride[1], d->dilation[1]);
}

/* Called with each row of products y[y_at + k] += x[x_at + k * step] w[w_at], k < count; the op and its gradients differ only in
 * which of the three they add to. */
typedef void Visit(double *restrict out, const double *a, const double *b, int64_t x_at, int64_t step, int64_t w_at, int64_t y_at,
                   int64_t count);

/* The first of 0, step, 2 * step... that is `least` or more, as its number */
static int64_t first_at(int64_t least, int64_t step) { return least <= 0 ? 0 : (least + step - 1) / step; }

static inline void every_window(double *out, const double *a, const double *b, const RefConv *d, int64_t n, int64_t o,
                                int64_t i, Visit *visit) {
    const int64_t oh = ref_conv_oh(d), ow = ref_conv_ow(d), per_group = d->c / d->groups, step = d->stride[1];
    const int64_t c = o / (d->o / d->groups) * per_group + i;
    for (int64_t p = 0; p < d->kh; p++)
        for (int64_t q = 0; q < d->kw; q++) {
            const int64_t left = d->pad[1] - q * d->dilation[1], begin = first_at(left, step), end = first_at(left + d->w, step);
            const int64_t count = (end < ow ? end : ow) - begin;
            for (int64_t r = 0; r < oh && count > 0; r++) {
                const int64_t row = r * d->stride[0] - d->pad[0] + p * d->dilation[0];
                if (row < 0 || row >= d->h) continue;
                visit(out, a, b, ((n * d->c + c) * d->h + row) * d->w + begin * step - left, step,
                      ((o * per_group + i) * d->kh + p) * d->kw + q, ((n * d->o + o) * oh + r) * ow + begin, count);
            }
        }
}

static inline void every_product(double *out, const double *a, const double *b, const RefConv *d, Visit *visit) {
    for (int64_t n = 0; n < d->n; n++)
        for (int64_t o = 0; o < d->o; o++)
            for (int64_t i = 0; i < d->c / d->groups; i++) every_window(out, a, b, d, n, o, i, visit);
}

static void add_y(double *restrict y, const double *x, const double *w, int64_t x_at, int64_t step, int64_t w_at, int64_t y_at,
                  int64_t count) {
    for (int64_t k = 0; k < count; k++) y[y_at + k] += x[x_at + k * step] * w[w_at];
}

static void add_dx(double *restrict dx, const double *dy, const double *w, int64_t x_at, int64_t step, int64_t w_at, int64_t y_at,
                   int64_t count) {
    for (int64_t k = 0; k < count; k++) dx[x_at + k * step] += dy[y_at + k] * w[w_at];
}

static void add_dw(double *restrict dw, const double *x, const double *dy, int64_t x_at, int64_t step, int64_t w_at, int64_t y_at,
                   int64_t count) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < count; k++) sum += x[x_at + k * step] * dy[y_at + k];
    dw[w_at] += sum;
}

void ref_conv2d(double *y, const double *x, const double *w, const double *b, const RefConv *d) {
    int64_t area = ref_conv_oh(d) * ref_conv_ow(d);
    for (int64_t i = 0; i < d->n * d->o * area; i++) y[i] = b ? b[i / area % d->o] : 0.0;
    every_product(y, x, w, d, add_y);
}

void ref_conv2d_dx(double *dx, const double *dy, const double *w, const RefConv *d) {
    memset(dx, 0, (size_t)(d->n * d->c * d->h * d->w) * sizeof *dx);
    every_product(dx, dy, w, d, add_dx);
}

void ref_conv2d_dw(double *dw, double *db, const double *x, const double *dy, const RefConv *d) {
    int64_t area = ref_conv_oh(d) * ref_conv_ow(d);
    memset(dw, 0, (size_t)(d->o * (d->c / d->groups) * d->kh * d->kw) * sizeof *dw);
    every_product(dw, x, dy, d, add_dw);
    if (!db) return;
    memset(db, 0, (size_t)d->o * sizeof *db);
    for (int64_t i = 0; i < d->n * d->o * area; i++) db[i / area % d->o] += dy[i];
}
