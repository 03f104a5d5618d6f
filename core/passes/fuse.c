/* Fusion: a convolution or matrix product applies the activation behind it itself, so that its own output never exists.
 * Only where nothing else reads that output, and, when gradients are wanted, the activation's gradient follows from its
 * output (ReLU, Sigmoid, Tanh). The values are the same; what is saved is one pass over memory and one tensor. */
#include "passes.h"

static int readers(const Program *p, int buf, int *last) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_IN; k++)
            if (p->ops[i].in[k] == buf) {
                n++;
                *last = i;
            }
    return n;
}

int pass_fuse(Program *p, const Settings *s, Err *e) {
    for (int i = 0; i < p->n_ops; i++) {
        Op *op = &p->ops[i];
        int reader = NO_OP;
        ActAttr *fused = attr_fused(op->kind, &op->attr);
        if (!fused || fused->act || op->out[0] == p->output || readers(p, op->out[0], &reader) != 1) continue;
        const Op act = p->ops[reader];
        if (act.kind != OP_act || act.region != op->region) continue;
        if (!s->eval && !act_saves_output(act.attr.act.act)) continue;
        *fused = act.attr.act;
        op->out[0] = act.out[0];
        for (int k = reader; k + 1 < p->n_ops; k++) p->ops[k] = p->ops[k + 1];
        p->n_ops--;
        op_cost(p, op);
    }
    p->forward_end = p->body_end = p->n_ops;
    return program_check(p, "fuse", e);
}
