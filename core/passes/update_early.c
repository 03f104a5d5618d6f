/* A parameter is updated as soon as its gradient is there and nothing reads it any more, so that the gradient can make
 * room within the backward pass. Nobody sees another number: what the update of one parameter computes depends on no
 * other's, unless all gradients count (a norm that is clipped, an overflow that skips the update), several
 * micro-batches are summed up, or the gradients are to be kept; then the update stays behind the body, as it does for
 * small parameters, which a device can update together. */
#include "passes.h"
#include "base/mem.h"

enum { WORTH_IT = 64 << 10 }; /* bytes of a gradient */

typedef struct Early {
    Program *p;
    const Op *old;
    int *last;  /* by root: the last op of the body that touches it, or NO_OP */
    int *after; /* by op after the body: the op of the body after which it comes, or NO_OP */
    int *first; /* by op of the body: the first that comes after it, or NO_OP */
    int *next;  /* by op after the body: the next one after the same op, or NO_OP */
} Early;

static void find_last(const Early *a) {
    const Program *p = a->p;
    for (int b = 0; b < p->n_bufs; b++) a->last[b] = NO_OP;
    for (int i = 0; i < p->body_end; i++) {
        const Op *op = &p->ops[i];
        for (int k = 0; k < OP_IN; k++)
            if (op->in[k] != NO_BUF) a->last[program_root(p, op->in[k])] = i;
        for (int k = 0; k < OP_OUT; k++)
            if (op->out[k] != NO_BUF) a->last[program_root(p, op->out[k])] = i;
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

/* What prepares all updates goes before the backward pass. Returns whether anything moves. */
static bool find_places(const Early *a) {
    const Program *p = a->p;
    bool moved = false;
    find_last(a);
    for (int i = p->body_end; i < p->n_ops; i++) {
        a->after[i] = op_is_update(p->ops[i].kind) ? last_need(a, &p->ops[i]) : NO_OP;
        moved |= a->after[i] != NO_OP;
    }
    for (int i = p->body_end; i < p->n_ops && moved; i++)
        if (p->ops[i].kind == OP_step_begin) a->after[i] = p->forward_end - 1;
    return moved;
}

static void move(const Early *a) {
    Program *p = a->p;
    int n = 0, body_end = p->body_end;
    for (int i = 0; i < body_end; i++) a->first[i] = NO_OP;
    for (int i = p->n_ops - 1; i >= body_end; i--) {
        if (a->after[i] == NO_OP) continue;
        a->next[i] = a->first[a->after[i]];
        a->first[a->after[i]] = i;
    }
    for (int i = 0; i < body_end; i++) {
        p->ops[n++] = a->old[i];
        for (int k = a->first[i]; k != NO_OP; k = a->next[k]) p->ops[n++] = a->old[k];
    }
    p->body_end = n;
    for (int k = body_end; k < p->n_ops; k++)
        if (a->after[k] == NO_OP) p->ops[n++] = a->old[k];
}

int pass_update_early(Program *p, Compile *c) {
    const Settings *s = c->settings;
    if (!p->updates || p->micro_batches > 1 || p->loss_scaling || s->optimizer.rule.clip_norm > 0.0f) return OK;
    size_t ops = (size_t)p->n_ops * sizeof(int);
    Op *old = mem_copy(p->ops, (size_t)p->n_ops * sizeof *old);
    Early a = {p, old, mem_new((size_t)p->n_bufs * sizeof(int)), mem_new(ops), mem_new(ops), mem_new(ops)};
    if (!old || !a.last || !a.after || !a.first || !a.next) p->failed = true;
    if (!p->failed && find_places(&a)) move(&a);
    void *const all[] = {old, a.last, a.after, a.first, a.next};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) mem_free(all[i]);
    return OK;
}
