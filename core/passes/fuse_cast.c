/* Takes out casts that the op beside them can make itself, as it reads or writes. Its arithmetic is in fp32 in any
 * case, so the values are the same; the copy in the other type never exists.
 *
 *   x.f32 = cast x;  y = norm x.f32           ->  y = norm x               all that read x.f32 can do so
 *   y = norm ...;    y.bf16 = cast y          ->  y.bf16 = norm ...        nothing else reads y
 *
 * This matters most for the loss of a large vocabulary under autocast: its logits exist once, in 16 bits, and so does
 * their gradient. ops.def marks the operands (ANY). */
#include "uses.h"

#include <assert.h>

/* Does something beside ops need this buffer as it is? */
static bool is_held(const Program *p, int buf) { return buf == p->output || p->bufs[buf].keep; }

/* Lets all readers of the cast's fp32 output read its input. Returns whether all can. */
static bool give_to_readers(Uses *u, int cast) {
    Program *p = u->p;
    int from = p->ops[cast].in[0], to = p->ops[cast].out[0], reads = 0;
    if (p->bufs[to].dtype != DT_F32 || is_held(p, to)) return false;
    for (int read = u->first[to]; read >= 0; read = u->next[read], reads++)
        if (!op_info(p->ops[read / OP_IN].kind)->in[read % OP_IN].any) return false;
    uses_move(u, to, from); /* they are now the first of from's reads */
    for (int read = u->first[from]; reads > 0; read = u->next[read], reads--) op_cost(p, &p->ops[read / OP_IN]);
    return true;
}

/* Lets the op that makes the cast's fp32 input write its output. Returns whether it can. maker: by buffer, the op that
 * makes it and can do so in any type, or NO_OP. */
static bool take_from_maker(const Uses *u, int cast, int *maker) {
    Program *p = u->p;
    int from = p->ops[cast].in[0], to = p->ops[cast].out[0], by = maker[from], k = 0;
    if (p->bufs[from].dtype != DT_F32 || is_held(p, from) || uses_reader(u, from) != cast || by == NO_OP) return false;
    while (k < OP_OUT && p->ops[by].out[k] != from) k++;
    assert(k < OP_OUT);
    p->ops[by].out[k] = to;
    op_cost(p, &p->ops[by]);
    maker[to] = by;
    return true;
}

int pass_fuse_cast(Program *p, Compile *c) {
    Uses u;
    int *maker = scratch_new(&c->scratch, (size_t)p->n_bufs, sizeof *maker);
    if (!uses_open(&u, p, &c->scratch)) return OK;
    for (int b = 0; b < p->n_bufs; b++) maker[b] = NO_OP;
    for (int i = 0; i < p->n_ops; i++)
        EACH_OUT(&p->ops[i], k)
            if (op_info(p->ops[i].kind)->out[k].any) maker[p->ops[i].out[k]] = i;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_cast && (give_to_readers(&u, i) || take_from_maker(&u, i, maker))) uses_drop(&u, i);
    uses_close(&u);
    return OK;
}
