/* adafactor.h: a parameter as Adafactor's matrices. PyTorch's last two dimensions are rows and columns; each index of
 * the dimensions before them has a matrix of its own. In memory the place of an element is
 *
 *   ((matrix_o rows + row) columns + column) inner + matrix_i      inner: a channels-last weight's input channels, or 1
 *
 * The statistics of its row are at (matrix_o rows + row) inner + matrix_i, those of its column at (matrix_o columns +
 * column) inner + matrix_i. The matrices (I, K) of a Conv1d's weight are transposed in memory: the rows here are
 * PyTorch's columns. Shared with .cu files. */
#ifndef MT_ADAFACTOR_H
#define MT_ADAFACTOR_H

#include "kernel.h"

enum { FACTORS_ROW = 1, FACTORS_COLUMN = 2 }; /* the outputs of the op */

typedef struct AdafactorShape {
    int64_t outer, rows, columns, inner;
    int row, column;  /* the op's outputs for the statistics of the rows, and of the columns */
    int64_t averaged; /* numbers of row_var, one per row of PyTorch's, in a matrix */
} AdafactorShape;

/* Of the op's parameter. View.channels_last says how it is stored; the size of col_var tells a Conv1d's weight, which
 * is an image (O, I, 1, K) here, from a Conv2d's. A vector is one row. */
static inline AdafactorShape adafactor_of(const KArgs *a) {
    const View *w = &a->adafactor.w;
    const int64_t *d = w->shape.dim;
    const int rank = w->shape.rank;
    assert(rank >= 1);
    const bool last = w->channels_last && rank == 4;
    if (last && d[1] > 1 && a->out[FACTORS_COLUMN].count == d[0] * d[3]) {
        const AdafactorShape line = {d[0], d[3], d[1], 1, FACTORS_COLUMN, FACTORS_ROW, d[1]};
        return line;
    }
    const int64_t rows = rank > 1 ? d[rank - 2] : 1, columns = d[rank - 1], inner = last ? d[1] : 1;
    const int64_t outer = w->count / (rows * columns * inner);
    const AdafactorShape f = {outer, rows, columns, inner, FACTORS_ROW, FACTORS_COLUMN, rows};
    return f;
}

/* Adafactor's eps1. 0 is PyTorch's None: the machine epsilon of t, the type in which the parameter is updated. */
static inline float adafactor_eps(const OptimRule *o, DType t) {
    return o->eps > 0.0f ? o->eps : dtype_epsilon(t);
}

#endif
