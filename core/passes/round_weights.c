/* A product can read a weight in fp32 itself, and round it to 16 bits as it packs it, where the device can:
 *
 *     w.bf16 = cast w
 *     dx = linear_dx(dy, w.bf16)        ->      dx = linear_dx(dy, w)
 *
 * So the copy of a large weight does not stand beside what else a step needs at its peak. The bits are those that the copy gives.
 * But the weight has twice its bytes, which convolutions read in an order that is slow for them; and it is updated only after its
 * last reader, so that its gradient waits. So a copy is taken out only where the peak is lower without it: of those that are alive
 * where more bytes are than the peak has when all are taken out.
 *
 * That is judged after all other choices. But under a budget of bytes checkpointing would free what the copies take. So where the step
 * does not fit with all in memory, all copies go before it (pass round_for_budget), if the peak is lower without them. */
#include "program/view.h"
#include "uses.h"
#include "whatif.h"

/* Does the device round that input, if the weight is there in place of its copy? */
static bool device_rounds(const Program *p, const Compile *c, int read, int weight) {
    Op op = p->ops[read / OP_IN];
    KArgs args;
    if (!op_info(op.kind)->in[read % OP_IN].rounded) return false;
    op.in[read % OP_IN] = weight;
    view_args(p, &op, &args);
    args.device = c->device;
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

/* The program as it will be, and the bytes of its arena */
typedef struct Finished { Program *p; Alive alive; size_t arena; } Finished;

/* out: the casts that are then gone, NULL: none. The caller frees f->p. */
static int finish(const Program *p, const bool *out, Compile *c, Finished *f) {
    const Choice choice = {c, out};
    const int code = whatif(p, out ? take_out : NULL, &choice, c, &f->p, &f->arena);
    if (!code) f->alive = placement_alive(f->p, c->device->table->alignment, &c->scratch);
    return code;
}

/* left[]: those of all[] whose copy is alive at an op where more than `target` bytes are. Returns whether there are any. */
static bool needed(const Program *p, const Alive *kept, size_t target, const bool *all, bool *left) {
    bool any = false;
    for (int i = 0; i < p->n_ops; i++) {
        left[i] = false;
        if (!all[i]) continue;
        const Life *l = &kept->life[p->ops[i].cast.y];
        for (int k = l->first; l->used && k <= l->last; k++) left[i] |= kept->live[k] > target; /* unused: another stage's */
        any |= left[i];
    }
    return any;
}

/* left[]: what is worth to go, of all[] that can. *chosen: the program in which it is gone, NULL: nothing is */
static int choose(const Program *p, const bool *all, bool *left, Compile *c, Program **chosen) {
    const Scratch *s = &c->scratch;
    Finished kept = {0}, gone = {0}, rest = {0};
    int code = finish(p, NULL, c, &kept);
    bool worth = !code && !s->failed && needed(p, &kept.alive, kept.alive.most - kept.alive.most / WORTH, all, left);
    if (worth) code = finish(p, all, c, &gone);
    worth = worth && !code && !s->failed && needed(p, &kept.alive, gone.alive.most, all, left);
    if (worth) code = finish(p, left, c, &rest);
    worth = worth && !code && !s->failed && is_worth(kept.arena, rest.arena);
    program_free(kept.p);
    program_free(gone.p);
    if (worth) *chosen = rest.p;
    else program_free(rest.p);
    return code;
}

/* all[n_ops]: the casts that can go. False: there are none. */
static bool find_all(Program *p, Compile *c, bool *all) {
    bool any = false;
    Uses u;
    /* where shards of a weight are gathered (pass divide_weights), they are those of the copy, which are fewer bytes to send */
    if (!c->device->table->rounds || (p->world > 1 && c->settings->zero == 3) || !uses_open(&u, p, &c->scratch)) return false;
    for (int i = 0; i < p->n_ops; i++) any |= all[i] = can_go(&u, c, i);
    return any;
}

int pass_round_for_budget(Program *p, Compile *c) {
    bool *all = scratch_new(&c->scratch, (size_t)p->n_ops, sizeof *all);
    size_t kept, gone;
    if (c->settings->checkpoint != CHECKPOINT_BUDGET || c->scratch.failed || !find_all(p, c, all)) return UNCHANGED;
    const Choice choice = {c, all};
    int code = whatif(p, NULL, NULL, c, NULL, &kept);
    if (code || kept <= c->settings->budget) return code ? code : UNCHANGED;
    code = whatif(p, take_out, &choice, c, NULL, &gone);
    if (code || gone >= kept) return code ? code : UNCHANGED;
    take_out(p, &choice, &c->scratch);
    return OK;
}

int pass_round_weights(Program *p, Compile *c) {
    Scratch *s = &c->scratch;
    const size_t ops = (size_t)p->n_ops;
    bool *all = scratch_new(s, ops, sizeof *all), *left = scratch_new(s, ops, sizeof *left);
    Program *chosen = NULL;
    if (s->failed || !find_all(p, c, all)) return UNCHANGED;
    const int code = choose(p, all, left, c, &chosen);
    if (code || !chosen) return code ? code : UNCHANGED;
    take_out(p, &(Choice){c, left}, s);
    placement_move(p, chosen);
    program_free(chosen);
    return OK;
}
