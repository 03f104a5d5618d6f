/* Casts that an op makes itself, where it reads or writes. Arithmetic is in fp32 in any case, so the values are the
 * same; the copy in the other type never exists.
 *
 *   x.f32 = cast x;  y = norm x.f32           ->  y = norm x               all that read x.f32 can do so
 *   y = norm ...;    y.bf16 = cast y          ->  y.bf16 = norm ...        nothing else reads y
 *
 * With autocast the loss of a large vocabulary is where this counts: its logits exist once, in 16 bits, and so does
 * their gradient. ops.def marks the operands ("~"). */
#include "passes.h"

/* Something beside ops needs this buffer as it is. */
static bool is_held(const Program *p, int buf) { return buf == p->output || p->bufs[buf].keep; }

/* Can all ops that read `buf` read it in any type? */
static bool readers_convert(const Program *p, int buf) {
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_IN; k++)
            if (p->ops[i].in[k] == buf && !op_info(p->ops[i].kind)->in_any[k]) return false;
    return true;
}

static bool give_to_readers(Program *p, int cast) {
    int from = p->ops[cast].in[0], to = p->ops[cast].out[0];
    if (p->bufs[to].dtype != DT_F32 || is_held(p, to) || !readers_convert(p, to)) return false;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_IN; k++) {
            if (p->ops[i].in[k] != to) continue;
            p->ops[i].in[k] = from;
            op_cost(p, &p->ops[i]);
        }
    return true;
}

static bool take_from_maker(Program *p, int cast) {
    int from = p->ops[cast].in[0], to = p->ops[cast].out[0];
    if (p->bufs[from].dtype != DT_F32 || is_held(p, from) || program_reader(p, from) != cast) return false;
    for (int i = 0; i < cast; i++)
        for (int k = 0; k < OP_OUT; k++) {
            if (p->ops[i].out[k] != from || !op_info(p->ops[i].kind)->out_any[k]) continue;
            p->ops[i].out[k] = to;
            op_cost(p, &p->ops[i]);
            return true;
        }
    return false;
}

int pass_fuse_cast(Program *p, const Settings *s, Err *e) {
    (void)s;
    for (int i = 0; i < p->n_ops;) {
        if (p->ops[i].kind == OP_cast && (give_to_readers(p, i) || take_from_maker(p, i))) program_drop(p, i);
        else i++;
    }
    return program_check(p, "fuse_cast", e);
}
