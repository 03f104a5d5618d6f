#include "compile.h"

#include "lower.h"
#include "mem.h"

static void watched(PassWatch *watch, void *arg, const char *pass, const Program *p) {
    if (watch) watch(arg, pass, p);
}

int compile_finish(Program *p, const Settings *s, PassWatch *watch, void *arg, Err *e) {
    static const struct { const char *name; int (*run)(Program *, const Settings *, Err *); } passes[] = {
        {"accumulate", pass_accumulate}, {"update", pass_update}, {"inplace", pass_inplace}};
    for (size_t i = 0; i < ARRAY_LEN(passes); i++) {
        int code = passes[i].run(p, s, e);
        if (code) return code;
        watched(watch, arg, passes[i].name, p);
    }
    return OK;
}

static int run_passes(Program *p, const Settings *s, Device *device, PassWatch *watch, void *arg, Err *e) {
    static const struct { const char *name; int (*run)(Program *, const Settings *, Err *); } passes[] = {
        {"precision", pass_precision}, {"fuse", pass_fuse}, {"backward", pass_backward}};
    int code;
    for (size_t i = 0; i < ARRAY_LEN(passes); i++) {
        if ((code = passes[i].run(p, s, e))) return code;
        watched(watch, arg, passes[i].name, p);
    }
    if ((code = pass_workspace(p, s, device, e))) return code;
    watched(watch, arg, "workspace", p);
    if ((code = pass_checkpoint(p, s, device, e))) return code;
    watched(watch, arg, "checkpoint", p);
    return compile_finish(p, s, watch, arg, e);
}

int compile(const Network *net, const Settings *s, Device *device, PassWatch *watch, void *arg, Program **out, Err *e) {
    Program *p;
    int code = lower_network(net, !s->eval, !s->no_loss, &p, e);
    if (code) return code;
    if (s->keep_output || p->loss == NO_BUF) p->bufs[p->output].keep = true;
    code = program_check(p, "lower", e);
    if (!code) watched(watch, arg, "lower", p);
    if (!code) code = run_passes(p, s, device, watch, arg, e);
    if (code) program_free(p);
    else *out = p;
    return code;
}

/* Persistent buffers from the arena's start, in buffer order; the temporaries' plan on top of them. */
static int place(const Program *p, const Life *life, PlanItem *items, size_t alignment, Placement *out, Err *e) {
    for (int b = 0; b < p->n_bufs; b++) {
        size_t bytes = life[b].used ? align_up(life[b].bytes, alignment) : 0;
        items[b] = (PlanItem){bytes, life[b].first, life[b].last, 0};
        if (p->bufs[b].kind != BUF_PERSISTENT) continue;
        out->offsets[b] = out->persistent;
        if (!size_add(out->persistent, bytes, &out->persistent)) return err_set(e, ERR_SCRIPT, "the parameters' bytes do not fit in size_t");
        items[b].size = 0;
    }
    int code = plan_build(items, p->n_bufs, &out->plan, e);
    if (code) return code;
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].kind != BUF_PERSISTENT) out->offsets[b] = out->persistent + items[b].offset;
    out->arena = out->persistent + out->plan.height;
    return OK;
}

int placement_build(const Program *p, size_t alignment, Placement *out, Err *e) {
    size_t n = (size_t)p->n_bufs;
    Placement pl = {mem_new(n * sizeof(size_t)), 0, 0, {0, 0, 0}};
    Life *life = mem_new(n * sizeof *life);
    PlanItem *items = mem_new(n * sizeof *items);
    int code = err_set(e, ERR_HOST_MEMORY, "out of host memory in the plan");
    if (pl.offsets && life && items) {
        program_lives(p, life);
        code = place(p, life, items, alignment, &pl, e);
    }
    mem_free(items);
    mem_free(life);
    if (code) placement_free(&pl);
    else *out = pl;
    return code;
}

void placement_free(Placement *pl) {
    mem_free(pl->offsets);
    pl->offsets = NULL;
}
