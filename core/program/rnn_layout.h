/* rnn_layout.h: the way of a recurrent layer through its operands, once for every device. Shared with .cu files. Operands are
 * rows of features: of sample n at step t, row n sample + t step. */
#ifndef MT_RNN_LAYOUT_H
#define MT_RNN_LAYOUT_H

#include "kernel.h"

typedef struct RnnPath {
    RnnMode mode;
    RnnInfo info;
    int64_t samples, steps, rows, inputs, units, gates; /* rows: of x and y; gates: rows of w */
    int64_t sample, step; /* rows from one sample, one step to the next */
    bool reverse;
} RnnPath;

static inline RnnPath rnn_path(const KArgs *a, const View *x, const View *y) {
    const RnnAttr *attr = &a->attr->rnn;
    const int time = attr->batch_first ? 1 : 0;
    RnnPath p;
    p.mode = attr->mode;
    p.info = rnn_info(attr->mode);
    p.samples = x->shape.dim[1 - time];
    p.steps = x->shape.dim[time];
    p.rows = p.samples * p.steps;
    p.inputs = x->shape.dim[2];
    p.units = y->shape.dim[2];
    p.gates = p.info.gates * p.units;
    p.sample = attr->batch_first ? p.steps : 1;
    p.step = attr->batch_first ? 1 : p.samples;
    p.reverse = attr->reverse;
    return p;
}

/* The row of sample n in the k-th step of the walk. */
MT_FN int64_t rnn_row(const RnnPath *p, int64_t n, int64_t k) {
    return n * p->sample + (p->reverse ? p->steps - 1 - k : k) * p->step;
}

/* Where in a row of slopes those of w_hh's rows begin: see rnn_cells.h. */
MT_FN int64_t rnn_hidden(const RnnPath *p) { return p->mode == RNN_GRU ? p->units : 0; }

#endif
