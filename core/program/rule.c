#include "rule.h"

#include <string.h>

const OpRule *op_rule(OpKind kind) {
    static const OpRule *const table[OP_KIND_COUNT] = {
#define OP(name, in, out, inplace, autocast, prepare, equation) &rule_##name,
#include "ops.def"
#undef OP
    };
    assert((unsigned)kind < OP_KIND_COUNT);
    return table[kind];
}

Operands operands_of(const Program *p, const Op *op) {
    Operands o = {.attr = &op->attr};
    for (int k = 0; k < OP_IN; k++) o.in[k] = op->in[k] == NO_BUF ? NULL : &p->bufs[op->in[k]];
    for (int k = 0; k < OP_OUT; k++) o.out[k] = op->out[k] == NO_BUF ? NULL : &p->bufs[op->out[k]];
    return o;
}

bool same_elements(const Buf *a, const Buf *b) {
    return shape_equal(&a->shape, &b->shape) && a->layout == b->layout && !memcmp(a->order, b->order, sizeof a->order) &&
           a->shard.first == b->shard.first && a->shard.count == b->shard.count;
}

bool same_buf(const Buf *a, const Buf *b) { return same_elements(a, b) && a->dtype == b->dtype; }

bool fits_elements(const Operands *o) { return same_elements(o->in[0], o->out[0]); }
bool fits_whole(const Operands *o) { return same_buf(o->in[0], o->out[0]); }
bool fits_type(const Operands *o) { return o->in[0]->dtype == o->out[0]->dtype; }
bool fits_pair(const Operands *o) { return same_elements(o->in[0], o->in[1]) && fits_elements(o); }

const char *act_name(ActFn act) {
    static const char *const names[] = {
#define X(name, text, saved) text,
        ACTS(X)
#undef X
    };
    assert((unsigned)act < ACT_COUNT);
    return names[act];
}
