/* recurrent.h: private to the recurrent layers: the walk of one direction through the steps, forward and back. */
#ifndef MT_CPU_RECURRENT_H
#define MT_CPU_RECURRENT_H

#include "bf16_gemm.h"
#include "program/rnn_layout.h"
#include "fp32_workspace.h"

typedef struct RnnSteps {
    RnnPath p;
    bool narrow;            /* bf16 operands as they are */
    View x, y, saved;       /* (rows, inputs), (rows, units), (rows, info.saved units) or absent */
    View w_ih, w_hh;
    float *zero;            /* (gates) */
    float *h, *c;           /* (samples, units): state, or its gradient */
    float *sums;            /* forward: (samples, gates), from h */
    float *lines;           /* narrow: forward (samples, a row of what is kept), back (slices, scratch of a sample) */
    void *packed_ih, *packed_hh;
    char *scratch;          /* narrow: of a slice's products, `each` bytes */
    size_t each;
    void *scratch_behind;   /* back, narrow: of the products after the walk */
    int threads;
    const float *b_ih, *b_hh; /* (gates) */
    View dy, slopes;        /* back: slopes (rows, info.slopes units), gradients of the sums */
} RnnSteps;

typedef int SliceFn(const RnnSteps *w, int64_t begin, int64_t end);

/* Are bf16 operands multiplied as they are? */
bool rnn_steps_is_narrow(const KArgs *a, const View *w_hh);
RnnSteps rnn_steps_of(const KArgs *a, const View *x, const View *y);
/* State before the first step, and gradients of the one after the last step. */
void rnn_steps_take_state(RnnSteps *w, Room *r);

/* Slices of the batch: how many; samples of the first one, which are the usual ones, or of the last one; is that one
 * as large? */
int64_t rnn_steps_slices(const RnnSteps *w);
int64_t rnn_steps_slice_of(const RnnSteps *w, int last);
bool rnn_steps_is_even(const RnnSteps *w);
/* On how many threads a slice's products run, and their scratch. */
int rnn_steps_threads(const RnnSteps *w);
void *rnn_steps_scratch(const RnnSteps *w, int64_t begin);
/* All slices; what they return, or-ed. */
int rnn_steps_run(const RnnSteps *w, SliceFn *slice);

/* *most: of scratch for products of several shapes */
void rnn_steps_count(size_t *most, Bf16GemmShape s);
void *rnn_steps_take_bytes(Room *r, size_t bytes);
/* A place for w (n, k) packed, or (k, n) that is not transposed. */
void *rnn_steps_take_packed(Room *r, int64_t n, int64_t k);
/* Packed for slices of their usual size, which take what any of as many threads wants. */
int rnn_steps_pack(const Bf16GemmShape *s, const View *from, void *to);

/* Element `i` of a view. */
static inline void *place(const View *v, int64_t i) { return (char *)v->data + (size_t)i * dtype_size(v->dtype); }

static inline float *floats(const View *v) { return v->data; }


#endif
