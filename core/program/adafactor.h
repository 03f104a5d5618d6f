/* adafactor.h: how Adafactor sees a parameter: PyTorch's last two dimensions are rows and columns, whatever lies in front
 * of them are matrices of their own. In memory an element is
 *
 *   ((matrix_o rows + row) columns + column) inner + matrix_i      inner: a channels-last weight's input channels, or 1
 *
 * its row's statistics lie at (matrix_o rows + row) inner + matrix_i, its column's at (matrix_o columns + column)
 * inner + matrix_i. The matrices (I, K) of a Conv1d's weight lie turned: what are rows here are PyTorch's columns.
 * Shared with .cu files. */
#ifndef MT_ADAFACTOR_H
#define MT_ADAFACTOR_H

#include "kernel.h"

enum { FACTORS_ROW = 1, FACTORS_COLUMN = 2 }; /* the outputs of the op */

typedef struct AdafactorShape {
    int64_t outer, rows, columns, inner;
    int row, column;  /* the outputs that have the statistics of the rows and of the columns */
    int64_t averaged; /* how many of row_var, which are PyTorch's rows, a matrix has */
} AdafactorShape;

/* Of a parameter; its storage says how it lies, the size of col_var how many matrices there are. A vector has neither
 * rows nor columns: 1 row. */
static inline AdafactorShape adafactor_of(const KArgs *a) {
    const View *w = &a->adafactor.w;
    const int64_t *d = w->shape.dim;
    const int rank = w->shape.rank;
    const bool last = w->channels_last && rank == 4;
    if (last && d[1] > 1 && a->out[FACTORS_COLUMN].count == d[0] * d[3]) {
        const AdafactorShape line = {d[0], d[3], d[1], 1, FACTORS_COLUMN, FACTORS_ROW, d[1]};
        return line;
    }
    const int64_t rows = rank > 1 ? d[rank - 2] : 1, columns = d[rank - 1], inner = last ? d[1] : 1;
    const AdafactorShape f = {w->count / (rows * columns * inner), rows, columns, inner, FACTORS_ROW, FACTORS_COLUMN, rows};
    return f;
}

/* eps1 of Adafactor: 0, PyTorch's None, is that of the type in which the parameter is updated */
static inline float adafactor_eps(const OptimRule *o, DType t) {
    return o->eps > 0.0f ? o->eps : t == DT_F32 ? 1.1920929e-7f : t == DT_F16 ? 9.765625e-4f : 7.8125e-3f;
}

#endif
