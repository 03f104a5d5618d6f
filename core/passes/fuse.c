/* Fusion: an op applies an activation itself.
 *
 *   conv2d, linear   the activation behind: the product's own output never exists.
 *   maxpool          a ReLU, behind or before: max(relu(x)) = relu(max(x)), and where that is 0 no gradient comes
 *                    through, wherever in the window it came from. So the backward pass keeps the small map, which the
 *                    next layer reads anyway, in place of the large one.
 *
 * Only where nothing else reads what lies between, and, when gradients are wanted, the activation's gradient follows
 * from its output (ReLU, Sigmoid, Tanh). The values are the same. */
#include "passes.h"

/* The op that alone reads what op `i` makes, in the same nn.Checkpoint; NO_OP: there is none, or it is the output. */
static int next_op(const Program *p, int i) {
    const Op *op = &p->ops[i];
    int reader = op->out[0] == p->output ? NO_OP : program_reader(p, op->out[0]);
    return reader == NO_OP || p->ops[reader].region != op->region ? NO_OP : reader;
}

static void pool_takes_before(Program *p, int i) {
    const Op act = p->ops[i];
    int next = act.kind == OP_act && act.attr.act.act == ACT_RELU ? next_op(p, i) : NO_OP;
    if (next == NO_OP || p->ops[next].kind != OP_maxpool) return;
    p->ops[next].in[0] = act.in[0];
    p->ops[next].attr.pool.fused = act.attr.act;
    program_drop(p, i);
}

static void takes_behind(Program *p, int i, bool eval) {
    Op *op = &p->ops[i];
    ActAttr *fused = attr_fused(op->kind, &op->attr);
    int next = fused && !fused->act ? next_op(p, i) : NO_OP;
    if (next == NO_OP || p->ops[next].kind != OP_act) return;
    const Op act = p->ops[next];
    if (!eval && !act_saves_output(act.attr.act.act)) return;
    if (op->kind == OP_maxpool && act.attr.act.act != ACT_RELU) return;
    *fused = act.attr.act;
    op->out[0] = act.out[0];
    program_drop(p, next);
    op_cost(p, op);
}

int pass_fuse(Program *p, const Settings *s, Err *e) {
    for (int i = p->n_ops - 1; i >= 0; i--) pool_takes_before(p, i); /* first: else a product takes that ReLU */
    for (int i = 0; i < p->n_ops; i++) takes_behind(p, i, s->eval);
    return program_check(p, "fuse", e);
}
