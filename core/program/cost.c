/* What an op costs, for estimates: floating-point operations, and bytes read and written. */
#include "rule.h"

/* One operation per element of the largest operand. */
static double pointwise(const Operands *o) {
    double most = 0;
    for (int k = 0; k < OP_IN; k++)
        if (buf_elements(o->in[k]) > most) most = buf_elements(o->in[k]);
    for (int k = 0; k < OP_OUT; k++)
        if (buf_elements(o->out[k]) > most) most = buf_elements(o->out[k]);
    return most;
}

static double traffic(const Operands *o, OpKind kind) {
    const OpInfo *info = op_info(kind);
    double bytes = 0;
    if (kind == OP_view) return 0;
    for (int k = 0; k < OP_IN; k++)
        if (o->in[k]) bytes += (double)o->in[k]->bytes;
    for (int k = 0; k < OP_OUT; k++)
        if (o->out[k]) bytes += (double)o->out[k]->bytes * (info->out[k].updated ? 2 : 1);
    return bytes;
}

void op_cost(const Program *p, Op *op) {
    if (p->failed) return;
    const OpRule *rule = op_rule(op->kind);
    const Operands o = operands_of(p, op);
    op->flops = rule->flops ? rule->flops(&o) : pointwise(&o);
    op->traffic = traffic(&o, op->kind);
}
