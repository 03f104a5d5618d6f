/* Fusion: an op applies an activation itself.
 *
 *   conv2d, linear   the activation after: the product's own output never exists.
 *   maxpool          a ReLU, after or before: max(relu(x)) = relu(max(x)), and where that is 0 no gradient comes
 *                    through, wherever in the window it came from. So the backward pass keeps the small map, which the
 *                    next layer reads anyway, in place of the large one.
 *
 * Only where nothing else reads what lies between, and, when gradients are wanted, the activation's gradient follows
 * from its output (ReLU, Sigmoid, Tanh). The values are the same. */
#include "uses.h"

/* The op that alone reads what op `i` makes, in the same nn.Checkpoint; NO_OP: there is none, or it is the output. */
static int next_op(const Uses *u, int i) {
    const Op *op = &u->p->ops[i];
    int reader = op->out[0] == u->p->output ? NO_OP : uses_reader(u, op->out[0]);
    return reader == NO_OP || u->p->ops[reader].region != op->region ? NO_OP : reader;
}

static void pool_takes_before(Uses *u, int i) {
    const Op *act = &u->p->ops[i];
    int next = act->kind == OP_act && act->attr.act.act == ACT_RELU ? next_op(u, i) : NO_OP;
    if (next == NO_OP || u->p->ops[next].kind != OP_maxpool) return;
    u->p->ops[next].attr.pool.fused = act->attr.act;
    uses_drop(u, i);
    uses_move(u, act->out[0], act->in[0]);
}

static void takes_behind(Uses *u, int i, bool eval) {
    Op *op = &u->p->ops[i];
    ActAttr *fused = attr_fused(op->kind, &op->attr);
    int next = fused && !fused->act ? next_op(u, i) : NO_OP;
    if (next == NO_OP || u->p->ops[next].kind != OP_act) return;
    const Op *act = &u->p->ops[next];
    if (!eval && !act_saves_output(act->attr.act.act)) return;
    if (op->kind == OP_maxpool && act->attr.act.act != ACT_RELU) return;
    *fused = act->attr.act;
    op->out[0] = act->out[0];
    uses_drop(u, next);
    op_cost(u->p, op);
}

int pass_fuse(Program *p, Compile *c) {
    Uses u;
    if (!uses_open(&u, p, &c->scratch)) return OK;
    for (int i = p->n_ops - 1; i >= 0; i--) pool_takes_before(&u, i); /* first: else a product takes that ReLU */
    for (int i = 0; i < p->n_ops; i++)
        if (!u.dropped[i]) takes_behind(&u, i, c->settings->eval);
    uses_close(&u);
    return OK;
}
