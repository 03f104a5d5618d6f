/* norm.h: what the kernels of a normalisation ask of its operands, once for every device. Shared with .cu files. */
#ifndef MT_NORM_H
#define MT_NORM_H

#include "kernel.h"

static inline int64_t norm_channels(const KArgs *a, const View *x) { return x->shape.dim[a->attr->norm.axis]; }

static inline int norm_check(const KArgs *a, const View *x, Err *e) {
    int64_t outer, inner;
    view_split(x, a->attr->norm.axis, &outer, &inner);
    if (inner == 1) return OK;
    return err_set(e, ERR_INTERNAL, "%s: the channels must lie innermost", op_info(a->kind)->name);
}

#endif
