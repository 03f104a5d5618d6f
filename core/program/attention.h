/* attention.h: where attention has its queries, keys and values, for every device. Shared with .cu files.
 *
 * Operands q, k, v are (N, T, F) for queries and (N, S, F) for keys and values (time first: (T, N, F)). One that is
 * absent lies in the rows of the one before it, after it: attention of a sequence to itself has one operand with rows
 * (q, k, v), the output of one product; attention to another sequence (q) and (k, v). Heads of D features lie side by
 * side: `heads` of q, and `kv_heads` of k and v, each of which serves heads / kv_heads neighbours of q. Their gradients
 * lie in the same way. */
#ifndef MT_ATTENTION_H
#define MT_ATTENTION_H

#include "kernel.h"

typedef struct AttentionPart { int operand; int64_t feature; } AttentionPart; /* feature: its first one there */

/* part 0: q, 1: k, 2: v of those three operands, whose heads are D = `width` features wide */
MT_FN AttentionPart attention_part(const View *qkv, int part, const AttentionAttr *a, int64_t width) {
    AttentionPart p;
    p.feature = 0;
    for (p.operand = part; p.operand > 0 && !qkv[p.operand].count; p.operand--)
        p.feature += (p.operand == 1 ? a->heads : a->kv_heads) * width;
    return p;
}

#endif
