/* rewrite.h: private to the passes that insert, move or drop ops: it writes the list of ops again.
 *
 *     Rewriter r;
 *     for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) rewrite_put(p, op);
 *     rewrite_end(&r);
 *
 * An op that is put while an old op is looked at belongs to the same part as that: the forward pass, the backward pass,
 * or what follows the body. forward_end and body_end follow. */
#ifndef MT_REWRITE_H
#define MT_REWRITE_H

#include "passes.h"

typedef struct Rewriter {
    Program *p;
    Op *old;                      /* the ops as they were */
    int n, forward_end, body_end; /* how many there were, and where the parts ended */
    int at;                       /* the old op that is looked at */
} Rewriter;

/* Empties the program's list of ops; the first old op, then the next one. NULL: there is none, or p->failed is set. */
const Op *rewrite_begin(Rewriter *r, Program *p);
const Op *rewrite_next(Rewriter *r);
void rewrite_end(Rewriter *r); /* frees the old ops */

/* Puts a copy of `op`, which is not one of p's own, at the end of the list, and returns it. The output of a view shares
 * its input's storage. On failure as program_op. */
Op *rewrite_put(Program *p, const Op *op);
/* Puts a new op of one input and one output: a copy, a view. */
void rewrite_emit(Program *p, OpKind kind, int in, int out, const char *path);

/* Does the op write into the storage of `buf` (its workspace counts), or, with `reads`, read it? NO_BUF: no. */
bool rewrite_touches(const Program *p, const Op *op, int buf, bool reads);

/* The op's loss, if it has one, is that of one of so many equal parts of the batch: a mean is divided by their number, a sum
 * is not. */
void rewrite_part_of_batch(Op *op, int parts);

/* A new temporary like `part` that takes over its name and its roles: a parameter's gradient, a loss, kept to the end of the
 * step. `part` becomes "<name>.<suffix>". On failure as program_buf. */
int rewrite_successor(Program *p, int part, DType type, const char *suffix);

#endif
