/* The gradient of every forward op, as ops, last op first. Gradients are buffers with the shape and type of what they
 * are the gradient of; a buffer that is read twice gets the sum. Where no trained parameter lies upstream, no gradient
 * is emitted. A parameter that reaches an op through a cast gets its gradient straight in its own type. */
#include "passes.h"
#include "base/mem.h"
#include "program/rule.h"

static void mark(Gradients *g, int n_bufs, int forward_ops) {
    const Program *p = g->p;
    for (int i = 0; i < n_bufs; i++) {
        g->grad[i] = NO_BUF;
        g->wanted[i] = p->bufs[i].param >= 0 && !p->bufs[i].frozen;
        g->leaf[i] = i;
    }
    for (int i = 0; i < forward_ops; i++) {
        const Op *op = &p->ops[i];
        bool wanted = false;
        for (int k = 0; k < OP_IN; k++) wanted |= gradient_wanted(g, op->in[k]);
        for (int k = 0; k < OP_OUT; k++)
            if (op->out[k] != NO_BUF) g->wanted[op->out[k]] = wanted;
        if (op->kind == OP_cast && p->bufs[op->cast.x].category == CAT_WEIGHTS) g->leaf[op->cast.y] = op->cast.x;
    }
}

/* Of a copy of f: the rule's ops are put where f may have to move. */
static void differentiate(Gradients *g, const Op f) {
    const OpRule *rule = op_rule(f.kind);
    int y = f.out[0];
    bool weight_copy = g->leaf[y] != y;
    if (weight_copy || (!g->p->bufs[y].loss && g->grad[y] == NO_BUF)) return;
    if (rule->gradient) rule->gradient(g, &f, g->grad[y]);
    else g->p->failed = true; /* a forward op without a gradient: the op tests reach every one of them */
}

int pass_backward(Program *p, const Settings *s, Err *e) {
    if (s->eval) return OK;
    int forward_ops = p->n_ops;
    size_t n = (size_t)p->n_bufs;
    Gradients g = {p, mem_new(n * sizeof(int)), mem_new(n * sizeof(bool)), mem_new(n * sizeof(int))};
    if (!g.grad || !g.wanted || !g.leaf) p->failed = true;
    else mark(&g, p->n_bufs, forward_ops);
    for (int i = forward_ops - 1; i >= 0 && !p->failed; i--) differentiate(&g, p->ops[i]);
    for (int i = forward_ops; i < p->n_ops; i++) op_cost(p, &p->ops[i]);
    if (p->calls != NO_BUF) program_op(p, OP_count_call, "")->count_call.calls = p->calls;
    p->body_end = p->n_ops;
    mem_free(g.grad);
    mem_free(g.wanted);
    mem_free(g.leaf);
    return program_check(p, "backward", e);
}
