/* card.h: GPUs that are not here: what an op of PyTorch takes inside itself depends on them. */
#ifndef MT_CARD_H
#define MT_CARD_H

#include "base/base.h"

typedef struct Card {
    const char *name, *title;         /* "a100-80gb", "NVIDIA A100 80 GB" */
    size_t memory;                    /* bytes, as its data sheet has them: the driver shows a little less */
    int64_t multiprocessors, threads; /* and of each */
    int64_t cublas_workspace;         /* bytes, of each thread that computes a product */
    size_t context;                   /* bytes of a process before its first tensor; 0: unknown */
    const char *source;               /* of the context's bytes, or "unknown" */
} Card;

/* The card of that name; NULL: there is none. */
const Card *card_find(const char *name);
/* The i-th, NULL past the end. */
const Card *card_info(int i);

#endif
