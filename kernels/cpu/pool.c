/* pool.c: pooling over channels-last images, all channels of a pixel at a time.
 *
 * Both directions gather: a backward pass writes every dx once, from the windows that hold it, so overlapping windows
 * need neither zeroing nor atomics, 16-bit gradients are summed in fp32, and the order of the sum is fixed. */
#include <string.h>

#include "loops.h"
#include "window.h"

enum { PART = 512 }; /* channels at a time, so that their fp32 values stay in the first-level cache */

/* best, at = the larger of itself and x, and its window position; a NaN wins */
HOT static void max_part(float *best, int32_t *at, const float *x, int32_t position, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        int wins = (x[i] > best[i]) | (x[i] != x[i]);
        best[i] = wins ? x[i] : best[i];
        at[i] = wins ? position : at[i];
    }
}

/* sum += dy where the window's maximum was at this position */
HOT static void pick_part(float *sum, const float *dy, const uint8_t *idx, int32_t position, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += idx[i] == position ? dy[i] : 0.0f;
}

HOT static void sum_part(float *sum, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

HOT static void sum_divided_part(float *sum, const float *x, float divisor, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += x[i] / divisor;
}

HOT static void divide_part(float *sum, float divisor, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] /= divisor;
}

static void fill_part(float *to, float value, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = value;
}

/* First element of channel c of the pixel (row, w); row = n H + h counts the rows of all samples. */
static int64_t pixel(const View *v, int64_t row, int64_t w, int64_t c) {
    return (row * v->shape.dim[3] + w) * v->shape.dim[1] + c;
}

static int images_check(const KArgs *a, Err *e) {
    if (a->in[0].channels_last && a->out[0].channels_last && a->in[0].shape.rank == 4) return OK;
    return err_set(e, ERR_INTERNAL, "%s: operands must be channels-last images (N, C, H, W)", op_info(a->kind)->name);
}

/* Pieces are the output's rows of pixels, counted over all samples. */
static int rows_run(const KArgs *a, RangeFn *piece, Err *e) {
    int rc = images_check(a, e);
    if (rc == OK) range_run(a, a->out[0].shape.dim[0] * a->out[0].shape.dim[2], 1, piece);
    return rc;
}

/* ---- the largest of a window */

static void maxpool_pixel(const KArgs *a, int64_t row, int64_t ow, int64_t c, int64_t n) {
    const PoolAttr *p = &a->attr->pool;
    const View *x = &a->in[0], *y = &a->out[0];
    int64_t H = x->shape.dim[2], W = x->shape.dim[3], image = row / y->shape.dim[2], oh = row % y->shape.dim[2];
    float best[PART], from[PART];
    int32_t at[PART];
    fill_part(best, p->fused.act == ACT_RELU ? 0 : -INFINITY, n); /* a ReLU's 0 takes part */
    memset(at, 0, (size_t)n * sizeof *at);
    for (int32_t k = 0, first = 1; k < p->kernel[0] * p->kernel[1]; k++) {
        int64_t h = oh * p->stride[0] - p->pad[0] + k / p->kernel[1] * p->dilation[0];
        int64_t w = ow * p->stride[1] - p->pad[1] + k % p->kernel[1] * p->dilation[1];
        if (h < 0 || h >= H || w < 0 || w >= W) continue;
        if (first) for (int64_t i = 0; i < n; i++) at[i] = k; /* the place of what nothing is larger than */
        first = 0;
        max_part(best, at, block_load(x, pixel(x, image * H + h, w, c), n, from), k, n);
    }
    int64_t to = pixel(y, row, ow, c);
    block_store(y, to, n, best);
    uint8_t *idx = a->out[1].data;
    if (idx) for (int64_t i = 0; i < n; i++) idx[to + i] = (uint8_t)at[i];
}

/* The window along one axis that has input element i at position k, or -1. */
static int64_t window_with(const PoolAttr *p, int axis, int64_t i, int32_t k, int64_t out) {
    int64_t start = i + p->pad[axis] - (int64_t)k * p->dilation[axis], o = start / p->stride[axis];
    return start >= 0 && o * p->stride[axis] == start && o < out ? o : -1;
}

static void maxpool_dx_pixel(const KArgs *a, int64_t row, int64_t w, int64_t c, int64_t n) {
    const PoolAttr *p = &a->attr->pool;
    const View *dy = &a->in[0], *dx = &a->out[0];
    int64_t OH = dy->shape.dim[2], OW = dy->shape.dim[3], image = row / dx->shape.dim[2], h = row % dx->shape.dim[2];
    float sum[PART], from[PART];
    fill_part(sum, 0, n);
    for (int32_t i = 0; i < p->kernel[0]; i++) {
        int64_t oh = window_with(p, 0, h, i, OH);
        for (int32_t j = 0; oh >= 0 && j < p->kernel[1]; j++) {
            int64_t ow = window_with(p, 1, w, j, OW);
            if (ow < 0) continue;
            int64_t at = pixel(dy, image * OH + oh, ow, c);
            pick_part(sum, block_load(dy, at, n, from), (const uint8_t *)a->in[1].data + at, i * p->kernel[1] + j, n);
        }
    }
    block_store(dx, pixel(dx, row, w, c), n, sum);
}

/* ---- the mean of a window */

static void mean_pixel(const KArgs *a, const PoolAttr *p, int64_t row, int64_t ow, int64_t c, int64_t n) {
    const View *x = &a->in[0], *y = &a->out[0];
    int64_t H = x->shape.dim[2], OH = y->shape.dim[2], image = row / OH;
    Span h = span_of(p, 0, row % OH, H, OH), w = span_of(p, 1, ow, x->shape.dim[3], y->shape.dim[3]);
    float sum[PART], from[PART];
    fill_part(sum, 0, n);
    for (int64_t i = h.lo; i < h.hi; i++)
        for (int64_t j = w.lo; j < w.hi; j++) sum_part(sum, block_load(x, pixel(x, image * H + i, j, c), n, from), n);
    if (h.lo < h.hi && w.lo < w.hi) divide_part(sum, divisor_of(p, h, w), n);
    block_store(y, pixel(y, row, ow, c), n, sum);
}

static void mean_dx_pixel(const KArgs *a, const PoolAttr *p, int64_t row, int64_t w, int64_t c, int64_t n) {
    const View *dy = &a->in[0], *dx = &a->out[0];
    int64_t OH = dy->shape.dim[2], OW = dy->shape.dim[3], H = dx->shape.dim[2], W = dx->shape.dim[3], image = row / H;
    Span in_h = windows_of(p, 0, row % H, H, OH), in_w = windows_of(p, 1, w, W, OW);
    float sum[PART], from[PART];
    fill_part(sum, 0, n);
    for (int64_t i = in_h.lo; i < in_h.hi; i++)
        for (int64_t j = in_w.lo; j < in_w.hi; j++) {
            float divisor = divisor_of(p, span_of(p, 0, i, H, OH), span_of(p, 1, j, W, OW));
            sum_divided_part(sum, block_load(dy, pixel(dy, image * OH + i, j, c), n, from), divisor, n);
        }
    block_store(dx, pixel(dx, row, w, c), n, sum);
}

static const PoolAttr *window_attr(const KArgs *a) {
    return a->kind == OP_avgpool || a->kind == OP_avgpool_dx ? &a->attr->pool : NULL;
}

/* ---- rows of pixels, channels in parts */

#define EACH_PIXEL(name, call)                                                     \
    static void name(const KArgs *a, int64_t begin, int64_t end) {                 \
        int64_t W = a->out[0].shape.dim[3], C = a->out[0].shape.dim[1];            \
        for (int64_t row = begin; row < end; row++)                                \
            for (int64_t w = 0; w < W; w++)                                        \
                for (int64_t c = 0; c < C; c += PART) {                            \
                    int64_t n = min_i64(PART, C - c);                              \
                    call;                                                          \
                }                                                                  \
    }
EACH_PIXEL(maxpool_rows, maxpool_pixel(a, row, w, c, n))
EACH_PIXEL(maxpool_dx_rows, maxpool_dx_pixel(a, row, w, c, n))
EACH_PIXEL(mean_rows, mean_pixel(a, window_attr(a), row, w, c, n))
EACH_PIXEL(mean_dx_rows, mean_dx_pixel(a, window_attr(a), row, w, c, n))

int k_cpu_maxpool(const KArgs *a, Err *e) {
    const int32_t *kernel = a->attr->pool.kernel;
    if (a->out[1].data && (int64_t)kernel[0] * kernel[1] > 256)
        return err_set(e, ERR_UNSUPPORTED,
                       "maxpool: a window of %d x %d has positions that do not fit in a byte; at most 256 do",
                       (int)kernel[0], (int)kernel[1]);
    return rows_run(a, maxpool_rows, e);
}

int k_cpu_maxpool_dx(const KArgs *a, Err *e) { return rows_run(a, maxpool_dx_rows, e); }
int k_cpu_avgpool(const KArgs *a, Err *e) { return rows_run(a, mean_rows, e); }
int k_cpu_avgpool_dx(const KArgs *a, Err *e) { return rows_run(a, mean_dx_rows, e); }
int k_cpu_adaptive_avgpool(const KArgs *a, Err *e) { return rows_run(a, mean_rows, e); }
int k_cpu_adaptive_avgpool_dx(const KArgs *a, Err *e) { return rows_run(a, mean_dx_rows, e); }
