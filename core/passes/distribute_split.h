/* distribute_split.h: private to distribute_tensor.c and distribute_sequence.c: what is divided among the ranks along the mesh's
 * axis "tensor", by features or along the sequence, and what an op reads in place of a tensor that lies otherwise. */
#ifndef MT_DISTRIBUTE_SPLIT_H
#define MT_DISTRIBUTE_SPLIT_H

#include "distribute.h"

typedef enum Place { UNKNOWN, WHOLE, DIVIDED } Place;

/* How an op reads a tensor: as a whole; as its rank's slice of the sequence; as a whole of whose gradient each rank makes a
 * term. */
typedef enum Reads { READS_WHOLE, READS_SLICE, READS_SHARED, READS } Reads;

typedef struct Split {
    Program *p;
    int n_bufs;
    Place *place;     /* by buffer; a weight is WHOLE unless an op divides it */
    int *blocks;      /* by buffer that is divided: in how many neighbours, each for itself (Slice) */
    int *maker;       /* by buffer: the op that makes it, NO_OP: none does */
    int *readers;     /* by buffer: how many ops read it */
    bool *member;     /* by buffer: of the region that is tried */
    bool *pinned;     /* by buffer: a first product of that region reads it */
    int *queue, n;    /* the region's buffers, in the order in which they were found */
    int64_t vocabulary; /* the rows of the largest embedding of the network's input, where ranks can divide them; else 0 */
    int *looked_up;   /* by buffer: how many such embeddings read it as their table */
    bool *by_token;   /* by op: it works on its rank's slice of the sequence */
    bool *sliced;     /* by buffer: the op that makes it makes the rank's slice of the sequence */
    int *as[READS];   /* by buffer: what has been made of it for ops that read it so, or NO_BUF; READS_SLICE: or by features */
} Split;

/* Is the weight, or the bias, a parameter that this op alone reads? */
static inline bool split_own_param(const Split *s, int buf) {
    const Buf *b = &s->p->bufs[buf];
    return b->kind == BUF_PERSISTENT && b->param >= 0 && s->readers[buf] == 1 && b->layout == LAYOUT_ROWS && !b->slice.parts;
}

static inline int64_t split_last_dim(const Buf *b) { return b->shape.rank ? b->shape.dim[b->shape.rank - 1] : 0; }

/* Fills by_token and sliced, once the divided products are known. ERR_SCRIPT: the ranks do not divide the sequence's length. */
int split_sequence(Split *s, Err *e);

/* On behalf of `of`: y is the sum of the ranks' terms, or the rank's slice of it. */
void split_sum(Split *s, int term, int y, bool sliced, const Op *of);
/* On behalf of `of`: y is what all ranks have of it, each its slice x. terms: see CollectiveAttr. */
void split_gather(Split *s, int x, int y, bool terms, const Op *of);
/* What `op` reads in place of `buf`; emits what makes it, once for all ops that read it so. */
int split_read(Split *s, int buf, Reads how, const Op *op);
/* Puts an op that works on its rank's slice of the sequence. */
void split_put_slice(Split *s, const Op *op);

#endif
