/* attention.h: where the queries, keys and values of attention are, for every device. Shared with .cu files.
 *
 * Operand q is (N, T, F); k and v are (N, S, F); with time first (T, N, F) and (S, N, F). An operand that is absent is
 * stored in the rows of the one before it, after that one's features: attention of a sequence to itself has one operand
 * with rows (q, k, v), the output of one product; attention to another sequence has (q) and (k, v). The D features of a
 * head are consecutive. q has `heads` heads; k and v have `kv_heads`, each for heads / kv_heads consecutive heads of q.
 * The gradients are stored in the same way.
 *
 * Scores are capped, then `bias` is added to them: (N, heads, T, S), in which the first two may be 1.
 *
 * `positions` (N, T), whole numbers, say that a row holds several sequences, one after the other: each begins with 0, and
 * every other position is one more than the one before it. A query sees its own sequence alone, no key that lies before
 * the step i - positions[i]. So the first key does not fall from query to query: whole tiles of keys before that of the
 * first query, and of queries after the last that sees a key, need not be visited. Then attention is causal, with as many
 * keys as queries. */
#ifndef MT_ATTENTION_H
#define MT_ATTENTION_H

#include "kernel.h"

typedef struct AttentionPart { int operand; int64_t feature; } AttentionPart; /* feature: the part's first one there */

/* What the op and its gradient both have; qkv: the three operands */
typedef struct AttentionOperands { const View *qkv, *y, *lse, *calls, *bias, *positions; } AttentionOperands;
static inline AttentionOperands attention_operands(const KArgs *a) {
    const AttentionOperands own = {&a->attention.q, &a->attention.y, &a->attention.lse, &a->attention.calls, &a->attention.bias,
                                   &a->attention.positions};
    const AttentionOperands of_gradient = {&a->attention_dx.q, &a->attention_dx.y, &a->attention_dx.lse, &a->attention_dx.calls,
                                           &a->attention_dx.bias, &a->attention_dx.positions};
    return a->kind == OP_attention_dx ? of_gradient : own;
}

/* The positions of a sample's steps; NULL: there are none. */
MT_FN const int32_t *attention_positions(const View *positions, int64_t sample) {
    return positions->count ? (const int32_t *)positions->data + sample * positions->shape.dim[1] : NULL;
}

/* Query i sees the keys [attention_first, attention_end) of `keys`. positions: of its sample, or NULL */
MT_FN int64_t attention_first(const AttentionAttr *a, const int32_t *positions, int64_t i) {
    const int64_t own = positions ? i - positions[i] : 0, near = a->window ? i - a->window + 1 : 0;
    return max_i64(0, max_i64(own, near));
}
MT_FN int64_t attention_end(const AttentionAttr *a, int64_t i, int64_t keys) {
    return a->causal ? min_i64(i + 1, keys) : keys;
}

/* The score kept between -cap and cap; its derivative by the score, of the result (Gemma 2's soft cap) */
MT_FN float attention_cap(const AttentionAttr *a, float score) {
    return a->cap > 0.0f ? a->cap * tanh_value(score / a->cap) : score;
}
MT_FN float attention_cap_slope(const AttentionAttr *a, float capped) {
    const float t = a->cap > 0.0f ? capped / a->cap : 0.0f;
    return 1.0f - t * t;
}

/* The element of bias (or of its gradient) for the first key, of query 0 of a head of a sample; rows follow each other. */
MT_FN int64_t attention_bias_at(const View *bias, int64_t sample, int64_t head) {
    const int64_t *d = bias->shape.dim;
    return ((d[0] > 1 ? sample : 0) * d[1] + (d[1] > 1 ? head : 0)) * d[2] * d[3];
}

/* part: 0: q, 1: k, 2: v; qkv: the three operands, the first of which is there; width: D, features of a head */
MT_FN AttentionPart attention_part(const View *qkv, int part, const AttentionAttr *a, int64_t width) {
    AttentionPart p;
    p.feature = 0;
    for (p.operand = part; p.operand > 0 && !qkv[p.operand].count; p.operand--)
        p.feature += (p.operand == 1 ? a->heads : a->kv_heads) * width;
    return p;
}

#endif
