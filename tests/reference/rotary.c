#include <math.h>

#include "reference.h"

void ref_rotary(Ref *r) {
    const RotaryAttr *a = &r->attr->rotary;
    const int64_t *d = r->rotary.x.shape.dim, far = a->interleaved ? 1 : a->dim / 2;
    for (int64_t begin = 0; begin < r->rotary.x.count; begin += a->dim) { /* heads, all of a step, all of a sample */
        const int64_t row = begin / d[2];
        const double *x = &r->rotary.x.at[begin], t = r->rotary.positions.at ? r->rotary.positions.at[row] : (double)(row % d[1]);
        double *y = &r->rotary.y.at[begin];
        for (int64_t i = 0; i < a->dim / 2; i++) {
            const int64_t one = a->interleaved ? 2 * i : i, two = one + far;
            const double angle = (a->back ? -t : t) * pow(a->base, -2.0 * (double)i / a->dim);
            y[one] = x[one] * cos(angle) - x[two] * sin(angle);
            y[two] = x[two] * cos(angle) + x[one] * sin(angle);
        }
    }
}
