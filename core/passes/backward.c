/* Emits the gradient of every forward op, last op first. A gradient has the shape and type of the buffer that it
 * belongs to; a buffer that several ops read gets the sum. A buffer gets a gradient only if it depends on a trained
 * parameter. A parameter that reaches an op through a cast gets its gradient directly in its own type. */
#include <assert.h>

#include "passes.h"
#include "program/rule.h"

/* Finds which buffers want a gradient, and the parameter (leaf) that each cast of a weight is a copy of. */
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
        EACH_IN(op, k) wanted |= g->wanted[op->in[k]];
        EACH_OUT(op, k) g->wanted[op->out[k]] = wanted;
        if (op->kind == OP_cast && p->bufs[op->cast.x].category == CAT_WEIGHTS) g->leaf[op->cast.y] = op->cast.x;
    }
}

int pass_backward(Program *p, Compile *c) {
    if (c->settings->eval) return OK;
    assert(p->forward_end == p->n_ops && p->body_end == p->n_ops); /* there are forward ops only */
    int forward_ops = p->n_ops;
    size_t n = (size_t)p->n_bufs;
    Scratch *s = &c->scratch;
    Gradients g = {p, scratch_new(s, n, sizeof(int)), scratch_new(s, n, sizeof(bool)), scratch_new(s, n, sizeof(int))};
    if (s->failed) return OK;
    mark(&g, p->n_bufs, forward_ops);
    for (int i = forward_ops - 1; i >= 0 && !p->failed; i--) {
        const Op f = p->ops[i]; /* a copy: emitting the rule's ops may move p->ops */
        int y = f.out[0];
        bool weight_copy = g.leaf[y] != y;
        if (weight_copy || (!p->bufs[y].loss && g.grad[y] == NO_BUF)) continue;
        assert(op_rule(f.kind)->gradient); /* every forward op has one: the op tests reach each of them */
        op_rule(f.kind)->gradient(&g, &f, g.grad[y]);
    }
    for (int i = forward_ops; i < p->n_ops; i++) op_cost(p, &p->ops[i]);
    if (p->calls != NO_BUF) {
        Op *count = program_op(p, OP_count_call, "");
        count->count_call.calls = p->calls;
        count->attr.count.by = 1;
    }
    p->body_end = p->n_ops;
    for (int i = 0; i < p->n_params && !p->failed; i++) p->params[i].grad = g.grad[p->params[i].weight];
    return OK;
}
