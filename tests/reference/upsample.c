#include <math.h>

#include "reference.h"

/* The position of output element o on the axis of the input. */
static double place(const UpsampleAttr *u, int axis, int64_t o, int64_t in, int64_t out) {
    if (in == out) return (double)o;
    if (u->align_corners || !u->bilinear) return (double)o * u->scale[axis];
    return fmax((o + 0.5) * u->scale[axis] - 0.5, 0);
}

/* The share of input element i in output element o. Bilinear: it falls linearly from 1 at distance 0 to 0 at distance
 * 1. Nearest: 1 for the element that the position is in. Beyond the last element the last one counts. */
static double share(const UpsampleAttr *u, int axis, int64_t i, int64_t o, int64_t in, int64_t out) {
    double at = fmin(place(u, axis, o, in, out), u->bilinear ? (double)(in - 1) : INFINITY);
    if (u->bilinear) return fmax(0, 1 - fabs(at - (double)i));
    return fmin(floor(at), (double)(in - 1)) == (double)i;
}

/* Adds the part that pixel (h, w) of the large images has of pixel (i, j) of the small ones, or the other way round. */
static void add_part(double part, Tensor *small, int64_t i, int64_t j, Tensor *large, int64_t h, int64_t w, bool backward) {
    for (int64_t n = 0; n < small->shape.dim[0]; n++)
        for (int64_t c = 0; c < small->shape.dim[1]; c++) {
            double *at[2] = {pixel4(small, n, c, i, j), pixel4(large, n, c, h, w)};
            *at[!backward] += part * *at[backward];
        }
}

static void upsample(const UpsampleAttr *u, Tensor *small, Tensor *large, bool backward) {
    const int64_t *s = small->shape.dim, *l = large->shape.dim;
    Tensor *to = backward ? small : large;
    for (int64_t i = 0; i < to->count; i++) to->at[i] = 0;
    for (int64_t h = 0; h < l[2]; h++)
        for (int64_t w = 0; w < l[3]; w++)
            for (int64_t i = 0; i < s[2]; i++)
                for (int64_t j = 0; j < s[3]; j++) {
                    const double part = share(u, 0, i, h, s[2], l[2]) * share(u, 1, j, w, s[3], l[3]);
                    if (part != 0) add_part(part, small, i, j, large, h, w, backward);
                }
}

void ref_upsample(Ref *r) { upsample(&r->attr->upsample, &r->upsample.x, &r->upsample.y, false); }
void ref_upsample_dx(Ref *r) { upsample(&r->attr->upsample, &r->upsample_dx.dx, &r->upsample_dx.dy, true); }
