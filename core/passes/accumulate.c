/* Gradient accumulation: the body runs `accumulate` times, once on each micro-batch. Gradients and losses are summed up
 * in fp32 buffers that live through all of them; the update runs once. The batch's mean is the mean of the
 * micro-batches' means, so each micro-batch's loss is divided by their number, as training loops do by hand. A loss
 * with reduction = "sum" is not divided: sums add up.
 *
 * Where a script runs the parts of a step one by one, it says itself how often the body runs: gradients are then sums
 * that persist, and each loss is its own. */
#include <assert.h>

#include "rewrite.h"

/* Emits the sum of `part` over the micro-batches, or over all runs of the body; it takes part's name and roles. */
static void sum_up(Program *p, int part, const char *path) {
    const int acc = rewrite_successor(p, part, DT_F32, "micro");
    Op *op = program_op(p, OP_accumulate, path);
    if (p->failed) return;
    op->in[0] = part;
    op->out[0] = acc;
    op_cost(p, op);
    if (p->parts) p->bufs[acc].kind = BUF_PERSISTENT;
    else p->bufs[acc].carried = true;
}

/* Runs before the update, which reads the sums. A sum stands right after the op that makes a loss, or a gradient that
 * the update will read. */
int pass_accumulate(Program *p, Compile *c) {
    int times = c->settings->accumulate;
    if ((times <= 1 && !c->settings->parts) || c->settings->eval) return UNCHANGED;
    assert(!p->updates && p->body_end == p->n_ops && (times == 1 || !c->settings->parts));
    p->parts = c->settings->parts;
    Rewriter r;
    for (const Op *old = rewrite_begin(&r, p); old; old = rewrite_next(&r)) {
        Op *op = rewrite_put(p, old);
        rewrite_part_of_batch(op, times);
        EACH_OUT(old, k) {
            int b = old->out[k], param = p->bufs[b].param;
            const bool grad = param >= 0 && p->params[param].grad == b;
            if (grad || (!p->parts && p->bufs[b].loss)) sum_up(p, b, old->path);
        }
    }
    rewrite_end(&r);
    p->micro_batches = times;
    return OK;
}
