/* A parameter is updated as soon as its gradient is there and nothing reads it any more, so that the gradient can make
 * room within the backward pass. Nobody sees another number: what the update of one parameter computes depends on no
 * other's, unless all gradients count (a norm that is clipped, an overflow that skips the update), several
 * micro-batches are summed up, or the gradients are to be kept; then the update stays behind the body, as it does for
 * small parameters, which a device can update together. */
#include "passes.h"
#include "mem.h"

enum { WORTH_IT = 64 << 10 }; /* bytes of a gradient */

static bool touches(const Program *p, const Op *op, int root) {
    bool found = false;
    for (int k = 0; k < OP_IN; k++) found |= op->in[k] != NO_BUF && program_root(p, op->in[k]) == root;
    for (int k = 0; k < OP_OUT; k++) found |= op->out[k] != NO_BUF && program_root(p, op->out[k]) == root;
    return found;
}

/* The last op of the body that needs the parameter as it was, or makes its gradient; NO_OP: the update stays. */
static int last_need(const Program *p, const Op *update) {
    const Buf *grad = &p->bufs[update->in[0]];
    if (grad->bytes < WORTH_IT || grad->keep || grad->carried) return NO_OP;
    int w = program_root(p, update->out[0]), g = program_root(p, update->in[0]);
    for (int i = p->body_end - 1; i >= 0; i--)
        if (touches(p, &p->ops[i], w) || touches(p, &p->ops[i], g)) return i;
    return NO_OP;
}

/* after[i]: behind which op of the body op i comes. What prepares all updates goes before the backward pass. Returns
 * whether anything moves. */
static bool find_places(const Program *p, int *after) {
    bool moved = false;
    for (int i = p->body_end; i < p->n_ops; i++) {
        after[i] = op_is_update(p->ops[i].kind) ? last_need(p, &p->ops[i]) : NO_OP;
        moved |= after[i] != NO_OP;
    }
    for (int i = p->body_end; i < p->n_ops && moved; i++)
        if (p->ops[i].kind == OP_step_begin) after[i] = p->forward_end - 1;
    return moved;
}

static void move(Program *p, const Op *old, const int *after) {
    int n = 0, body_end = p->body_end;
    for (int i = 0; i < body_end; i++) {
        p->ops[n++] = old[i];
        for (int k = body_end; k < p->n_ops; k++)
            if (after[k] == i) p->ops[n++] = old[k];
    }
    p->body_end = n;
    for (int k = body_end; k < p->n_ops; k++)
        if (after[k] == NO_OP) p->ops[n++] = old[k];
}

int pass_update_early(Program *p, const Settings *s, Err *e) {
    if (!p->updates || p->micro_batches > 1 || p->loss_scaling || s->optimizer.rule.clip_norm > 0.0f) return OK;
    int *after = mem_new((size_t)p->n_ops * sizeof *after);
    Op *old = mem_copy(p->ops, (size_t)p->n_ops * sizeof *old);
    if (!after || !old) p->failed = true;
    if (!p->failed && find_places(p, after)) move(p, old, after);
    mem_free(after);
    mem_free(old);
    return program_check(p, "update_early", e);
}
