/* If no implementation that a library has for an op needs less than the workspace limit, the device has taken the one
 * that needs least, which is often slow. Below the step's peak more workspace costs nothing: here such an op may ask
 * for as much as is free while it runs. */
#include <assert.h>

#include "passes.h"

typedef struct Spare {
    Device *device;
    size_t limit, alignment;
    const size_t *live; /* by op: bytes alive, its workspace included */
    size_t peak;        /* the most of live */
} Spare;

/* What an op had before. */
typedef struct Had { int op; void *state; size_t limit, bytes; } Had;

/* Has the op more workspace than the limit? */
static bool is_beyond(const Program *p, const Op *op, size_t limit) {
    return op->workspace != NO_BUF && p->bufs[op->workspace].bytes > limit;
}

/* Does its output 0 lie where an input does? The device's next way to compute it may not be able to do that. */
static bool overwrites(const Program *p, const Op *op) {
    const int slot = op_info(op->kind)->inplace;
    return slot != NEVER && op->in[slot] != NO_BUF && program_root(p, op->in[slot]) == program_root(p, op->out[0]);
}

/* Lets the device choose again for op i, which may have its workspace and all that is free beside it. */
static int ask_again(Program *p, const Spare *s, int i, Err *e) {
    Op *op = &p->ops[i];
    Buf *workspace = &p->bufs[op->workspace];
    assert(s->live[i] <= s->peak);
    const Had had = {i, op->state, op->limit, workspace->bytes};
    const size_t limit = workspace->bytes + (s->peak - s->live[i]);
    size_t bytes;
    int code = workspace_ask(p, i, s->device, limit, &bytes, e);
    bool taken = !code && bytes > 0 && bytes <= limit;
    if (taken) workspace->bytes = bytes;
    if (taken && overwrites(p, op)) {
        size_t more;
        taken = inplace_device_can(p, op, s->device, &more);
        if (more) workspace_add(p, i, more, s->alignment);
        taken = taken && workspace->bytes <= limit;
    }
    if (!taken) op->state = had.state, op->limit = had.limit, workspace->bytes = had.bytes;
    return code;
}

/* The ops get what they had before; had[n] what they have now. */
static void exchange(Program *p, Had *had, int n) {
    for (int k = 0; k < n; k++) {
        Op *op = &p->ops[had[k].op];
        size_t *bytes = &p->bufs[op->workspace].bytes;
        const Had now = {had[k].op, op->state, op->limit, *bytes};
        op->state = had[k].state;
        op->limit = had[k].limit;
        *bytes = had[k].bytes;
        had[k] = now;
    }
}

/* Asks for all such ops; takes it all back if the arena has grown, because the free pieces do not lie together. An arena
 * of s->peak bytes has not grown, since none is smaller. had[n_ops] is scratch. */
static int ask_all(Program *p, const Spare *s, Had *had, Err *e) {
    size_t before, after;
    int n = 0, code = OK;
    bool more = false;
    for (int i = 0; i < p->n_ops && !code; i++) {
        const Op *op = &p->ops[i];
        if (!is_beyond(p, op, s->limit)) continue;
        had[n] = (Had){i, op->state, op->limit, p->bufs[op->workspace].bytes};
        code = ask_again(p, s, i, e);
        more |= had[n].bytes != p->bufs[op->workspace].bytes;
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
    const size_t limit = c->settings->workspace_limit, alignment = c->device->table->alignment;
    bool any = false;
    for (int i = 0; i < p->n_ops; i++) any |= is_beyond(p, &p->ops[i], limit);
    if (!any) return UNCHANGED;
    Had *had = scratch_new(&c->scratch, (size_t)p->n_ops, sizeof *had);
    const Alive alive = placement_alive(p, alignment, &c->scratch);
    if (c->scratch.failed) return OK;
    return ask_all(p, &(Spare){c->device, limit, alignment, alive.live, alive.most}, had, c->e);
}
