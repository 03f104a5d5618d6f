#include <math.h>

#include "reference.h"

/* The first element of line `k` along the axis; *stride: how far apart its elements are */
static double *line(const Tensor *t, int axis, int64_t k, int64_t *stride) {
    *stride = 1;
    for (int d = axis + 1; d < t->shape.rank; d++) *stride *= t->shape.dim[d];
    return &t->at[k / *stride * *stride * t->shape.dim[axis] + k % *stride];
}

void ref_softmax(Ref *r) {
    int axis = r->attr->softmax.axis;
    int64_t n = r->softmax.x.shape.dim[axis], stride;
    for (int64_t k = 0; k < r->softmax.x.count / n; k++) {
        const double *x = line(&r->softmax.x, axis, k, &stride);
        double *y = line(&r->softmax.y, axis, k, &stride), sum = 0;
        const double first = x[0]; /* subtracted, so that the logarithm of a single element's 1 is exactly 0 */
        for (int64_t i = 0; i < n; i++) sum += exp(x[i * stride] - first);
        for (int64_t i = 0; i < n; i++) {
            double e = x[i * stride] - first;
            y[i * stride] = r->attr->softmax.log ? e - log(sum) : exp(e) / sum;
        }
    }
}

void ref_softmax_dx(Ref *r) {
    int axis = r->attr->softmax.axis;
    int64_t n = r->softmax_dx.dy.shape.dim[axis], stride;
    for (int64_t k = 0; k < r->softmax_dx.dy.count / n; k++) {
        const double *dy = line(&r->softmax_dx.dy, axis, k, &stride), *y = line(&r->softmax_dx.y, axis, k, &stride);
        double *dx = line(&r->softmax_dx.dx, axis, k, &stride), sum = 0;
        for (int64_t i = 0; i < n * stride; i += stride) sum += r->attr->softmax.log ? dy[i] : dy[i] * y[i];
        for (int64_t i = 0; i < n * stride; i += stride)
            dx[i] = r->attr->softmax.log ? dy[i] - exp(y[i]) * sum : y[i] * (dy[i] - sum);
    }
}
