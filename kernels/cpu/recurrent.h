/* recurrent.h: private to the recurrent layers: the walk of one direction through the steps, forward and back. */
#ifndef MT_CPU_RECURRENT_H
#define MT_CPU_RECURRENT_H

#include "narrow.h"
#include "rnn.h"
#include "wide.h"

typedef struct Walk {
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
    void *scratch_behind;   /* back, narrow: of the products behind the walk */
    int threads;
    const float *b_ih, *b_hh; /* (gates) */
    View dy, slopes;        /* back: slopes (rows, info.slopes units), gradients of the sums */
} Walk;

typedef int SliceFn(const Walk *w, int64_t begin, int64_t end);

/* Are bf16 operands multiplied as they are? */
bool walk_is_narrow(const KArgs *a, const View *w_hh);
Walk walk_of(const KArgs *a, const View *x, const View *y);
/* State before the first step, and gradients of that behind the last one. */
void walk_take_state(Walk *w, Room *r);

/* Slices of the batch: how many; samples of the first one, which are the usual ones, or of the last one; is that one
 * as large? */
int64_t walk_slices(const Walk *w);
int64_t walk_slice_of(const Walk *w, int last);
bool walk_is_even(const Walk *w);
/* On how many threads a slice's products run, and their scratch. */
int walk_threads(const Walk *w);
void *walk_scratch(const Walk *w, int64_t begin);
/* All slices; what they return, or-ed. */
int walk_run(const Walk *w, SliceFn *slice);

/* *most: of scratch for products of several shapes */
void walk_count(size_t *most, NarrowShape s);
void *walk_take_bytes(Room *r, size_t bytes);
/* A place for w (n, k) packed, or (k, n) that is not turned. */
void *walk_take_packed(Room *r, int64_t n, int64_t k);
/* Packed for slices of their usual size, which take what any of as many threads wants. */
int walk_pack(const NarrowShape *s, const View *from, void *to);

/* Element `i` of a view. */
static inline void *place(const View *v, int64_t i) { return (char *)v->data + (size_t)i * dtype_size(v->dtype); }

static inline float *floats(const View *v) { return v->data; }


#endif
