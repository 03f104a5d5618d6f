/* The setting "loss_chunks": logits that are never there as a whole. With a large vocabulary they and their gradient are
 * the largest tensors of a step.
 *
 *   y = linear x w b;  y.rows = view y;  loss = cross_entropy y.rows t  ->  loss = linear_cross_entropy x w b t
 *
 * That op makes the logits of some rows, their loss, their gradient in the same place, and from this the rows of dx and
 * their share of dw and db; then those of the next rows. It needs the logits of one part as workspace.
 *
 * It happens where nothing else reads the logits, and no op but views and casts stands between the two: not where a
 * softcap or a scale does. The logits have the type that mixed precision gives them in any case. */
#include <assert.h>
#include <string.h>

#include "uses.h"

static bool is_between(const Program *p, const Op *op) {
    return op->kind == OP_view || (op->kind == OP_cast && p->bufs[op->cast.y].dtype == DT_F32);
}

/* The cross entropy of the output of op `linear`, if it alone reads that, through views and casts; else NO_OP. Drops the
 * views and casts where `drop` is set. */
static int loss_of(Uses *u, int linear, bool drop) {
    Program *p = u->p;
    for (int at = linear;;) {
        const int y = p->ops[at].out[0], next = p->bufs[y].keep ? NO_OP : uses_reader(u, y);
        if (drop) uses_drop(u, at);
        if (drop && y == p->output) p->output = NO_BUF;
        if (next == NO_OP || p->ops[next].region != p->ops[linear].region) return NO_OP;
        if (!is_between(p, &p->ops[next])) return p->ops[next].kind == OP_cross_entropy ? next : NO_OP;
        at = next;
    }
}

/* Are the rows of a cross entropy those of x? Then the linear layer's last dimension is that of the classes. */
static bool rows_fit(const Program *p, const Op *linear, const Op *loss) {
    const Buf *x = &p->bufs[linear->linear.x], *y = &p->bufs[linear->linear.y];
    const Shape w = program_whole_shape(&p->bufs[linear->linear.w]);
    return !loss->attr.loss.log && y->layout == LAYOUT_ROWS && x->layout == LAYOUT_ROWS && program_classes(p, loss) == w.dim[0];
}

static void chunk_loss(Uses *u, int i, int chunks) {
    Program *p = u->p;
    const Op linear = p->ops[i];
    const int found = linear.attr.linear.fused.act == ACT_NONE ? loss_of(u, i, false) : NO_OP;
    if (found == NO_OP || !rows_fit(p, &linear, &p->ops[found])) return;
    loss_of(u, i, true);
    Op *op = &p->ops[found];
    const Op loss = *op;
    for (int k = 0; k < OP_IN; k++) op->in[k] = NO_BUF;
    for (int k = 0; k < OP_OUT; k++) op->out[k] = NO_BUF;
    op->kind = OP_linear_cross_entropy; /* u does not know what it reads: it is not asked about that */
    op->linear_cross_entropy.x = linear.linear.x;
    op->linear_cross_entropy.w = linear.linear.w;
    op->linear_cross_entropy.b = linear.linear.b;
    op->linear_cross_entropy.t = loss.cross_entropy.t;
    op->linear_cross_entropy.weight = loss.cross_entropy.w;
    op->linear_cross_entropy.loss = loss.cross_entropy.loss;
    op->attr.loss.chunks = chunks;
    op->attr.loss.tf32 = linear.attr.linear.tf32;
    op_cost(p, op);
}

int pass_chunk_loss(Program *p, Compile *c) {
    Uses u;
    assert(p->forward_end == p->n_ops); /* before the backward pass */
    if (c->settings->loss_chunks == 1 || !uses_open(&u, p, &c->scratch)) return UNCHANGED;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_linear && !u.dropped[i]) chunk_loss(&u, i, c->settings->loss_chunks);
    uses_close(&u);
    return OK;
}

/* The gradient of the forward op f; NO_OP: nothing that it reads is trained. */
static int gradient_of(const Program *p, const Op *f) {
    for (int i = p->forward_end; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        const bool free = op->kind == OP_linear_cross_entropy_dx && op->linear_cross_entropy_dx.loss == NO_BUF;
        if (free && !memcmp(op->in, f->in, 5 * sizeof *op->in) && !strcmp(op->path, f->path)) return i;
    }
    return NO_OP;
}

/* Both make the logits of each part, so one of them is enough, unless the forward pass can run alone. */
int pass_chunk_loss_gradient(Program *p, Compile *c) {
    Uses u;
    if (c->settings->loss_chunks == 1 || c->settings->parts || !uses_open(&u, p, &c->scratch)) return UNCHANGED;
    for (int i = 0; i < p->forward_end; i++) {
        const Op *f = &p->ops[i];
        const int gradient = f->kind == OP_linear_cross_entropy ? gradient_of(p, f) : NO_OP;
        if (gradient == NO_OP) continue;
        p->ops[gradient].linear_cross_entropy_dx.loss = f->linear_cross_entropy.loss;
        op_cost(p, &p->ops[gradient]);
        uses_drop(&u, i);
    }
    uses_close(&u);
    return OK;
}
