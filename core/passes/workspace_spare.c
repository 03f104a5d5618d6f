/* If no implementation that a library has for an op needs less than the workspace limit, the device has taken the one
 * that needs least, which is often slow. Below the step's peak more workspace costs nothing: here such an op may ask
 * for as much as is free while it runs. Beyond the limit, and free, is what would be so with one thread: more threads may need more
 * bytes, but must not change what is taken. */
#include <assert.h>

#include "passes.h"
#include "program/view.h"

typedef struct Spare {
    Device *device; /* with one thread */
    size_t limit, alignment;
    size_t *live; /* by op: bytes alive, its workspace included */
    size_t peak;  /* the most of live */
} Spare;

/* What an op had before. */
typedef struct Had { int op; void *state; size_t bytes; } Had;

/* What an op has on the device itself, with all its threads: `bytes` of workspace. What it has with one thread meanwhile, and with
 * which limit that was last asked for. */
typedef struct All { size_t bytes, alone, limit; void *state; } All;

/* Has the op more workspace than the limit? */
static bool is_beyond(const Program *p, const Op *op, size_t limit) {
    return op->workspace != NO_BUF && p->bufs[op->workspace].bytes > limit;
}

/* Does its output 0 lie where an input does? The device's next way to compute it may not be able to do that. */
static bool overwrites(const Program *p, const Op *op) {
    const int slot = op_info(op->kind)->inplace;
    return slot != NEVER && op->in[slot] != NO_BUF && program_root(p, op->in[slot]) == program_root(p, op->out[0]);
}

static int prepare_on(Device *device, const Program *p, const Op *op, size_t limit, void **state, size_t *bytes, Err *e) {
    KArgs args;
    view_args(p, op, &args);
    args.device = device;
    return device->table->prepare(device, &args, limit, state, bytes, e);
}

/* The workspace of an op that has `bytes` for what the device says are `said`, if the device says `now`: what is beside it, to
 * overwrite an operand (workspace_add), stays. */
static size_t with_beside(const Spare *s, size_t bytes, size_t said, size_t now) {
    return bytes > said ? align_up(now, s->alignment) + (bytes - align_up(said, s->alignment)) : now;
}

/* Op i as one thread has it. */
static int take_alone(Program *p, const Spare *s, Device *device, int i, All *all, Err *e) {
    Op *op = &p->ops[i];
    size_t *bytes = &p->bufs[op->workspace].bytes, mine, alone;
    void *state;
    *all = (All){.bytes = *bytes};
    int code = prepare_on(device, p, op, s->limit, &state, &mine, e);
    if (!code) code = prepare_on(s->device, p, op, s->limit, &all->state, &alone, e);
    if (code) return code;
    all->alone = *bytes = with_beside(s, *bytes, mine, alone);
    op->state = all->state;
    return OK;
}

/* Op i as the device has it: as it was, or, where one thread has been given another way, that one. */
static int give_back(Program *p, const Spare *s, Device *device, int i, All *all, Err *e) {
    Op *op = &p->ops[i];
    size_t *bytes = &p->bufs[op->workspace].bytes, mine, alone;
    void *state = op->state;
    const bool changed = state != all->state || *bytes != all->alone;
    int code = prepare_on(device, p, op, changed ? all->limit : s->limit, &op->state, &mine, e);
    if (!code && changed) code = prepare_on(s->device, p, op, all->limit, &state, &alone, e);
    if (code) return code;
    *bytes = changed ? with_beside(s, *bytes, alone, mine) : all->bytes;
    return OK;
}

/* Lets the device choose again for op i, which may have its workspace and all that is free beside it. *asked: the limit */
static int ask_again(Program *p, const Spare *s, int i, size_t *asked, Err *e) {
    Op *op = &p->ops[i];
    Buf *workspace = &p->bufs[op->workspace];
    assert(s->live[i] <= s->peak);
    const size_t limit = workspace->bytes + (s->peak - s->live[i]);
    size_t bytes;
    void *state;
    int code = prepare_on(s->device, p, op, *asked = limit, &state, &bytes, e);
    if (code || bytes > limit || bytes == 0) return code;
    const Had had = {i, op->state, workspace->bytes};
    op->state = state;
    workspace->bytes = bytes;
    if (!overwrites(p, op)) return OK;
    size_t more;
    const bool can = inplace_device_can(p, op, s->device, &more);
    if (more) workspace_add(p, i, more, s->alignment);
    if (!can || workspace->bytes > limit) op->state = had.state, workspace->bytes = had.bytes;
    return OK;
}

/* The ops get what they had before; had[n] what they have now. */
static void exchange(Program *p, Had *had, int n) {
    for (int k = 0; k < n; k++) {
        Op *op = &p->ops[had[k].op];
        size_t *bytes = &p->bufs[op->workspace].bytes;
        const Had now = {had[k].op, op->state, *bytes};
        op->state = had[k].state;
        *bytes = had[k].bytes;
        had[k] = now;
    }
}

/* Asks for all such ops; takes it all back if the arena has grown, because the free pieces do not lie together. An arena
 * of s->peak bytes has not grown, since none is smaller. had[n_ops] is scratch. */
static int ask_all(Program *p, const Spare *s, Had *had, All *all, Err *e) {
    size_t before, after;
    int n = 0, code = OK;
    bool more = false;
    for (int i = 0; i < p->n_ops && !code; i++) {
        if (!is_beyond(p, &p->ops[i], s->limit)) continue;
        had[n] = (Had){i, p->ops[i].state, p->bufs[p->ops[i].workspace].bytes};
        code = ask_again(p, s, i, &all[i].limit, e);
        more |= had[n].bytes != p->bufs[p->ops[i].workspace].bytes;
        n++;
    }
    if (code || !more) return code;
    code = placement_arena(p, s->alignment, &after, e);
    if (code || after == s->peak) return code;
    exchange(p, had, n);
    code = placement_arena(p, s->alignment, &before, e);
    if (!code && after <= before) exchange(p, had, n);
    return code;
}

int pass_workspace_spare(Program *p, Compile *c) {
    size_t limit = c->settings->workspace_limit, alignment = c->device->table->alignment, ops = (size_t)p->n_ops;
    bool any = false;
    for (int i = 0; i < p->n_ops; i++) any |= is_beyond(p, &p->ops[i], limit);
    if (!any) return UNCHANGED;
    Life *life = scratch_new(&c->scratch, (size_t)p->n_bufs, sizeof *life);
    Had *had = scratch_new(&c->scratch, ops, sizeof *had);
    All *all = scratch_new(&c->scratch, ops, sizeof *all);
    Spare s = {c->device, limit, alignment, scratch_new(&c->scratch, ops, sizeof *s.live), 0};
    if (c->scratch.failed) return OK;
    int code = c->device->table->alone ? c->device->table->alone(c->device, &s.device, c->e) : OK;
    const bool apart = s.device != c->device;
    for (int i = 0; i < p->n_ops && apart && !code; i++)
        if (p->ops[i].workspace != NO_BUF) code = take_alone(p, &s, c->device, i, &all[i], c->e);
    if (!code) s.peak = placement_live(p, alignment, life, s.live);
    if (!code) code = ask_all(p, &s, had, all, c->e);
    for (int i = 0; i < p->n_ops && apart && !code; i++)
        if (p->ops[i].workspace != NO_BUF) code = give_back(p, &s, c->device, i, &all[i], c->e);
    return code;
}
