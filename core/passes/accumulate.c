/* Gradient accumulation: the body runs `accumulate` times, each time on one micro-batch; gradients and losses are
 * summed up in buffers that last through all of them (fp32 where the weights are 16-bit), the update comes once.
 * A mean over the batch is the mean of the micro-batches' means: each micro-batch's loss is divided by their number, as
 * an article's training loop does by hand. A loss with reduction = "sum" is not: sums add up. */
#include <string.h>

#include "rewrite.h"

static bool is_loss(OpKind k) {
    return k == OP_cross_entropy || k == OP_element_loss || k == OP_cross_entropy_dx || k == OP_element_loss_dx;
}

/* `part` gets summed up: it becomes "<name>.micro". Returns the lasting fp32 buffer that takes its name. */
static int sum_up(Program *p, int part, const char *path) {
    char name[BUF_NAME];
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
    sum->carried = true;
    b->keep = b->loss = false;
    return acc;
}

/* The ops anew, with a sum after each op that makes what is to be summed up: losses, and the gradients that the update
 * will read. */
static void accumulate(Program *p, int times) {
    Rewriter r;
    for (const Op *old = rewrite_begin(&r, p); old; old = rewrite_next(&r)) {
        Op *op = rewrite_put(p, old);
        if (is_loss(op->kind) && !op->attr.loss.sum) op->attr.loss.scale /= (float)times;
        EACH_OUT(old, k) {
            int b = old->out[k], param = p->bufs[b].param;
            int *grad = param >= 0 && p->params[param].grad == b ? &p->params[param].grad : NULL;
            if (!grad && !p->bufs[b].loss) continue;
            int sum = sum_up(p, b, old->path);
            if (grad) *grad = sum;
            if (p->loss == b) p->loss = sum;
        }
    }
    rewrite_end(&r);
    p->micro_batches = times;
}

int pass_accumulate(Program *p, Compile *c) {
    int times = c->settings->accumulate;
    if (times > 1 && !c->settings->eval) accumulate(p, times);
    return OK;
}
