/* factors.h: how Adafactor sees a parameter: PyTorch's last two dimensions are rows and columns, whatever lies in front
 * of them are matrices of their own. In memory an element is
 *
 *   ((matrix_o rows + row) columns + column) inner + matrix_i      inner: a channels-last weight's input channels, or 1
 *
 * its row's statistics lie at (matrix_o rows + row) inner + matrix_i, its column's at (matrix_o columns + column)
 * inner + matrix_i. Shared with .cu files. */
#ifndef MT_FACTORS_H
#define MT_FACTORS_H

#include "kernel.h"

typedef struct Factors { int64_t outer, rows, columns, inner; } Factors;

/* Of a parameter; its storage says how it lies. A vector has neither rows nor columns: 1 row. */
static inline Factors factors_of(const View *w) {
    const int rank = w->shape.rank, last = w->channels_last && rank == 4 ? 1 : 0;
    Factors f = {1, 1, w->shape.dim[rank - 1], 1};
    if (rank > 1) f.rows = w->shape.dim[rank - 2];
    if (last) f.inner = w->shape.dim[1];
    f.outer = w->count / (f.rows * f.columns * f.inner);
    return f;
}

/* eps1 of Adafactor: 0, PyTorch's None, is that of the type in which the parameter is updated */
static inline float factors_eps(const OptimRule *o, DType t) {
    return o->eps > 0.0f ? o->eps : t == DT_F32 ? 1.1920929e-7f : t == DT_F16 ? 9.765625e-4f : 7.8125e-3f;
}

#endif
