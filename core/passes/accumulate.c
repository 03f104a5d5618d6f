/* Gradient accumulation: the body runs `accumulate` times, once on each micro-batch. Gradients and losses are summed up
 * in fp32 buffers that live through all of them; the update runs once. The batch's mean is the mean of the
 * micro-batches' means, so each micro-batch's loss is divided by their number, as training loops do by hand. A loss
 * with reduction = "sum" is not divided: sums add up.
 *
 * Where a script runs the parts of a step one by one, it says itself how often the body runs: gradients are then sums
 * that persist, and each loss is its own. */
#include <assert.h>
#include <string.h>

#include "rewrite.h"

static bool is_loss(OpKind k) {
    return k == OP_cross_entropy || k == OP_element_loss || k == OP_cross_entropy_dx || k == OP_element_loss_dx ||
           k == OP_linear_cross_entropy || k == OP_linear_cross_entropy_dx;
}

/* Emits the sum of `part` over the micro-batches, or over all runs of the body. Returns the sum's buffer, which takes part's name and roles; `part`
 * becomes "<name>.micro". */
static int sum_up(Program *p, int part, const char *path) {
    char name[BUF_NAME];
    assert(p->bufs[part].kind == BUF_TEMP);
    int acc = program_like(p, part, p->bufs[part].category, p->bufs[part].shape, DT_F32, "micro");
    Op *op = program_op(p, OP_accumulate, path);
    if (p->failed) return part;
    op->in[0] = part;
    op->out[0] = acc;
    op_cost(p, op);
    Buf *b = &p->bufs[part], *sum = &p->bufs[acc];
    memcpy(name, b->name, sizeof name);
    memcpy(b->name, sum->name, sizeof name);
    memcpy(sum->name, name, sizeof name);
    sum->param = b->param;
    sum->keep = b->keep;
    sum->loss = b->loss;
    if (p->parts) sum->kind = BUF_PERSISTENT;
    else sum->carried = true;
    b->keep = b->loss = false;
    return acc;
}

/* Runs before the update, which reads the sums. A sum stands right after the op that makes a loss, or a gradient that
 * the update will read. */
int pass_accumulate(Program *p, Compile *c) {
    int times = c->settings->accumulate;
    if ((times <= 1 && !c->settings->parts) || c->settings->eval) return OK;
    assert(!p->updates && p->body_end == p->n_ops && (times == 1 || !c->settings->parts));
    p->parts = c->settings->parts;
    Rewriter r;
    for (const Op *old = rewrite_begin(&r, p); old; old = rewrite_next(&r)) {
        Op *op = rewrite_put(p, old);
        if (is_loss(op->kind) && !op->attr.loss.sum) op->attr.loss.scale /= (float)times;
        EACH_OUT(old, k) {
            int b = old->out[k], param = p->bufs[b].param;
            int *grad = param >= 0 && p->params[param].grad == b ? &p->params[param].grad : NULL;
            if (!grad && (p->parts || !p->bufs[b].loss)) continue;
            int sum = sum_up(p, b, old->path);
            if (grad) *grad = sum;
            if (p->loss == b) p->loss = sum;
        }
    }
    rewrite_end(&r);
    p->micro_batches = times;
    return OK;
}
