/* rewrite.h: private to the passes that insert, move or drop ops: the list of ops, written anew.
 *
 *     Rewriter r;
 *     for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) rewrite_put(p, op);
 *     rewrite_end(&r);
 *
 * What is put into the program while an old op is looked at stands in that op's part: the forward pass, the backward
 * pass, or what follows the body. */
#ifndef MT_REWRITE_H
#define MT_REWRITE_H

#include "passes.h"

typedef struct Rewriter {
    Program *p;
    Op *old;                      /* the ops as they were */
    int n, forward_end, body_end; /* how many they were, and where the parts ended */
    int at;                       /* the old op that is looked at */
} Rewriter;

/* The program has no ops any more; the first old one. NULL: none is left, or p->failed is set. */
const Op *rewrite_begin(Rewriter *r, Program *p);
const Op *rewrite_next(Rewriter *r);
void rewrite_end(Rewriter *r);

/* Puts an op at the end. A view's output lies where its input does. */
Op *rewrite_put(Program *p, const Op *op);

#endif
