/* A product can read a weight in fp32 itself, and round it to 16 bits as it packs it, where the device can:
 *
 *     w.bf16 = cast w
 *     dx = linear_dx(dy, w.bf16)        ->      dx = linear_dx(dy, w)
 *
 * So the copy of a large weight does not stand beside what else a step needs at its peak. The bits are those that the copy gives.
 * But the weight has twice its bytes, which convolutions read in an order that is slow for them; and it is updated only after its
 * last reader, so that its gradient waits. So a copy is taken out only where the peak is lower without it: of those that are alive
 * where more bytes are than the peak has when all are taken out. */
#include "program/view.h"
#include "uses.h"
#include "whatif.h"

/* The peak must fall by one in WORTH parts at least. */
enum { WORTH = 100 };

static bool is_worth(size_t before, size_t after) { return after <= before - before / WORTH; }

/* Does the device round that input, if the weight is there in place of its copy? */
static bool device_rounds(const Program *p, const Compile *c, int read, int weight) {
    Op op = p->ops[read / OP_IN];
    KArgs args;
    if (!op_info(op.kind)->in[read % OP_IN].rounded) return false;
    op.in[read % OP_IN] = weight;
    view_args(p, &op, &args);
    return c->device->table->rounds(c->device, &args);
}

/* Is the op a cast of a weight that lasts, all readers of which can round it? */
static bool can_go(const Uses *u, const Compile *c, int cast) {
    const Program *p = u->p;
    const Op *op = &p->ops[cast];
    if (op->kind != OP_cast) return false;
    const int from = op->cast.x, to = op->cast.y;
    if (p->bufs[from].dtype != DT_F32 || p->bufs[to].dtype == DT_F32 || to == p->output || p->bufs[to].keep) return false;
    if (p->bufs[program_root(p, from)].kind != BUF_PERSISTENT) return false;
    for (int read = u->first[to]; read >= 0; read = u->next[read])
        if (!device_rounds(p, c, read, from)) return false;
    return true;
}

/* out[n_ops]: the casts that are taken out */
typedef struct Choice { Compile *c; const bool *out; } Choice;

/* Op i reads another type, for which it is prepared anew. That fails where there is no memory only, since the device can do it. */
static void prepare_again(Program *p, int i, Compile *c) {
    const int had = p->ops[i].workspace;
    size_t bytes;
    if (workspace_ask(p, i, c->device, p->ops[i].limit, &bytes, c->e)) p->failed = true;
    else if (had != NO_BUF) p->bufs[had].bytes = 0;
    if (!p->failed && bytes) workspace_add(p, i, bytes, c->device->table->alignment);
    op_cost(p, &p->ops[i]);
}

static void take_out(Program *p, const void *choice, Scratch *s) {
    const Choice *ch = choice;
    Uses u;
    if (!uses_open(&u, p, s)) return;
    for (int i = 0; i < u.n_ops; i++) {
        if (!ch->out[i]) continue;
        const int from = p->ops[i].cast.x, to = p->ops[i].cast.y, before = u.first[from];
        uses_move(&u, to, from); /* they are now the first of from's reads */
        for (int read = u.first[from]; read != before; read = u.next[read]) prepare_again(p, read / OP_IN, ch->c);
        uses_drop(&u, i);
    }
    uses_close(&u);
}

/* Leaves those of out[] whose copy is alive, in the finished program `kept`, at an op where more than `target` bytes are. */
static void choose(const Program *p, const Program *kept, size_t target, Compile *c, bool *out) {
    Scratch *s = &c->scratch;
    Life *life = scratch_new(s, (size_t)kept->n_bufs, sizeof *life);
    size_t *live = scratch_new(s, (size_t)kept->n_ops, sizeof *live);
    if (s->failed) return;
    placement_live(kept, c->device->table->alignment, life, live);
    for (int i = 0; i < p->n_ops; i++) {
        if (!out[i]) continue;
        const Life *l = &life[p->ops[i].cast.y];
        out[i] = false;
        for (int k = l->first; k <= l->last; k++) out[i] |= live[k] > target;
    }
}

/* Bytes that are alive at most when those casts are out, and those of the arena */
static int judge(const Program *p, const bool *out, Compile *c, size_t *most, size_t *arena) {
    Program *finished;
    const int code = whatif(p, take_out, &(Choice){c, out}, c, &finished, arena);
    if (code) return code;
    Life *life = scratch_new(&c->scratch, (size_t)finished->n_bufs, sizeof *life);
    size_t *live = scratch_new(&c->scratch, (size_t)finished->n_ops, sizeof *live);
    if (!c->scratch.failed) *most = placement_live(finished, c->device->table->alignment, life, live);
    program_free(finished);
    return OK;
}

int pass_round_weights(Program *p, Compile *c) {
    Scratch *s = &c->scratch;
    Uses u;
    bool *out = scratch_new(s, (size_t)p->n_ops, sizeof *out), any = false;
    /* where shards of a weight are gathered (pass divide_weights), they are those of the copy, which are fewer bytes to send */
    if (!c->device->table->rounds || (p->world > 1 && c->settings->zero == 3)) return UNCHANGED;
    if (!uses_open(&u, p, s)) return OK;
    for (int i = 0; i < p->n_ops; i++) any |= out[i] = can_go(&u, c, i);
    if (!any) return UNCHANGED;
    Program *kept;
    size_t before, after = 0, most = 0;
    int code = whatif(p, NULL, NULL, c, &kept, &before);
    if (code) return code;
    code = judge(p, out, c, &most, &after);
    const bool worth = !code && !s->failed && is_worth(before, after);
    if (worth) choose(p, kept, most, c, out);
    program_free(kept);
    if (code || !worth || s->failed) return code ? code : s->failed ? OK : UNCHANGED;
    code = judge(p, out, c, &most, &after);
    if (code || s->failed || !is_worth(before, after)) return code ? code : s->failed ? OK : UNCHANGED;
    take_out(p, &(Choice){c, out}, s);
    return OK;
}
