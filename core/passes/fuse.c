/* Fusion: an op applies an activation itself.
 *
 *   conv2d, linear   the activation after it: the product's own output never exists.
 *   mul              an activation of one of its factors, where the backward pass keeps the activation's input (SiLU, GELU):
 *                    a gated MLP. The activation's output never exists. Both gradients read the factors alone, and lie
 *                    where these did (inplace.c).
 *   maxpool          a ReLU after or before it, since max(relu(x)) = relu(max(x)). Where the result is 0 no gradient
 *                    passes, whichever element of the window it came from. So the backward pass keeps the small map,
 *                    which the next layer reads anyway, in place of the large one.
 *
 * This happens only if nothing else reads what lies between the two, and, for training, if the activation's gradient
 * follows from its output (ReLU, Sigmoid, Tanh; of mul the other way round). The values are the same. The border of an
 * nn.Checkpoint may lie between the two: what crosses it is kept in any case, and is now the one output that there is. */
#include "uses.h"

#include <assert.h>

/* The only op that reads the first output of op `i`. NO_OP: there is none, or the output is the network's. */
static int next_op(const Uses *u, int i) {
    const int y = u->p->ops[i].out[0];
    return y == u->p->output ? NO_OP : uses_reader(u, y);
}

/* A max pooling applies the ReLU `i` before it. */
static void fuse_before(Uses *u, int i) {
    const Op *act = &u->p->ops[i];
    int next = act->kind == OP_act && act->attr.act.act == ACT_RELU ? next_op(u, i) : NO_OP;
    if (next == NO_OP || u->p->ops[next].kind != OP_maxpool) return;
    u->p->ops[next].attr.pool.fused = act->attr.act;
    uses_drop(u, i);
    uses_move(u, act->out[0], act->in[0]);
}

/* Op `i` applies the activation after it. */
static void fuse_after(Uses *u, int i, bool eval) {
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

/* The product after the activation `i` applies it. Scale's gradient reads nothing: it gains nothing. */
static void fuse_factor(Uses *u, int i) {
    Program *p = u->p;
    const Op act = p->ops[i];
    const bool saves_input = act.kind == OP_act && !act_saves_output(act.attr.act.act) && act.attr.act.act != ACT_SCALE;
    const int next = saves_input ? next_op(u, i) : NO_OP;
    if (next == NO_OP || p->ops[next].kind != OP_mul || p->ops[next].attr.mul.f.act) return;
    Op *op = &p->ops[next];
    const DType of = p->bufs[act.act.y].dtype;
    if (p->bufs[act.act.x].dtype != of) return;
    uses_drop(u, i);
    uses_move(u, act.act.y, act.act.x);
    if (op->mul.a != act.act.x) uses_swap(u, next);
    op->attr.mul = (MulAttr){act.attr.act, of};
    op->attr.mul.f.inplace = 0;
    op_cost(p, op);
}

int pass_fuse(Program *p, Compile *c) {
    Uses u;
    assert(p->forward_end == p->n_ops); /* before the backward pass, which then has less to do */
    if (!uses_open(&u, p, &c->scratch)) return OK;
    for (int i = p->n_ops - 1; i >= 0; i--) fuse_before(&u, i); /* first, or a product would take that ReLU */
    for (int i = 0; i < p->n_ops; i++)
        if (!u.dropped[i]) fuse_after(&u, i, c->settings->eval);
    for (int i = 0; i < p->n_ops; i++)
        if (!u.dropped[i]) fuse_factor(&u, i);
    uses_close(&u);
    return OK;
}
