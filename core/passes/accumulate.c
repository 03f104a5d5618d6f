/* Gradient accumulation: the body runs `accumulate` times, each time on one micro-batch; gradients and losses are
 * summed up in buffers that last through all of them (fp32 where the weights are 16-bit), the update comes once.
 * A mean over the batch is the mean of the micro-batches' means: each micro-batch's loss is divided by their number, as
 * an article's training loop does by hand. A loss with reduction = "sum" is not: sums add up. */
#include <stdio.h>
#include <string.h>

#include "passes.h"
#include "base/mem.h"

static bool is_loss(OpKind k) {
    return k == OP_cross_entropy || k == OP_element_loss || k == OP_cross_entropy_dx || k == OP_element_loss_dx;
}

/* `part` gets summed up: it becomes "<name>.micro", and a lasting fp32 buffer takes its name. */
static void sum_up(Program *p, int part, const char *path) {
    char name[BUF_NAME];
    Buf *b = &p->bufs[part];
    snprintf(name, sizeof name, "%s", b->name);
    snprintf(b->name, sizeof b->name, "%.*s.micro", BUF_NAME - 8, name);
    const Buf like = *b;
    b->keep = b->loss = false;
    int acc = program_buf(p, like.category, like.shape, DT_F32, "%s", name);
    Op *op = program_op(p, OP_accumulate, path);
    if (p->failed) return;
    op->in[0] = part;
    op->out[0] = acc;
    op_cost(p, op);
    b = &p->bufs[acc];
    b->layout = like.layout;
    memcpy(b->order, like.order, sizeof b->order);
    b->param = like.param;
    b->keep = like.keep;
    b->carried = true;
    b->loss = like.loss;
    if (part == p->loss) p->loss = acc;
}

/* part[n_bufs]: what is read by a sum. */
static void find_parts(const Program *p, bool *part) {
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_IN && p->ops[i].kind == OP_add; k++)
            if (p->ops[i].in[k] != NO_BUF) part[p->ops[i].in[k]] = true;
}

/* The ops anew, with a sum after each op that makes what is to be summed up: losses, and the gradients that the update
 * will read, not parts of them. */
static void accumulate(Program *p, const Op *old, const bool *part, int times) {
    int n = p->n_ops, forward_end = p->forward_end;
    p->n_ops = 0;
    for (int i = 0; i < n && !p->failed; i++) {
        Op *op = program_op(p, old[i].kind, old[i].path);
        *op = old[i];
        if (is_loss(op->kind) && !op->attr.loss.sum) op->attr.loss.scale /= (float)times;
        if (i < forward_end) p->forward_end = p->n_ops;
        for (int k = 0; k < OP_OUT; k++) {
            int b = old[i].out[k];
            if (b == NO_BUF || !(p->bufs[b].loss || (p->bufs[b].category == CAT_GRADIENTS && !part[b]))) continue;
            sum_up(p, b, old[i].path);
            if (i < forward_end) p->forward_end = p->n_ops;
        }
    }
    p->micro_batches = times;
    p->body_end = p->n_ops;
}

int pass_accumulate(Program *p, Compile *c) {
    int times = c->settings->accumulate;
    if (times <= 1 || c->settings->eval) return OK;
    Op *old = mem_copy(p->ops, (size_t)p->n_ops * sizeof *old);
    bool *part = mem_new((size_t)p->n_bufs);
    if (old && part) {
        find_parts(p, part);
        accumulate(p, old, part, times);
    } else {
        p->failed = true;
    }
    mem_free(old);
    mem_free(part);
    return OK;
}
