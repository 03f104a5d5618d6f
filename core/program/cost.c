/* What an op costs, for estimates: floating-point operations, and bytes read and written. */
#include <math.h>

#include "rule.h"

void op_cost(const Program *p, Op *op) {
    if (p->failed) return;
    const OpRule *rule = op_rule(op->kind);
    const Operands o = operands_of(p, op);
    double largest = 0, bytes = 0; /* elements of the largest operand; bytes of all, of an updated one twice */
    EACH_IN(op, k) {
        largest = fmax(largest, buf_elements(o.in[k]));
        bytes += (double)o.in[k]->bytes;
    }
    EACH_OUT(op, k) {
        largest = fmax(largest, buf_elements(o.out[k]));
        bytes += (double)o.out[k]->bytes * (op_info(op->kind)->out[k].updated ? 2 : 1);
    }
    op->flops = rule->flops ? rule->flops(&o) : largest;
    op->traffic = op->kind == OP_view ? 0 : bytes;
}
