/* levels.h: private to the passes that choose what may stay: the bytes alive at each op, to which a whole range of ops
 * adds at once, and the most of any range; both in the logarithm of the ops. */
#ifndef MT_LEVELS_H
#define MT_LEVELS_H

#include "passes.h"

/* A node of a tree over the ops, for its range of them: the most bytes alive at one of them, and how many bytes of that
 * were added to the whole range at once (and not to its children). */
typedef struct Level { size_t most, more; } Level;

typedef struct Levels {
    Level *node; /* [2 leaves]: node 1 is the root, node k has the children 2 k and 2 k + 1, leaf `leaves` + i is op i */
    int leaves;  /* a power of two, at least n_ops */
    int n_ops;
} Levels;

/* Memory comes from s; on failure s->failed is set. */
Levels levels_new(int n_ops, Scratch *s);
/* Sets all: live[n_ops] bytes. */
void levels_fill(const Levels *l, const size_t *live);
/* The most bytes alive at an op of [from, to); 0 where that is empty. */
size_t levels_most(const Levels *l, int from, int to);
/* Adds bytes to those ops. */
void levels_raise(const Levels *l, int from, int to, size_t bytes);

/* In a finished program the storage of `buf`, which op `made` makes, is free from the returned op on: that which writes
 * something else into it, or the first one after its last reader. */
int levels_free_from(const Program *p, const Life *life, int buf, int made);

#endif
