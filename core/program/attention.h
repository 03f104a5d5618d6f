/* attention.h: where the queries, keys and values of attention are, for every device. Shared with .cu files.
 *
 * Operand q is (N, T, F); k and v are (N, S, F); with time first (T, N, F) and (S, N, F). An operand that is absent is
 * stored in the rows of the one before it, after that one's features: attention of a sequence to itself has one operand
 * with rows (q, k, v), the output of one product; attention to another sequence has (q) and (k, v). The D features of a
 * head are consecutive. q has `heads` heads; k and v have `kv_heads`, each for heads / kv_heads consecutive heads of q.
 * The gradients are stored in the same way. */
#ifndef MT_ATTENTION_H
#define MT_ATTENTION_H

#include "kernel.h"

typedef struct AttentionPart { int operand; int64_t feature; } AttentionPart; /* feature: the part's first one there */

/* part: 0: q, 1: k, 2: v; qkv: the three operands, the first of which is there; width: D, features of a head */
MT_FN AttentionPart attention_part(const View *qkv, int part, const AttentionAttr *a, int64_t width) {
    AttentionPart p;
    p.feature = 0;
    for (p.operand = part; p.operand > 0 && !qkv[p.operand].count; p.operand--)
        p.feature += (p.operand == 1 ? a->heads : a->kv_heads) * width;
    return p;
}

#endif
