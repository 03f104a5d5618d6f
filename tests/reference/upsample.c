#include <math.h>

#include "reference.h"

/* The place of output element o among the input's elements */
static double place(const UpsampleAttr *u, int axis, int64_t o, int64_t in, int64_t out) {
    if (in == out) return (double)o;
    if (u->align_corners || !u->bilinear) return (double)o * u->scale[axis];
    return fmax((o + 0.5) * u->scale[axis] - 0.5, 0);
}

/* The share of input element i in output element o. bilinear: a hat of height 1 around the place; nearest: 1 for the
 * element that holds the place. A place after the last element counts as the last one. */
static double share(const UpsampleAttr *u, int axis, int64_t i, int64_t o, int64_t in, int64_t out) {
    double at = fmin(place(u, axis, o, in, out), u->bilinear ? (double)(in - 1) : INFINITY);
    if (u->bilinear) return fmax(0, 1 - fabs(at - (double)i));
    return fmin(floor(at), (double)(in - 1)) == (double)i;
}

static void upsample(const UpsampleAttr *u, Tensor *small, Tensor *large, bool backward) {
    const int64_t *s = small->shape.dim, *l = large->shape.dim;
    Tensor *to = backward ? small : large;
    for (int64_t i = 0; i < to->count; i++) to->at[i] = 0;
    for (int64_t n = 0; n < s[0]; n++)
        for (int64_t c = 0; c < s[1]; c++)
            for (int64_t h = 0; h < l[2]; h++)
                for (int64_t w = 0; w < l[3]; w++)
                    for (int64_t i = 0; i < s[2]; i++)
                        for (int64_t j = 0; j < s[3]; j++) {
                            double part = share(u, 0, i, h, s[2], l[2]) * share(u, 1, j, w, s[3], l[3]);
                            if (backward) *pixel4(small, n, c, i, j) += part * *pixel4(large, n, c, h, w);
                            else *pixel4(large, n, c, h, w) += part * *pixel4(small, n, c, i, j);
                        }
}

void ref_upsample(Ref *r) { upsample(&r->attr->upsample, &r->upsample.x, &r->upsample.y, false); }
void ref_upsample_dx(Ref *r) { upsample(&r->attr->upsample, &r->upsample_dx.dx, &r->upsample_dx.dy, true); }
