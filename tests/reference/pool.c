#include <math.h>

#include "reference.h"

/* A pixel (h, w) of the image under position (i, j) of the window of output pixel (oh, ow). */
typedef struct Place { int64_t h, w; bool inside; } Place;

static Place place(const PoolAttr *p, const Tensor *image, int64_t oh, int64_t ow, int64_t i, int64_t j) {
    Place at = {oh * p->stride[0] - p->pad[0] + i * p->dilation[0], ow * p->stride[1] - p->pad[1] + j * p->dilation[1],
                false};
    at.inside = at.h >= 0 && at.h < image->shape.dim[2] && at.w >= 0 && at.w < image->shape.dim[3];
    return at;
}

/* every (n, c, h, w) of tensor t */
#define EACH_PIXEL(t)                                             \
    for (int64_t n = 0; n < (t)->shape.dim[0]; n++)               \
        for (int64_t c = 0; c < (t)->shape.dim[1]; c++)           \
            for (int64_t oh = 0; oh < (t)->shape.dim[2]; oh++)    \
                for (int64_t ow = 0; ow < (t)->shape.dim[3]; ow++)

void ref_maxpool(Ref *r) {
    const PoolAttr *p = &r->attr->pool;
    const Tensor *x = &r->maxpool.x, *y = &r->maxpool.y, *idx = &r->maxpool.idx;
    EACH_PIXEL(y) {
        double best = -INFINITY;
        int64_t where = -1;
        for (int64_t i = 0; i < p->kernel[0]; i++)
            for (int64_t j = 0; j < p->kernel[1]; j++) {
                Place at = place(p, x, oh, ow, i, j);
                if (!at.inside) continue;
                double value = *pixel4(x, n, c, at.h, at.w);
                if (p->fused.act == ACT_RELU && value < 0) value = 0;
                if (where >= 0 && !(value > best) && !isnan(value)) continue;
                best = value;
                where = i * p->kernel[1] + j;
            }
        *pixel4(y, n, c, oh, ow) = best;
        if (idx->at) *pixel4(idx, n, c, oh, ow) = (double)where;
    }
}

void ref_maxpool_dx(Ref *r) {
    const PoolAttr *p = &r->attr->pool;
    const Tensor *dy = &r->maxpool_dx.dy, *idx = &r->maxpool_dx.idx, *dx = &r->maxpool_dx.dx;
    for (int64_t i = 0; i < dx->count; i++) dx->at[i] = 0;
    EACH_PIXEL(dy) {
        int64_t where = (int64_t)*pixel4(idx, n, c, oh, ow);
        Place at = place(p, dx, oh, ow, where / p->kernel[1], where % p->kernel[1]);
        *pixel4(dx, n, c, at.h, at.w) += *pixel4(dy, n, c, oh, ow);
    }
}

/* The number of positions of the window that the mean is over. If padding counts, these are all positions in the padded
 * image; a window that ceil_mode adds may reach beyond it. */
static double divisor(const PoolAttr *p, const Tensor *image, int64_t oh, int64_t ow) {
    int64_t count = 0;
    if (p->divisor) return p->divisor;
    for (int64_t i = 0; i < p->kernel[0]; i++)
        for (int64_t j = 0; j < p->kernel[1]; j++) {
            Place at = place(p, image, oh, ow, i, j);
            bool padded = at.h < image->shape.dim[2] + p->pad[0] && at.w < image->shape.dim[3] + p->pad[1];
            count += p->count_include_pad ? padded : at.inside;
        }
    return (double)count;
}

void ref_avgpool(Ref *r) {
    const PoolAttr *p = &r->attr->pool;
    const Tensor *x = &r->avgpool.x, *y = &r->avgpool.y;
    EACH_PIXEL(y) {
        double sum = 0;
        for (int64_t i = 0; i < p->kernel[0]; i++)
            for (int64_t j = 0; j < p->kernel[1]; j++) {
                Place at = place(p, x, oh, ow, i, j);
                if (at.inside) sum += *pixel4(x, n, c, at.h, at.w);
            }
        *pixel4(y, n, c, oh, ow) = sum / divisor(p, x, oh, ow);
    }
}

void ref_avgpool_dx(Ref *r) {
    const PoolAttr *p = &r->attr->pool;
    const Tensor *dy = &r->avgpool_dx.dy, *dx = &r->avgpool_dx.dx;
    for (int64_t i = 0; i < dx->count; i++) dx->at[i] = 0;
    EACH_PIXEL(dy)
        for (int64_t i = 0; i < p->kernel[0]; i++)
            for (int64_t j = 0; j < p->kernel[1]; j++) {
                Place at = place(p, dx, oh, ow, i, j);
                if (at.inside) *pixel4(dx, n, c, at.h, at.w) += *pixel4(dy, n, c, oh, ow) / divisor(p, dx, oh, ow);
            }
}

/* Cell i of `out` covers [floor(i in / out), ceil((i + 1) in / out)). */
static int64_t cell_start(int64_t i, int64_t in, int64_t out) { return (int64_t)floor((double)(i * in) / (double)out); }
static int64_t cell_end(int64_t i, int64_t in, int64_t out) {
    return (int64_t)ceil((double)((i + 1) * in) / (double)out);
}

static void adaptive(const Tensor *image, const Tensor *cells, bool backward) {
    int64_t H = image->shape.dim[2], W = image->shape.dim[3], OH = cells->shape.dim[2], OW = cells->shape.dim[3];
    EACH_PIXEL(cells) {
        int64_t top = cell_start(oh, H, OH), bottom = cell_end(oh, H, OH);
        int64_t left = cell_start(ow, W, OW), right = cell_end(ow, W, OW);
        double *cell = pixel4(cells, n, c, oh, ow), size = (double)((bottom - top) * (right - left));
        if (!backward) *cell = 0;
        for (int64_t h = top; h < bottom; h++)
            for (int64_t w = left; w < right; w++) {
                if (backward) *pixel4(image, n, c, h, w) += *cell / size;
                else *cell += *pixel4(image, n, c, h, w) / size;
            }
    }
}

void ref_adaptive_avgpool(Ref *r) { adaptive(&r->adaptive_avgpool.x, &r->adaptive_avgpool.y, false); }

void ref_adaptive_avgpool_dx(Ref *r) {
    for (int64_t i = 0; i < r->adaptive_avgpool_dx.dx.count; i++) r->adaptive_avgpool_dx.dx.at[i] = 0;
    adaptive(&r->adaptive_avgpool_dx.dx, &r->adaptive_avgpool_dx.dy, true);
}
