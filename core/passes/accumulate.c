/* Gradient accumulation: the body runs `accumulate` times, each time on one micro-batch; gradients and losses are
 * summed up in buffers that last through all of them (fp32 where the weights are 16-bit), the update comes once.
 * A mean over the batch is the mean of the micro-batches' means: each micro-batch's loss is divided by their number, as
 * an article's training loop does by hand. A loss with reduction = "sum" is not: sums add up. */
#include <stdio.h>
#include <string.h>

#include "passes.h"
#include "mem.h"

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

/* The gradient that the update will read, not a part of a sum. */
static bool is_final(const Program *p, int buf) {
    const Buf *b = &p->bufs[buf];
    if (b->category != CAT_GRADIENTS) return false;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_add && (p->ops[i].in[0] == buf || p->ops[i].in[1] == buf)) return false;
    return true;
}

int pass_accumulate(Program *p, const Settings *s, Err *e) {
    if (s->accumulate <= 1 || s->eval) return OK;
    int n = p->n_ops, forward_end = p->forward_end;
    Op *old = mem_copy(p->ops, (size_t)n * sizeof *old);
    if (!old) p->failed = true;
    p->n_ops = 0;
    for (int i = 0; i < n && !p->failed; i++) {
        Op *op = program_op(p, old[i].kind, old[i].path);
        *op = old[i];
        if (is_loss(op->kind) && !op->attr.loss.sum) op->attr.loss.scale /= (float)s->accumulate;
        if (i < forward_end) p->forward_end = p->n_ops;
        for (int k = 0; k < OP_OUT; k++) {
            int b = old[i].out[k];
            if (b == NO_BUF || !(p->bufs[b].loss || is_final(p, b))) continue;
            sum_up(p, b, old[i].path);
            if (i < forward_end) p->forward_end = p->n_ops;
        }
    }
    mem_free(old);
    p->micro_batches = s->accumulate;
    p->body_end = p->n_ops;
    return program_check(p, "accumulate", e);
}
