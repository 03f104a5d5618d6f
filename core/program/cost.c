/* What an op costs, for estimates: floating-point operations, bytes read and written; and what a step's ops exchange. */
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

Transfer program_transfer(const Program *p, MeshAxis axis) {
    Transfer sum = {0, 0, 0, 0};
    int64_t bucket = 0, rounds = 0; /* the open bucket, and the rounds that are counted of it */
    for (int i = 0; i < p->n_ops; i++) {
        const Transfer one = op_transfer(p, &p->ops[i]);
        const CollectiveAttr a = op_collective(&p->ops[i]);
        const int64_t its = a.bucket;
        const int64_t times = i < p->body_end ? p->micro_batches : 1;
        if (!one.calls || a.axis != axis) continue;
        const bool again = its && its == bucket;
        if (!again) rounds = 0;
        bucket = its;
        sum.sent += times * one.sent;
        sum.received += times * one.received;
        sum.calls += again ? 0 : times * one.calls;
        sum.rounds += times * max_i64(one.rounds - rounds, 0);
        rounds = max_i64(rounds, one.rounds);
    }
    return sum;
}
