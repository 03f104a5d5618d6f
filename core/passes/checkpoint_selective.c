/* Selective checkpointing (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"):
 * products are kept; what light ops make of them is dropped: activations, normalisations, casts of weights, sums. An op
 * is light if memory limits its speed: at most one operation for each byte that it reads or writes.
 *
 *     x = linear(...)      kept: GELU's gradient reads it
 *     y = gelu(x)          ALONE, depth 1: the gradient of the next weights reads it, and x is there to make it from
 *
 * Each sum of a residual network depends on the one before it, through all blocks. Without a bound on the depth all of
 * them would be made again at once, which saves nothing; with it, a sum is kept where the bound is reached. */
#include "checkpoint.h"

#include <assert.h>
#include <string.h>

bool op_is_light(const Op *op) { return op->flops <= op->traffic && op->kind != OP_transfer; }

/* Is what no op has made there in the backward pass? A batch that this does not read is kept for a second run alone, which saves
 * nothing unless it is smaller than the `bytes` that are made of it. */
static bool is_there(const Chain *c, int root, size_t bytes) {
    const Buf *b = &c->p->bufs[root];
    return b->kind == BUF_PERSISTENT || (b->kind == BUF_INPUT && (c->saved[root] || b->bytes < bytes));
}

int chain_depth(const Chain *c, const int *segment, const int *depth, int buf, size_t bytes) {
    int root = program_root(c->p, buf), writer = c->writer[root];
    if (writer == NO_OP) return is_there(c, root, bytes) ? 0 : DEEPEST;
    if (segment[writer] == ALONE) return depth[root];
    return c->saved[root] ? 0 : DEEPEST;
}

void chain_lighten(const Chain *c, int deep, LightFn *light, int from, int to, int *segment, int *depth) {
    assert(deep <= DEEPEST);
    for (int i = from; i < to; i++) {
        const Op *op = &c->p->ops[i];
        int root = op->out[0] == NO_BUF ? NO_BUF : program_root(c->p, op->out[0]), most = 0;
        if (segment[i] != LIGHTEN) continue;
        segment[i] = STORED;
        if (root == NO_BUF || c->writer[root] != i || !light(op)) continue;
        EACH_IN(op, k) {
            int d = chain_depth(c, segment, depth, op->in[k], c->p->bufs[root].bytes);
            if (d > most) most = d;
        }
        if (most >= deep) continue;
        segment[i] = ALONE;
        depth[root] = most + 1;
    }
}

int chain_select(const Chain *c, Compile *under, int *segment) {
    size_t ops = (size_t)c->p->forward_end, bytes = ops * sizeof *segment, least = SIZE_MAX, arena = 0;
    int *tried = scratch_new(&under->scratch, ops, sizeof *tried);
    int *depth = scratch_new(&under->scratch, (size_t)c->p->n_bufs, sizeof *depth);
    if (under->scratch.failed) return OK;
    for (int deep = 0; deep <= DEEPEST; deep++) {
        chain_store(c, LIGHTEN, tried);
        chain_lighten(c, deep, op_is_light, 0, c->p->forward_end, tried, depth);
        int code = chain_arena(c, tried, under, &arena);
        if (code) return code;
        if (arena >= least) continue;
        least = arena;
        memcpy(segment, tried, bytes);
    }
    return OK;
}
