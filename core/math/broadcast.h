/* broadcast.h: a tensor that is broadcast over a larger one, as in PyTorch. In the order of memory, its sizes are those
 * of the larger one, except in one run of dimensions, where they are 1. A gate of channels (N, C, 1, 1) over an image
 * stored as N, H, W, C has the run (H, W); a gate of pixels (N, 1, H, W) has the run C. Shared with .cu files. */
#ifndef MT_BROADCAST_H
#define MT_BROADCAST_H

#include "base/shape.h"

typedef struct BroadcastAttr { int32_t add; } BroadcastAttr; /* 1: a sum, 0: a product */

/* The larger tensor is (outer, run, inner) in memory, the smaller one (outer, inner). */
typedef struct Broadcast { int64_t outer, run, inner; } Broadcast;

/* How `s` is broadcast over `x`, both in PyTorch's order of dimensions; channels_last: both are stored with dimension 1
 * innermost. false: `s` cannot be broadcast with one run. */
static inline bool broadcast_read(const Shape *x, const Shape *s, bool channels_last, Broadcast *to) {
    int64_t *part = &to->outer;
    assert(x->rank >= 1);
    to->outer = to->run = to->inner = 1;
    if (x->rank != s->rank || x->dim[0] != s->dim[0]) return false;
    for (int i = 0; i < x->rank; i++) {
        const int d = !channels_last || i == 0 ? i : i + 1 < x->rank ? i + 1 : 1;
        const int64_t size = x->dim[d];
        if (s->dim[d] != size) {
            if (s->dim[d] != 1 || part == &to->inner) return false;
            part = &to->run;
        } else if (part == &to->run && size > 1) {
            part = &to->inner;
        }
        *part *= size;
    }
    return true;
}

#endif
