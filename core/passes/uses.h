/* uses.h: private to the passes that rewire ops: it knows which ops read a buffer, and takes out ops, all at once at
 * the end. */
#ifndef MT_USES_H
#define MT_USES_H

#include "passes.h"

/* A read is op * OP_IN + the input's number. */
typedef struct Uses {
    Program *p;
    int n_ops;     /* stays the same until uses_close */
    int *first;    /* by buffer: one of its reads, or -1 */
    int *next;     /* by read: the next one of the same buffer, or -1 */
    int *before;   /* by read: the one before it, or -1 */
    bool *dropped; /* by op */
} Uses;

/* Memory comes from s; false: s->failed. */
bool uses_open(Uses *u, Program *p, Scratch *s);
/* Takes the dropped ops out of the program. */
void uses_close(Uses *u);

/* The only op that reads `buf`; NO_OP: none does, or it is read more than once. */
int uses_reader(const Uses *u, int buf);
/* Lets all ops that read `from` read `to`. */
void uses_move(Uses *u, int from, int to);
/* The op's inputs 0 and 1 change places. */
void uses_swap(Uses *u, int op);
/* Marks an op, once, as one that uses_close takes out: it reads nothing from now on. What it makes must have no reader,
 * or get another maker. */
void uses_drop(Uses *u, int op);

#endif
