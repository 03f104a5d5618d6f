/* scratch.h: host memory for one piece of work, which is given back all at once. Its failure stays: a function takes
 * all that it needs, looks at `failed` once and returns; whoever began the work reports the error. {0} is empty. */
#ifndef MT_SCRATCH_H
#define MT_SCRATCH_H

#include "base.h"

typedef struct Scratch {
    void *last;  /* the newest block that was taken, NULL where there is none; a mark for scratch_release */
    bool failed; /* host memory ran out: from now on every scratch_new returns NULL */
} Scratch;

/* `count` items (0 or more) of `item` bytes each (1 or more), zeroed, aligned for any type. NULL: `failed` is set. */
void *scratch_new(Scratch *s, size_t count, size_t item);
/* Gives back all that was taken since `last` was `mark`; NULL: everything. `failed` stays. */
void scratch_release(Scratch *s, void *mark);

#endif
