/* checkpoint.h: private to the checkpoint pass: a forward program as a chain, and what a choice of segments does.
 *
 *   cut      0          1               2        n_cuts - 1
 *            |  op  op  |  op  op  op   |  op  loss  |      a cut lies before forward op `at`; one storage crosses it
 *   segment     1   1      0   0   0       0   0            0: stored; ops with the same number are dropped together
 *
 * A choice is segment[forward_end]. What leaves a dropped segment is kept, what stays inside is made again when the
 * backward pass first reads any of it. The first output of an op that is ALONE is dropped, even where other segments
 * read it in the forward pass; that op alone runs again when the backward pass first reads it. */
#ifndef MT_CHECKPOINT_H
#define MT_CHECKPOINT_H

#include "whatif.h"

enum { STORED = 0, ALONE = -1 };

typedef struct Cut {
    int at;   /* before this forward op */
    int root; /* the storage that crosses it, NO_BUF at both ends */
} Cut;

typedef struct Chain {
    const Program *p; /* borrowed: before the passes after checkpointing, forward ops as they will stay */
    int *writer;      /* by root buffer: the forward op that writes its storage, or NO_OP */
    bool *saved;      /* by root buffer: the backward pass reads it */
    Cut *cut;
    int n_cuts;       /* at least 2: the start and the end of the forward ops */
} Chain;

/* s lends it memory. false: there is none. */
bool chain_find(Chain *c, const Program *p, Scratch *s);

/* The choice that a mode stands for; all modes but CHECKPOINT_SELECTIVE and CHECKPOINT_BUDGET, which look at bytes. */
void chain_choose(const Chain *c, Checkpoint mode, int *segment);

/* Lets light ops before `end` that a choice stores be ALONE: those that can run again from what is kept anyway, or from
 * what at most `deep` - 1 such ops make of it one after the other. depth[n_bufs] is scratch. USUAL: what stands after
 * a product, a normalisation and its activation or a cast. */
enum { USUAL = 2, DEEPEST = 4 };
void chain_lighten(const Chain *c, int deep, int end, int *segment, int *depth);

/* What a choice does. lost[n_bufs]: by root, storage that does not outlive its segment; again[forward_end]: ops that
 * run twice; need[n_bufs] is scratch. Returns the seconds that the second runs take, by op_seconds. */
double chain_again(const Chain *c, const int *segment, bool *lost, bool *need, bool *again);

/* Rewrites p, the chain's program or a copy of it. On failure p->failed or s->failed is set. */
void chain_drop(const Chain *c, Program *p, const int *segment, Scratch *s);

/* Bytes of the placed arena of the whole program under a choice. */
int chain_arena(const Chain *c, const int *segment, Compile *under, size_t *arena);

/* What lightens the step the most without dropping a product: the depth of chain_lighten with the smallest arena. */
int chain_select(const Chain *c, Compile *under, int *segment);

/* The quickest choice whose placed arena is within the budget, or ERR_OOM with the least that can be reached. */
int chain_fit(const Chain *c, Compile *under, int *segment);

#endif
