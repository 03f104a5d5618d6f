/* A parameter is updated as soon as its gradient is there and nothing reads it any more, so that the gradient can make
 * room within the backward pass. Nobody sees another number: what the update of one parameter computes depends on no
 * other's, unless all gradients count (a norm that is clipped, an overflow that skips the update), several
 * micro-batches are summed up, or the gradients are to be kept; then the update stays after the body, as it does for
 * small parameters, which a device can update together. */
#include "rewrite.h"

enum { WORTH_IT = 64 << 10 }; /* bytes of a gradient */

typedef struct Early {
    Program *p;
    int *last;  /* by root: the last op of the body that touches it, or NO_OP */
    int *after; /* by op after the body: the op of the body after which it comes, or NO_OP */
    int *first; /* by op of the body: the first that comes after it, or NO_OP */
    int *next;  /* by op after the body: the next one after the same op, or NO_OP */
} Early;

static void find_last(const Early *a) {
    const Program *p = a->p;
    for (int b = 0; b < p->n_bufs; b++) a->last[b] = NO_OP;
    for (int i = 0; i < p->body_end; i++) {
        EACH_IN(&p->ops[i], k) a->last[program_root(p, p->ops[i].in[k])] = i;
        EACH_OUT(&p->ops[i], k) a->last[program_root(p, p->ops[i].out[k])] = i;
    }
}

/* The last op of the body that needs the parameter as it was, or makes its gradient; NO_OP: the update stays. */
static int last_need(const Early *a, const Op *update) {
    const Program *p = a->p;
    const Buf *grad = &p->bufs[update->in[0]];
    if (grad->bytes < WORTH_IT || grad->keep || grad->carried) return NO_OP;
    int w = a->last[program_root(p, update->out[0])], g = a->last[program_root(p, update->in[0])];
    return w > g ? w : g;
}

/* Returns whether anything moves. */
static bool find_places(const Early *a) {
    const Program *p = a->p;
    bool moved = false;
    find_last(a);
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

/* What prepares all updates begins the backward pass. */
static void begin_updates(Rewriter *r) {
    for (int i = r->body_end; i < r->n; i++)
        if (r->old[i].kind == OP_step_begin) rewrite_put(r->p, &r->old[i]);
}

static void move(const Early *a) {
    Rewriter r;
    for (const Op *op = rewrite_begin(&r, a->p); op; op = rewrite_next(&r)) {
        bool body = r.at < r.body_end;
        if (r.at == r.forward_end) begin_updates(&r);
        if (body || (a->after[r.at] == NO_OP && op->kind != OP_step_begin)) rewrite_put(a->p, op);
        for (int k = body ? a->first[r.at] : NO_OP; k != NO_OP; k = a->next[k]) rewrite_put(a->p, &r.old[k]);
    }
    rewrite_end(&r);
}

int pass_update_early(Program *p, Compile *c) {
    bool together = p->micro_batches > 1 || p->loss_scaling || c->settings->optimizer.rule.clip_norm > 0.0f;
    if (!p->updates || together) return OK;
    size_t ops = (size_t)p->n_ops;
    Scratch *s = &c->scratch;
    Early a = {p, scratch_new(s, (size_t)p->n_bufs, sizeof(int)), scratch_new(s, ops, sizeof(int)),
               scratch_new(s, ops, sizeof(int)), scratch_new(s, ops, sizeof(int))};
    if (!s->failed && find_places(&a)) move(&a);
    return OK;
}
