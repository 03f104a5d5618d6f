/* Where nothing that a library has gets by with the workspace limit, the device took what needs least, and that is
 * often slow. Below the step's peak workspace costs nothing: there such an op may ask for as much as is free while it
 * runs. */
#include "base/mem.h"
#include "passes.h"
#include "program/view.h"

typedef struct Spare {
    Device *device;
    size_t limit, alignment;
    size_t *live; /* [n_ops] bytes, workspace included */
    size_t peak;
} Spare;

/* What an op had before. */
typedef struct Had { int op; void *state; size_t bytes; } Had;

static bool is_beyond(const Program *p, const Op *op, size_t limit) {
    return op->workspace != NO_BUF && p->bufs[op->workspace].bytes > limit;
}

static int find_live(const Program *p, Spare *s, Err *e) {
    Life *life = mem_new((size_t)p->n_bufs * sizeof *life);
    s->live = mem_new((size_t)p->n_ops * sizeof *s->live);
    if (!life || !s->live) {
        mem_free(life);
        return err_set(e, ERR_HOST_MEMORY, "out of host memory in workspace_spare");
    }
    s->peak = placement_live(p, s->alignment, life, s->live);
    mem_free(life);
    return OK;
}

/* The op's workspace, and all that is free beside it. */
static int ask_again(Program *p, const Spare *s, int i, Err *e) {
    Op *op = &p->ops[i];
    Buf *workspace = &p->bufs[op->workspace];
    size_t limit = workspace->bytes + (s->peak - s->live[i]), bytes;
    void *state;
    KArgs args;
    view_args(p, op, &args);
    args.device = s->device;
    int code = s->device->table->prepare(s->device, &args, limit, &state, &bytes, e);
    if (code || bytes > limit || bytes == 0) return code;
    op->state = state;
    workspace->bytes = bytes;
    return OK;
}

/* All of them; back to what they had, if the pieces that are free do not lie together and the plan grew by it. */
static int ask_all(Program *p, const Spare *s, Had *had, Err *e) {
    size_t before, after;
    int n = 0, code = placement_arena(p, s->alignment, &before, e);
    for (int i = 0; i < p->n_ops && !code; i++) {
        if (!is_beyond(p, &p->ops[i], s->limit)) continue;
        had[n++] = (Had){i, p->ops[i].state, p->bufs[p->ops[i].workspace].bytes};
        code = ask_again(p, s, i, e);
    }
    if (!code) code = placement_arena(p, s->alignment, &after, e);
    for (int k = 0; !code && after > before && k < n; k++) {
        Op *op = &p->ops[had[k].op];
        op->state = had[k].state;
        p->bufs[op->workspace].bytes = had[k].bytes;
    }
    return code;
}

int pass_workspace_spare(Program *p, Compile *c) {
    Spare spare = {c->device, c->settings->workspace_limit, c->device->table->alignment, NULL, 0};
    bool any = false;
    for (int i = 0; i < p->n_ops; i++) any |= is_beyond(p, &p->ops[i], spare.limit);
    if (!any) return OK;
    Had *had = mem_new((size_t)p->n_ops * sizeof *had);
    int code = had ? find_live(p, &spare, c->e) : err_set(c->e, ERR_HOST_MEMORY, "out of host memory in workspace_spare");
    if (!code) code = ask_all(p, &spare, had, c->e);
    mem_free(spare.live);
    mem_free(had);
    return code;
}
