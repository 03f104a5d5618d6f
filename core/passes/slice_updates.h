/* slice_updates.h: private to the two passes that update large weights some rows at a time: which weights can be cut. */
#ifndef MT_SLICE_UPDATES_H
#define MT_SLICE_UPDATES_H

#include "passes.h"

/* Numbers in a slice at least. Fewer take a few microseconds: they are no work for several threads, and launches would cost more. */
enum { SLICES_LEAST = 1 << 16 };

/* A gradient that only one update reads. Bytes are aligned. */
typedef struct Large {
    int maker, update;    /* ops of the body */
    int at;               /* the op after which slices stand, or the update itself */
    struct Large *next;   /* another one with the same `at`, or NULL */
    size_t whole, beside; /* alive at most while the gradient is: with it; without it, where the slices would stand */
    size_t divided;       /* what a slice has a part of: gradient and dy */
    int slices;           /* 1: it stays whole */
} Large;

typedef struct Find {
    const Program *p;
    size_t alignment;
    int *made;  /* by buffer: the last op that writes it, or NO_OP */
    int *read;  /* by buffer: the last op that reads it, or NO_OP */
    int *reads; /* by buffer: how often ops read it */
    Large *large; /* [n], in the order of the updates */
    int n;
} Find;

/* Memory comes from s; where that fails, s->failed is set. */
Find slices_find_new(const Program *p, const Compile *c, Scratch *s);
/* Fills in f->large: gradients of at least so many bytes whose weight can be cut in two. Updates in the body are those of gradients
 * that neither last nor are summed up (update_early.c). */
void slices_find(Find *f, size_t least);
/* May the update's weight be cut into so many slices? Each has rows of its own, and SLICES_LEAST numbers. */
bool slices_divide(const Find *f, const Op *update, int slices);

#endif
