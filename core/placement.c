/* From a program's lifetimes to the arena's offsets, and that as text. */
#include <stdio.h>

#include "mem.h"
#include "passes.h"

/* Persistent buffers from the arena's start, in buffer order; the temporaries' plan on top of them. */
static int place(const Program *p, const Life *life, PlanItem *items, size_t alignment, Placement *out, Err *e) {
    for (int b = 0; b < p->n_bufs; b++) {
        size_t bytes = life[b].used ? align_up(life[b].bytes, alignment) : 0;
        items[b] = (PlanItem){bytes, life[b].first, life[b].last, 0};
        if (p->bufs[b].kind != BUF_PERSISTENT) continue;
        out->offsets[b] = out->persistent;
        if (!size_add(out->persistent, bytes, &out->persistent))
            return err_set(e, ERR_SCRIPT, "the parameters' bytes do not fit in size_t");
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
    int code;
    if (pl.offsets && life && items) {
        program_lives(p, life);
        code = place(p, life, items, alignment, &pl, e);
    } else {
        code = err_set(e, ERR_HOST_MEMORY, "out of host memory in the plan");
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

/* ---- as text */

static void dump_buf(const Program *p, const Placement *pl, const Life *life, int b, TextSink *sink, void *arg) {
    char line[BUF_NAME + 128];
    const Buf *buf = &p->bufs[b];
    const Life *l = &life[b];
    size_t offset = pl->offsets[b];
    if (buf->kind == BUF_PERSISTENT)
        snprintf(line, sizeof line, "%12zu %12zu  always     %s", offset, l->bytes, buf->name);
    else
        snprintf(line, sizeof line, "%12zu %12zu  %4d-%-4d  %s", offset, l->bytes, l->first, l->last, buf->name);
    sink(arg, line);
}

int placement_dump(const Program *p, const Placement *pl, TextSink *sink, void *arg, Err *e) {
    char line[BUF_NAME + 128];
    Life *life = mem_new((size_t)p->n_bufs * sizeof *life);
    if (!life) return err_set(e, ERR_HOST_MEMORY, "out of host memory in the plan");
    program_lives(p, life);
    sink(arg, "      offset        bytes  ops        buffer");
    for (int b = 0; b < p->n_bufs; b++)
        if (life[b].used) dump_buf(p, pl, life, b, sink, arg);
    snprintf(line, sizeof line, "arena %zu = persistent %zu + temporaries %zu; lower bound %zu", pl->arena,
             pl->persistent, pl->plan.height, pl->persistent + pl->plan.lower_bound);
    sink(arg, line);
    mem_free(life);
    return OK;
}
