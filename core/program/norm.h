/* norm.h: what the kernels of a normalisation require of its operands, for every device. Shared with .cu files. */
#ifndef MT_NORM_H
#define MT_NORM_H

#include "kernel.h"

static inline int64_t norm_channels(const KArgs *a, const View *x) {
    assert(a->attr->norm.axis >= 0 && a->attr->norm.axis < x->shape.rank);
    return x->shape.dim[a->attr->norm.axis];
}

/* ERR_INTERNAL unless the channels are the innermost dimension in memory. */
static inline int norm_check(const KArgs *a, const View *x, Err *e) {
    int64_t outer, inner;
    view_split(x, a->attr->norm.axis, &outer, &inner);
    if (inner == 1) return OK;
    return err_set(e, ERR_INTERNAL, "%s: the channels must be the innermost dimension", op_info(a->kind)->name);
}

#endif
