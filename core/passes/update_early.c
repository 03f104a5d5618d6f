/* Moves the update of a parameter into the backward pass, to where its gradient is there and nothing reads the
 * parameter any more, so that the gradient can make room early. No number changes, because updates do not depend on
 * each other. They do if all gradients count (a clipped norm, an overflow that skips the update) or several
 * micro-batches are summed up; then all updates stay after the body. So do those whose gradient is kept, those of
 * small parameters, which a device can update together, and those of a stage of a pipeline. */
#include <assert.h>

#include "rewrite.h"

enum { WORTH_IT = 64 << 10 }; /* bytes of a gradient */

typedef struct Early {
    Program *p;
    int *last;  /* by root: the last op of the body that touches it, or NO_OP */
    int *after; /* by op after the body: the op of the body that it is moved after, or NO_OP */
    int *first; /* by op of the body: the first op that is moved after it, or NO_OP */
    int *next;  /* by op after the body: the next one that is moved after the same op, or NO_OP */
} Early;

/* The last op of the body that needs the parameter as it was, or makes its gradient; NO_OP: the update stays. */
static int last_need(const Early *a, const Op *update) {
    const Program *p = a->p;
    const Buf *grad = &p->bufs[update->in[0]];
    if (grad->bytes < WORTH_IT || grad->keep || grad->carried) return NO_OP;
    int w = a->last[program_root(p, update->out[0])], g = a->last[program_root(p, update->in[0])];
    return w > g ? w : g;
}

/* Fills all of `a`. Returns whether anything moves. */
static bool find_places(const Early *a) {
    const Program *p = a->p;
    bool moved = false;
    for (int b = 0; b < p->n_bufs; b++) a->last[b] = NO_OP;
    for (int i = 0; i < p->body_end; i++) {
        EACH_IN(&p->ops[i], k) a->last[program_root(p, p->ops[i].in[k])] = i;
        EACH_OUT(&p->ops[i], k) a->last[program_root(p, p->ops[i].out[k])] = i;
    }
    for (int i = 0; i < p->body_end; i++) a->first[i] = NO_OP;
    for (int i = p->n_ops - 1; i >= p->body_end; i--) {
        a->after[i] = op_is_update(p->ops[i].kind) ? last_need(a, &p->ops[i]) : NO_OP;
        if (a->after[i] == NO_OP) continue;
        moved = true;
        a->next[i] = a->first[a->after[i]];
        a->first[a->after[i]] = i;
    }
    return moved;
}

static void move(const Early *a) {
    Rewriter r;
    for (const Op *op = rewrite_begin(&r, a->p); op; op = rewrite_next(&r)) {
        bool body = r.at < r.body_end;
        for (int i = r.body_end; i < r.n && r.at == r.forward_end; i++) /* it must run before every update */
            if (r.old[i].kind == OP_step_begin) rewrite_put(a->p, &r.old[i]);
        if (body || (a->after[r.at] == NO_OP && op->kind != OP_step_begin)) rewrite_put(a->p, op);
        for (int k = body ? a->first[r.at] : NO_OP; k != NO_OP; k = a->next[k]) rewrite_put(a->p, &r.old[k]);
    }
    rewrite_end(&r);
}

int pass_update_early(Program *p, Compile *c) {
    bool together = p->parts || p->pipeline > 1 || p->micro_batches > 1 || p->loss_scaling || c->settings->optimizer.rule.clip_norm > 0.0f;
    if (!p->updates || together) return UNCHANGED;
    assert(p->forward_end <= p->body_end && p->body_end < p->n_ops); /* after the update */
    size_t ops = (size_t)p->n_ops;
    Scratch *s = &c->scratch;
    Early a = {p, scratch_new(s, (size_t)p->n_bufs, sizeof(int)), scratch_new(s, ops, sizeof(int)),
               scratch_new(s, ops, sizeof(int)), scratch_new(s, ops, sizeof(int))};
    if (!s->failed && find_places(&a)) move(&a);
    return OK;
}
