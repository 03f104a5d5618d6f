/* Fusion: a convolution or matrix product applies the activation behind it itself, so that its own output never exists.
 * Only where nothing else reads that output, and, when gradients are wanted, the activation's gradient follows from its
 * output (ReLU, Sigmoid, Tanh). The values are the same; what is saved is one pass over memory and one tensor. */
#include "passes.h"

int pass_fuse(Program *p, const Settings *s, Err *e) {
    for (int i = 0; i < p->n_ops; i++) {
        Op *op = &p->ops[i];
        ActAttr *fused = attr_fused(op->kind, &op->attr);
        if (!fused || fused->act || op->out[0] == p->output) continue;
        int reader = program_reader(p, op->out[0]);
        if (reader == NO_OP) continue;
        const Op act = p->ops[reader];
        if (act.kind != OP_act || act.region != op->region) continue;
        if (!s->eval && !act_saves_output(act.attr.act.act)) continue;
        *fused = act.attr.act;
        op->out[0] = act.out[0];
        program_drop(p, reader);
        op_cost(p, op);
    }
    return program_check(p, "fuse", e);
}
