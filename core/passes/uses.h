/* uses.h: private to the passes that rewire ops: which ops read a buffer, without a walk over all ops for each question;
 * and ops that are to go, which go all at once, since each that goes alone moves all after it. */
#ifndef MT_USES_H
#define MT_USES_H

#include "passes.h"

/* A read is op * OP_IN + the input's number. */
typedef struct Uses {
    Program *p;
    int *first;    /* by buffer: one of its reads, or -1 */
    int *next;     /* by read: the next one of the same buffer, or -1 */
    int *before;   /* by read: the one before it, or -1 */
    bool *dropped; /* by op */
} Uses;

/* s lends it memory. false: there is none. */
bool uses_open(Uses *u, Program *p, Scratch *s);
/* Takes the dropped ops out. */
void uses_close(Uses *u);

/* The only op that reads `buf`; NO_OP: none does, or it is read more than once. */
int uses_reader(const Uses *u, int buf);
/* What read `from` reads `to`. */
void uses_move(Uses *u, int from, int to);
/* Takes an op out, after its readers have been given something else to read: it reads nothing any more. */
void uses_drop(Uses *u, int op);

#endif
