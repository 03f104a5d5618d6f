/* From a program's lifetimes to the arena's offsets, and these as text. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "passes.h"

/* The device's memory, or the host's */
typedef struct Memory { bool host; size_t *persistent; Plan *plan; } Memory;

/* Places the persistent buffers from the memory's start, in buffer order. */
static int place_persistent(const Program *p, const Life *life, size_t alignment, const Memory *m, size_t *offsets, Err *e) {
    for (int b = 0; b < p->n_bufs; b++) {
        if (p->bufs[b].kind != BUF_PERSISTENT || p->bufs[b].host != m->host) continue;
        offsets[b] = *m->persistent;
        if (!size_add(*m->persistent, align_up(life[b].bytes, alignment), m->persistent))
            return err_set(e, ERR_SCRIPT, "the parameters' bytes do not fit in size_t");
    }
    return OK;
}

/* Places the temporaries after them. items[n_bufs] is scratch: buffers that are not in the memory have size 0. */
static int place_temporary(const Program *p, const Life *life, PlanItem *items, size_t alignment, const Memory *m, size_t *offsets,
                           Err *e) {
    for (int b = 0; b < p->n_bufs; b++) {
        bool here = life[b].used && p->bufs[b].kind != BUF_PERSISTENT && p->bufs[b].host == m->host;
        items[b] = (PlanItem){here ? align_up(life[b].bytes, alignment) : 0, life[b].first, life[b].last, 0};
    }
    int code = plan_build(items, p->n_bufs, m->plan, e);
    for (int b = 0; b < p->n_bufs && !code; b++)
        if (items[b].size) offsets[b] = *m->persistent + items[b].offset;
    return code;
}

static int place(const Program *p, const Life *life, PlanItem *items, size_t alignment, Placement *out, Err *e) {
    const Memory memories[] = {{false, &out->persistent, &out->plan}, {true, &out->host_persistent, &out->host}};
    int code = OK;
    for (size_t m = 0; m < ARRAY_LEN(memories) && !code; m++) {
        code = place_persistent(p, life, alignment, &memories[m], out->offsets, e);
        if (!code) code = place_temporary(p, life, items, alignment, &memories[m], out->offsets, e);
    }
    if (!code) out->arena = out->persistent + out->plan.height;
    return code;
}

int placement_build(const Program *p, size_t alignment, Placement *out, Err *e) {
    size_t n = (size_t)p->n_bufs;
    Scratch s = {0};
    assert(alignment && !(alignment & (alignment - 1)));
    Placement pl = {.offsets = mem_new(n * sizeof(size_t))};
    Life *life = scratch_new(&s, n, sizeof *life);
    PlanItem *items = scratch_new(&s, n, sizeof *items);
    int code = pl.offsets && !s.failed ? OK : err_set(e, ERR_HOST_MEMORY, "out of host memory in the plan");
    if (!code) {
        program_lives(p, life);
        code = place(p, life, items, alignment, &pl, e);
    }
    scratch_release(&s, NULL);
    if (code) placement_free(&pl);
    else *out = pl;
    return code;
}

int placement_arena(const Program *p, size_t alignment, size_t *arena, Err *e) {
    Placement place;
    int code = placement_build(p, alignment, &place, e);
    if (code) return code;
    *arena = place.arena;
    placement_free(&place);
    return OK;
}

size_t placement_live(const Program *p, size_t alignment, Life *life, size_t *live) {
    size_t most = 0;
    program_lives(p, life);
    memset(live, 0, (size_t)p->n_ops * sizeof *live);
    for (int b = 0; b < p->n_bufs; b++) { /* first the differences to the op before */
        size_t bytes = align_up(life[b].bytes, alignment);
        if (!life[b].used || p->bufs[b].host) continue;
        assert(0 <= life[b].first && life[b].first <= life[b].last && life[b].last < p->n_ops);
        live[life[b].first] += bytes;
        if (life[b].last + 1 < p->n_ops) live[life[b].last + 1] -= bytes;
    }
    for (int i = 0; i < p->n_ops; i++) {
        if (i > 0) live[i] += live[i - 1];
        most = max_size(most, live[i]);
    }
    return most;
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
    const char *where = buf->host ? " (host)" : "";
    size_t offset = pl->offsets[b];
    if (buf->kind == BUF_PERSISTENT)
        snprintf(line, sizeof line, "%12zu %12zu  always     %s%s", offset, l->bytes, buf->name, where);
    else
        snprintf(line, sizeof line, "%12zu %12zu  %4d-%-4d  %s%s", offset, l->bytes, l->first, l->last, buf->name, where);
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
    const size_t always = pl->host_persistent;
    snprintf(line, sizeof line, "on the host %zu; lower bound %zu", always + pl->host.height, always + pl->host.lower_bound);
    if (always + pl->host.height) sink(arg, line);
    mem_free(life);
    return OK;
}
