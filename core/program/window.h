/* window.h: which elements a pooling window holds along one axis, and which windows hold an element. Shared with .cu
 * files. */
#ifndef MT_WINDOW_H
#define MT_WINDOW_H

#include "op.h"

/* Elements or windows [lo, hi), and the length that a window counts as in the divisor of its mean. */
typedef struct Span { int64_t lo, hi, length; } Span;

/* Window `o` of axis 0 (rows) or 1 (columns), from `in` to `out` elements; p is NULL for adaptive pooling. */
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

/* Windows [lo, hi) are the ones that hold input element i; length is not set. */
MT_FN Span windows_of(const PoolAttr *p, int axis, int64_t i, int64_t in, int64_t out) {
    Span s = {0, 0, 0};
    if (!p) {
        s.lo = i * out / in;
        s.hi = ((i + 1) * out + in - 1) / in;
        return s;
    }
    int64_t past = i + p->pad[axis] - p->kernel[axis]; /* windows that start here or before end before i */
    s.lo = past < 0 ? 0 : past / p->stride[axis] + 1;
    s.hi = (i + p->pad[axis]) / p->stride[axis] + 1;
    if (s.hi > out) s.hi = out;
    return s;
}

MT_FN float divisor_of(const PoolAttr *p, Span h, Span w) {
    return (float)(p && p->divisor ? p->divisor : h.length * w.length);
}

#endif
