/* checkpoint.h: private to the passes that choose: a forward program as a chain, and what a choice of segments does.
 *
 *   cut      0          1               2        n_cuts - 1
 *            |  op  op  |  op  op  op   |  op  loss  |      a cut lies before forward op `at`; one storage crosses it
 *   segment     1   1      0   0   0       0   0            0: stored; ops with the same number are dropped together
 *
 * A choice is segment[forward_end]. Of a dropped segment, the outputs that ops outside read are kept; the others are
 * made again, all together, when the backward pass first reads one of them. The first output of an op that is ALONE is
 * dropped even if other segments read it in the forward pass; only that op runs again, when the backward pass first
 * reads its output. */
#ifndef MT_CHECKPOINT_H
#define MT_CHECKPOINT_H

#include "whatif.h"

enum { STORED = 0, ALONE = -1, LIGHTEN = -2 /* not decided: see chain_lighten */ };

typedef struct Cut {
    int at;   /* before this forward op */
    int root; /* the storage that crosses it, NO_BUF at both ends */
} Cut;

typedef struct Chain {
    const Program *p; /* borrowed: as the checkpoint pass gets it; later passes keep its forward ops' numbers */
    int *writer;      /* by root buffer: the forward op that writes its storage, or NO_OP */
    bool *saved;      /* by root buffer: the backward pass reads it */
    bool *gathers;    /* by forward op: it gathers slices of a sequence for products, and for their gradients once more */
    Cut *cut;
    int n_cuts;       /* at least 2: the start and the end of the forward ops */
} Chain;

/* Is there anything to choose: forward ops, and a backward pass? A layer alone whose loss is made in chunks has no forward ops. */
bool chain_has_choice(const Program *p);

/* Finds the chain of a program that has such. Memory comes from s; false: s->failed. */
bool chain_find(Chain *c, const Program *p, Scratch *s);

/* The choice that drops nothing but what is gathered: slices of a sequence are what the ranks keep. as: STORED or LIGHTEN. */
void chain_store(const Chain *c, int as, int *segment);

/* The choice that a mode stands for; not for CHECKPOINT_SELECTIVE and CHECKPOINT_BUDGET, which compare bytes. */
void chain_choose(const Chain *c, Checkpoint mode, int *segment);

/* Does memory limit the op's speed? At most one operation for each byte that it reads or writes. */
bool op_is_light(const Op *op);

/* Of the ops [from, to) that are LIGHTEN makes those ALONE which are `light`, if they can run again from what is kept anyway, or from what a row of at
 * most `deep` - 1 such ops makes of it; and the others STORED. depth[n_bufs] is scratch. USUAL: after a product, a
 * normalisation and its activation or a cast. DEEPEST: the largest `deep`. */
enum { USUAL = 2, DEEPEST = 4 };
typedef bool LightFn(const Op *op);
void chain_lighten(const Chain *c, int deep, LightFn *light, int from, int to, int *segment, int *depth);

/* How many ops that chain_lighten has made ALONE must run again, one after the other, before `buf`, of which `bytes` are made, is there in
 * the backward pass. 0: it is there; DEEPEST: it cannot be made by such ops. */
int chain_depth(const Chain *c, const int *segment, const int *depth, int buf, size_t bytes);

/* What a choice does. lost[n_bufs], by root: storage that does not live until the backward pass; again[forward_end]:
 * ops that run twice; need[n_bufs] is scratch. Returns the seconds of the second runs, by op_seconds. */
double chain_again(const Chain *c, const int *segment, bool *lost, bool *need, bool *again);

/* Makes a choice in p, the chain's program or a copy of it. twin[n_bufs of the chain's program], or NULL: by buffer that is
 * lost, the one that a second run makes, else NO_BUF. On failure p->failed or s->failed is set. */
void chain_drop(const Chain *c, Program *p, const int *segment, int *twin, Scratch *s);

/* A choice for whatif, which chain_apply makes in a copy of the program: chain_drop's arguments */
typedef struct ChainChoice { const Chain *c; const int *segment; int *twin; } ChainChoice;
void chain_apply(Program *p, const void *choice, Scratch *s);

/* Bytes of the placed arena of the whole program under a choice. */
int chain_arena(const Chain *c, const int *segment, Compile *under, size_t *arena);

/* The choice with the smallest arena that drops no product: chain_lighten's with the best depth. */
int chain_select(const Chain *c, Compile *under, int *segment);

/* The quickest choice whose placed arena is within the budget. ERR_OOM: there is none; names the least arena. estimated, or NULL: what
 * the arena was estimated at before it was placed; 0: it was not. */
int chain_fit(const Chain *c, Compile *under, int *segment, size_t *estimated);

#endif
