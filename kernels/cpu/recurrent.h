/* recurrent.h: private to the recurrent layers: the walk of one direction through the steps, forward and back. */
#ifndef MT_CPU_RECURRENT_H
#define MT_CPU_RECURRENT_H

#include "bf16_gemm.h"
#include "fp32_product.h"
#include "fp32_workspace.h"
#include "gemm.h"
#include "program/rnn_layout.h"

typedef struct RnnSteps {
    RnnPath p;
    bool narrow;            /* bf16 operands are multiplied as they are */
    View x, y, saved;       /* (rows, inputs), (rows, units), (rows, info.saved units) or absent */
    View w_ih, w_hh;
    float *zero;            /* (gates): zeros */
    float *h, *c;           /* (samples, units): state, or its gradient */
    float *sums;            /* forward: (samples, gates), from h */
    float *lines;           /* narrow: forward (samples, a row of what is kept), back (slices, scratch of a sample) */
    void *packed_ih, *packed_hh; /* of the weights; packed_ih: narrow */
    char *scratch;          /* of a slice's products, `each` bytes */
    size_t each;
    void *scratch_after;    /* back: of the products after the walk, after_bytes; 0: by `product` */
    size_t after_bytes;
    int threads;
    const float *b_ih, *b_hh; /* (gates) */
    View dy, slopes;        /* back: slopes (rows, info.slopes units), gradients of the sums */
} RnnSteps;

typedef int SliceFn(const RnnSteps *w, int64_t begin, int64_t end);

/* Are bf16 operands multiplied as they are? */
bool rnn_steps_is_narrow(const KArgs *a, const View *w_hh);
RnnSteps rnn_steps_of(const KArgs *a, const View *x, const View *y);
/* Takes h and c, which are 0: the state before the first step, or the gradient of the one after the last step. */
void rnn_steps_take_state(RnnSteps *w, Room *r);

/* The batch is cut into slices of equal size; the last one may be smaller: how many slices there are, how many samples
 * the first (last: the last) one has, and whether the last is as large as the first */
int64_t rnn_steps_slices(const RnnSteps *w);
int64_t rnn_steps_slice_of(const RnnSteps *w, int last);
bool rnn_steps_is_even(const RnnSteps *w);
/* How many threads the products of a slice run on; the scratch of the slice that begins with sample `begin` */
int rnn_steps_threads(const RnnSteps *w);
void *rnn_steps_scratch(const RnnSteps *w, int64_t begin);
/* Runs all slices; returns the bitwise or of what they return. */
int rnn_steps_run(const RnnSteps *w, SliceFn *slice);

/* fp32: c (samples, n) = a (samples, k) w_hh, or its transpose, which is packed_hh; add: += . One step's product over a
 * slice; rows of a and c are a_stride and n apart. */
typedef struct RnnProduct { int64_t n, k, a_stride; bool transposed, add; } RnnProduct;
/* Takes room for packed_hh and for the scratch of all slices; packs; multiplies for the slice that begins with `begin`. */
void rnn_steps_take_product(RnnSteps *w, const RnnProduct *p, Room *r);
void rnn_steps_pack_product(const RnnSteps *w, const RnnProduct *p);
void rnn_steps_multiply(const RnnSteps *w, const RnnProduct *p, int64_t begin, int64_t end, float *a, float *c);

/* *most becomes at least the bytes of scratch that products of shape `s` need. */
void rnn_steps_count(size_t *most, Bf16GemmShape s);
void *rnn_steps_take_bytes(Room *r, size_t bytes);
/* Room for a right operand (k, n) of a product, packed */
void *rnn_steps_take_packed(Room *r, int64_t n, int64_t k);
/* Packs the weights at `from` for products of shape `s`. All slices read them, since the packing depends on n, k
 * and the number of threads only. 0 or oneDNN's status */
int rnn_steps_pack(const Bf16GemmShape *s, const View *from, void *to);

/* Element `i` of a view. */
static inline void *place(const View *v, int64_t i) { return (char *)v->data + (size_t)i * dtype_size(v->dtype); }

static inline float *floats(const View *v) { return v->data; }

#endif
