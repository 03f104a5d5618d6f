/* scratch.h: host memory for one piece of work, which goes back all at once. Its failure stays: take all that the work
 * needs, look at `failed` once, and leave it to whoever began the work to say so. */
#ifndef MT_SCRATCH_H
#define MT_SCRATCH_H

#include "base.h"

typedef struct Scratch {
    void *last;  /* what was taken last; before anything was, NULL */
    bool failed; /* host memory ran out: from then on nothing can be taken */
} Scratch;

/* count items of `item` bytes each, zeroed; NULL: `failed` is set. */
void *scratch_new(Scratch *s, size_t count, size_t item);
/* Gives back all that was taken after `last` was `mark`; NULL: everything. */
void scratch_release(Scratch *s, void *mark);

#endif
