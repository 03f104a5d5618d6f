/* checkpoint.h: torch.utils.checkpoint.checkpoint(use_reentrant=False): what a layer would save is not kept but counted;
 * the first node of it that runs backward makes all of it again, until there is as much as was counted. Source:
 * torch/utils/checkpoint.py (early stop is its default). */
#ifndef MT_CHECKPOINT_EAGER_H
#define MT_CHECKPOINT_EAGER_H

#include "aten.h"

Tensor *checkpoint_call(Eager *g, const Layer *l, Tensor *const *in);

/* In a frame, in place of saving x as the node's k-th. */
void frame_save(Eager *g, Node *n, int k, Tensor *x);
/* Fills in what the node has saved, before it runs. */
void frame_restore(Eager *g, Node *n);
void frame_drop(Eager *g, Frame *f); /* NULL is allowed */

#endif
