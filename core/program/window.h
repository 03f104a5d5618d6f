/* window.h: the elements in a pooling window along one axis, and the windows that contain an element. Shared with .cu
 * files. */
#ifndef MT_WINDOW_H
#define MT_WINDOW_H

#include "op.h"

/* Elements or windows [lo, hi). length: of a window, what it contributes to the divisor of the mean */
typedef struct Span { int64_t lo, hi, length; } Span;

/* Window `o` along axis 0 (rows) or 1 (columns) of a pooling from `in` elements to `out`. p: NULL for adaptive
 * pooling */
MT_FN Span span_of(const PoolAttr *p, int axis, int64_t o, int64_t in, int64_t out) {
    Span s;
    if (!p) {
        s.lo = o * in / out;
        s.hi = ((o + 1) * in + out - 1) / out;
        s.length = s.hi - s.lo;
        return s;
    }
    int64_t start = o * p->stride[axis] - p->pad[axis], end = start + p->kernel[axis], edge = in + p->pad[axis];
    if (end > edge) end = edge;
    s.lo = start > 0 ? start : 0;
    s.hi = end < in ? end : in;
    s.length = p->count_include_pad ? end - start : s.hi - s.lo;
    return s;
}

/* The windows [lo, hi) that contain input element i; length is not set. */
MT_FN Span windows_of(const PoolAttr *p, int axis, int64_t i, int64_t in, int64_t out) {
    Span s = {0, 0, 0};
    if (!p) {
        s.lo = i * out / in;
        s.hi = ((i + 1) * out + in - 1) / in;
        return s;
    }
    int64_t past = i + p->pad[axis] - p->kernel[axis]; /* a window that starts at `past` or before does not reach i */
    s.lo = past < 0 ? 0 : past / p->stride[axis] + 1;
    s.hi = (i + p->pad[axis]) / p->stride[axis] + 1;
    if (s.hi > out) s.hi = out;
    return s;
}

/* What the sum over a window with these spans of rows and columns is divided by. */
MT_FN float divisor_of(const PoolAttr *p, Span h, Span w) {
    return (float)(p && p->divisor ? p->divisor : h.length * w.length);
}

#endif
