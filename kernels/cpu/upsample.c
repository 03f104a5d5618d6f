/* upsample.c: images (N, C, H, W) stored channels-last at a larger size. An output pixel is made of at most two rows
 * and two columns of the input (core/pointwise.h says of which); the gradient gathers, pixel by pixel, what it had a
 * share in. */
#include <string.h>

#include "loops.h"

enum { PART = 512 };

HOT static void add_share(float *sum, const float *x, float share, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += share * x[i];
}

static int64_t pixel(const View *v, int64_t image, int64_t h, int64_t w, int64_t c) {
    return ((image * v->shape.dim[2] + h) * v->shape.dim[3] + w) * v->shape.dim[1] + c;
}

static void upsample_pixel(const KArgs *a, int64_t row, int64_t w, int64_t c, int64_t n) {
    const UpsampleAttr *u = &a->attr->upsample;
    const View *x = &a->in[0], *y = &a->out[0];
    int64_t image = row / y->shape.dim[2], h = row % y->shape.dim[2];
    Sample down = upsample_sample(u, 0, h, x->shape.dim[2], y->shape.dim[2]);
    Sample across = upsample_sample(u, 1, w, x->shape.dim[3], y->shape.dim[3]);
    float sum[PART], from[PART];
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            float share = down.share[i] * across.share[j];
            int64_t at = pixel(x, image, down.at[i], across.at[j], c);
            if (share != 0) add_share(sum, block_load(x, at, n, from), share, n);
        }
    block_store(y, pixel(y, image, h, w, c), n, sum);
}

/* The share that input element i has in output element o along an axis. */
static float share_of(Sample s, int64_t i) { return (s.at[0] == i ? s.share[0] : 0) + (s.at[1] == i ? s.share[1] : 0); }

static void upsample_dx_pixel(const KArgs *a, int64_t row, int64_t w, int64_t c, int64_t n) {
    const UpsampleAttr *u = &a->attr->upsample;
    const View *dy = &a->in[0], *dx = &a->out[0];
    int64_t H = dx->shape.dim[2], W = dx->shape.dim[3], OH = dy->shape.dim[2], OW = dy->shape.dim[3];
    int64_t image = row / H, h = row % H;
    Reach down = upsample_reach(u, 0, h, H, OH), across = upsample_reach(u, 1, w, W, OW);
    float sum[PART], from[PART];
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t i = down.lo; i < down.hi; i++) {
        float share = share_of(upsample_sample(u, 0, i, H, OH), h);
        for (int64_t j = across.lo; share != 0 && j < across.hi; j++) {
            float part = share * share_of(upsample_sample(u, 1, j, W, OW), w);
            if (part != 0) add_share(sum, block_load(dy, pixel(dy, image, i, j, c), n, from), part, n);
        }
    }
    block_store(dx, pixel(dx, image, h, w, c), n, sum);
}

/* Items are rows of pixels, counted over all images. */
static void rows_piece(const KArgs *a, int64_t begin, int64_t end) {
    int64_t W = a->out[0].shape.dim[3], C = a->out[0].shape.dim[1];
    for (int64_t row = begin; row < end; row++)
        for (int64_t w = 0; w < W; w++)
            for (int64_t c = 0; c < C; c += PART)
                (a->kind == OP_upsample ? upsample_pixel : upsample_dx_pixel)(a, row, w, c, min_i64(PART, C - c));
}

int k_cpu_upsample(const KArgs *a, Err *e) {
    if (!a->in[0].channels_last || !a->out[0].channels_last || a->in[0].shape.rank != 4)
        return err_set(e, ERR_INTERNAL, "%s: operands must be channels-last images (N, C, H, W)",
                       op_info(a->kind)->name);
    range_run(a, a->out[0].shape.dim[0] * a->out[0].shape.dim[2], 1, rows_piece);
    return OK;
}

int k_cpu_upsample_dx(const KArgs *a, Err *e) { return k_cpu_upsample(a, e); }
