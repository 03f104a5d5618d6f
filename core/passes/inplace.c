/* In-place: where ops.def allows it and the input dies at this op, the output takes over its storage. `marked`:
 * activations whose layer says inplace = true, and a loss's gradient, which takes the place of the network's output;
 * sums of gradients always, as PyTorch's autograd does. */
#include "passes.h"
#include "mem.h"

static bool asked_for(const Program *p, const Op *op, Inplace mode) {
    if (op->kind == OP_add && p->bufs[op->out[0]].category == CAT_ACTIVATION_GRADIENTS) return true;
    if (mode != INPLACE_MARKED) return mode == INPLACE_ON;
    if (op->kind == OP_cross_entropy_dx || op->kind == OP_element_loss_dx) return true;
    if (op->kind == OP_act || op->kind == OP_act_dx) return op->attr.act.inplace;
    return (op->kind == OP_dropout || op->kind == OP_dropout_dx) && op->attr.drop.inplace;
}

static bool can_take(const Program *p, const Life *life, int i, int slot) {
    int root = program_root(p, p->ops[i].in[slot]), out = p->ops[i].out[0];
    const Buf *from = &p->bufs[root], *to = &p->bufs[out];
    if (from->kind != BUF_TEMP || from->carried || to->carried || to->alias != NO_BUF) return false;
    if (from->bytes != to->bytes || from->dtype != to->dtype || life[root].last != i) return false;
    for (int k = 0; k < OP_IN; k++) {
        int other = p->ops[i].in[k];
        if (k != slot && other != NO_BUF && program_root(p, other) == root) return false;
    }
    return true;
}

static void take(Program *p, Life *life, int in, int out) {
    int root = program_root(p, in);
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].alias == out) p->bufs[b].alias = root;
    p->bufs[out].alias = root;
    life[root].last = life[out].last;
}

int pass_inplace(Program *p, const Settings *s, Err *e) {
    Life *life = mem_new((size_t)p->n_bufs * sizeof *life);
    if (!life) return err_set(e, ERR_HOST_MEMORY, "out of host memory in inplace");
    program_lives(p, life);
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        int slot = op_info(op->kind)->inplace;
        if (slot == NEVER || op->kind == OP_view || !asked_for(p, op, s->inplace)) continue;
        if (can_take(p, life, i, slot)) take(p, life, op->in[slot], op->out[0]);
    }
    mem_free(life);
    return program_check(p, "inplace", e);
}
