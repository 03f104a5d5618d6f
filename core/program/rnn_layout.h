/* rnn_layout.h: where a recurrent layer finds its steps in its operands, for every device. Shared with .cu files.
 * Operands are rows of features: sample n at step t has row n * sample + t * step (RnnPath). */
#ifndef MT_RNN_LAYOUT_H
#define MT_RNN_LAYOUT_H

#include "kernel.h"

typedef struct RnnPath {
    RnnMode mode;
    RnnInfo info;
    int64_t samples, steps, rows, inputs, units, gates; /* rows: samples times steps; gates: rows of w */
    int64_t sample, step; /* rows from one sample to the next, from one step to the next */
    bool reverse;
} RnnPath;

/* x (.., .., inputs), y (.., .., units): with time as dimension 1 (batch_first) or 0 */
static inline RnnPath rnn_path(const KArgs *a, const View *x, const View *y) {
    assert(x->shape.rank == 3 && y->shape.rank == 3);
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

/* The row of sample n in the k-th step that is computed. */
MT_FN int64_t rnn_row(const RnnPath *p, int64_t n, int64_t k) {
    return n * p->sample + (p->reverse ? p->steps - 1 - k : k) * p->step;
}

/* The index in a row of slopes where those that belong to w_hh begin: see rnn_cells.h. */
MT_FN int64_t rnn_hidden(const RnnPath *p) { return p->mode == RNN_GRU ? p->units : 0; }

#endif
