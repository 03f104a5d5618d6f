/* Casts that an op makes itself, where it reads or writes. Arithmetic is in fp32 in any case, so the values are the
 * same; the copy in the other type never exists.
 *
 *   x.f32 = cast x;  y = norm x.f32           ->  y = norm x               all that read x.f32 can do so
 *   y = norm ...;    y.bf16 = cast y          ->  y.bf16 = norm ...        nothing else reads y
 *
 * With autocast the loss of a large vocabulary is where this counts: its logits exist once, in 16 bits, and so does
 * their gradient. ops.def marks the operands (ANY). */
#include "base/mem.h"
#include "uses.h"

/* Something beside ops needs this buffer as it is. */
static bool is_held(const Program *p, int buf) { return buf == p->output || p->bufs[buf].keep; }

/* Can all ops that read `buf` read it in any type? *reads: how often they do. */
static bool readers_convert(const Uses *u, int buf, int *reads) {
    *reads = 0;
    for (int read = u->first[buf]; read >= 0; read = u->next[read], ++*reads)
        if (!op_info(u->p->ops[read / OP_IN].kind)->in[read % OP_IN].any) return false;
    return true;
}

static bool give_to_readers(Uses *u, int cast) {
    Program *p = u->p;
    int from = p->ops[cast].in[0], to = p->ops[cast].out[0], reads;
    if (p->bufs[to].dtype != DT_F32 || is_held(p, to) || !readers_convert(u, to, &reads)) return false;
    uses_move(u, to, from); /* to the front of the list */
    for (int read = u->first[from]; reads > 0; read = u->next[read], reads--) op_cost(p, &p->ops[read / OP_IN]);
    return true;
}

/* maker: by buffer, the op that makes it and could do so in any type, or NO_OP. */
static bool take_from_maker(const Uses *u, int cast, int *maker) {
    Program *p = u->p;
    int from = p->ops[cast].in[0], to = p->ops[cast].out[0], by = maker[from], k = 0;
    if (p->bufs[from].dtype != DT_F32 || is_held(p, from) || uses_reader(u, from) != cast || by == NO_OP) return false;
    while (p->ops[by].out[k] != from) k++;
    p->ops[by].out[k] = to;
    op_cost(p, &p->ops[by]);
    maker[to] = by;
    return true;
}

static void find_makers(const Program *p, int *maker) {
    for (int b = 0; b < p->n_bufs; b++) maker[b] = NO_OP;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_OUT; k++)
            if (p->ops[i].out[k] != NO_BUF && op_info(p->ops[i].kind)->out[k].any) maker[p->ops[i].out[k]] = i;
}

int pass_fuse_cast(Program *p, const Settings *s, Err *e) {
    (void)s;
    Uses u;
    int *maker = mem_new((size_t)p->n_bufs * sizeof *maker);
    bool made = uses_open(&u, p) && maker;
    if (made) find_makers(p, maker);
    else p->failed = true;
    for (int i = 0; made && i < p->n_ops; i++)
        if (p->ops[i].kind == OP_cast && (give_to_readers(&u, i) || take_from_maker(&u, i, maker))) uses_drop(&u, i);
    uses_close(&u);
    mem_free(maker);
    return program_check(p, "fuse_cast", e);
}
