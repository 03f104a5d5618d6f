/* In-place: an output takes over an input's storage if ops.def, and where it says so the device, allows it and the input
 * dies at this op. Sums of gradients always do, as in PyTorch's autograd, and those over ranks. So does a product's dx,
 * which takes the place of the activation by whose slope it multiplies; the gradient of the weights has read that before
 * it, since the backward pass computes it first. With `marked`, so do all other gradients of activations, which nobody sees, and
 * activations whose layer says inplace = true. A loss's gradient replaces the network's output, or what its last layer has read. */
#include <assert.h>

#include "passes.h"
#include "program/view.h"

/* Does the setting, or the layer, ask for it? */
static bool asked_for(const Program *p, const Op *op, Inplace mode) {
    if (op->out[0] == NO_BUF) return false;
    const bool gradient = p->bufs[op->out[0]].category == CAT_ACTIVATION_GRADIENTS;
    if (op->kind == OP_all_reduce || op_info(op->kind)->asks || (op->kind == OP_add && gradient)) return true;
    if (mode != INPLACE_MARKED) return mode == INPLACE_ON;
    if (gradient) return true;
    return op->kind == OP_act ? op->attr.act.inplace : op->kind == OP_dropout && op->attr.drop.inplace;
}

/* May the first output of op `i` have the storage of its input `slot`? */
static bool can_take(const Program *p, const Life *life, int i, int slot) {
    int root = program_root(p, p->ops[i].in[slot]), out = p->ops[i].out[0];
    const Buf *from = &p->bufs[root], *to = &p->bufs[out];
    if (from->kind != BUF_TEMP || from->carried || to->carried || to->alias != NO_BUF) return false;
    if (from->bytes != to->bytes || from->dtype != to->dtype || life[root].last != i) return false;
    EACH_IN(&p->ops[i], k)
        if (k != slot && program_root(p, p->ops[i].in[k]) == root) return false;
    return true;
}

bool inplace_device_can(const Program *p, const Op *op, Device *device, size_t *more) {
    KArgs args;
    *more = 0;
    if (!op_info(op->kind)->asks) return true;
    if (!device->table->overwrites) return false;
    view_args(p, op, &args);
    args.device = device;
    args.workspace_bytes = op->workspace == NO_BUF ? 0 : p->bufs[op->workspace].bytes;
    return device->table->overwrites(device, &args, more);
}

/* Buffers by the root whose storage they share. */
typedef struct Sharing {
    int *first; /* by root: one of them, or NO_BUF */
    int *next;  /* by buffer: another one of the same root, or NO_BUF */
} Sharing;

static void share(Program *p, const Sharing *s, int buf, int root) {
    p->bufs[buf].alias = root;
    s->next[buf] = s->first[root];
    s->first[root] = buf;
}

/* `out`, and all that share its storage, move into that of `in`. */
static void take(Program *p, Life *life, const Sharing *s, int in, int out) {
    int root = program_root(p, in);
    assert(root != out && p->bufs[out].alias == NO_BUF);
    for (int b = s->first[out], next; b != NO_BUF; b = next) {
        next = s->next[b];
        share(p, s, b, root);
    }
    share(p, s, out, root);
    life[root].last = life[out].last;
}

int pass_inplace(Program *p, Compile *c) {
    size_t bufs = (size_t)p->n_bufs;
    Life *life = scratch_new(&c->scratch, bufs, sizeof *life);
    Sharing sharing = {scratch_new(&c->scratch, bufs, sizeof(int)), scratch_new(&c->scratch, bufs, sizeof(int))};
    if (c->scratch.failed) return OK;
    program_lives(p, life);
    for (int b = 0; b < p->n_bufs; b++) sharing.first[b] = NO_BUF;
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].alias != NO_BUF) share(p, &sharing, b, p->bufs[b].alias);
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        size_t more;
        int slot = op_info(op->kind)->inplace;
        if (slot == NEVER || op->in[slot] == NO_BUF || op->kind == OP_view || !asked_for(p, op, c->settings->inplace)) continue;
        if (!can_take(p, life, i, slot) || !inplace_device_can(p, op, c->device, &more)) continue;
        take(p, life, &sharing, op->in[slot], op->out[0]);
        if (more) workspace_add(p, i, more, c->device->table->alignment);
    }
    return OK;
}
