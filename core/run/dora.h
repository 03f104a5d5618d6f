/* dora.h: DoRA (math/dora.h) on the host: what the magnitudes start as, and merged weights. Weights lie in PyTorch's order. */
#ifndef MT_RUN_DORA_H
#define MT_RUN_DORA_H

#include "base/base.h"

/* w (out, in), or (in, out) where it is turned; a (rank, in), b (out, rank) */
typedef struct LowRank { int64_t out, in, rank; bool turned; float scaling; const float *a, *b; } LowRank;

/* w += scaling b a */
void low_rank_add(const LowRank *l, float *w);
/* norm[out]: of the rows of w, which has one for each output feature */
void row_norms(const LowRank *l, const float *w, float *norm);
/* Multiplies the rows of w by factor[out]. */
void rows_scale(const LowRank *l, float *w, const float *factor);

#endif
