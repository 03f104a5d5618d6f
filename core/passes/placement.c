/* From a program's lifetimes to the arena's offsets, and these as text. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "passes.h"

/* The device's memory, or the host's */
typedef struct Memory { bool host; size_t *persistent; Plan *plan; } Memory;

/* Places the persistent buffers from the memory's start, in buffer order. */
static int place_persistent(const Placement *pl, const Memory *m, Err *e) {
    for (int b = 0; b < pl->n_bufs; b++) {
        const Life *l = &pl->life[b];
        if (!l->persistent || l->host != m->host) continue;
        pl->offsets[b] = *m->persistent;
        if (!size_add(*m->persistent, align_up(l->bytes, pl->alignment), m->persistent))
            return err_set(e, ERR_SCRIPT, "the parameters' bytes do not fit in size_t");
    }
    return OK;
}

/* Places the temporaries after them. items[n_bufs] is scratch: buffers that are not in the memory have size 0. */
static int place_temporary(const Placement *pl, PlanItem *items, const Memory *m, Err *e) {
    for (int b = 0; b < pl->n_bufs; b++) {
        const Life *l = &pl->life[b];
        const bool here = l->used && !l->persistent && l->host == m->host;
        items[b] = (PlanItem){here ? align_up(l->bytes, pl->alignment) : 0, l->first, l->last, 0};
    }
    int code = plan_build(items, pl->n_bufs, m->plan, e);
    for (int b = 0; b < pl->n_bufs && !code; b++)
        if (items[b].size) pl->offsets[b] = *m->persistent + items[b].offset;
    return code;
}

static int place(Placement *pl, Err *e) {
    const Memory memories[] = {{false, &pl->persistent, &pl->plan}, {true, &pl->host_persistent, &pl->host}};
    PlanItem *items = mem_new((size_t)pl->n_bufs * sizeof *items);
    int code = items ? OK : err_set(e, ERR_HOST_MEMORY, "out of host memory in the plan");
    for (size_t m = 0; m < ARRAY_LEN(memories) && !code; m++) {
        code = place_persistent(pl, &memories[m], e);
        if (!code) code = place_temporary(pl, items, &memories[m], e);
    }
    mem_free(items);
    if (!code) pl->arena = pl->persistent + pl->plan.height;
    return code;
}

/* With all lives, and nothing placed; one block of memory. NULL: out of host memory. */
static Placement *placement_new(const Program *p, size_t alignment) {
    const size_t n = (size_t)p->n_bufs;
    assert(alignment && !(alignment & (alignment - 1)));
    Placement *pl = mem_new(sizeof *pl + n * (sizeof(Life) + sizeof(size_t)));
    if (!pl) return NULL;
    Life *life = (Life *)(pl + 1);
    *pl = (Placement){.alignment = alignment, .n_bufs = p->n_bufs, .life = life, .offsets = (size_t *)(life + n)};
    program_lives(p, life);
    return pl;
}

/* Does the one follow from what the other follows from? */
static bool is_same(const Placement *a, const Placement *b) {
    return a && a->alignment == b->alignment && a->n_bufs == b->n_bufs && !memcmp(a->life, b->life, (size_t)a->n_bufs * sizeof *a->life);
}

int placement_of(Program *p, size_t alignment, const Placement **out, Err *e) {
    Placement *now = placement_new(p, alignment);
    if (!now) return err_set(e, ERR_HOST_MEMORY, "out of host memory in the plan");
    const bool known = is_same(p->placed, now);
    const int code = known ? OK : place(now, e);
    if (!known && !code) {
        Placement *before = p->placed;
        p->placed = now;
        now = before;
    }
    mem_free(now);
    *out = p->placed;
    return code;
}

void placement_move(Program *to, Program *from) {
    mem_free(to->placed);
    to->placed = from->placed;
    from->placed = NULL;
}

int placement_arena(Program *p, size_t alignment, size_t *arena, Err *e) {
    const Placement *pl;
    const int code = placement_of(p, alignment, &pl, e);
    if (!code) *arena = pl->arena;
    return code;
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

/* ---- as text */

static void dump_buf(const Program *p, const Placement *pl, int b, TextSink *sink, void *arg) {
    char line[BUF_NAME + 128];
    const Life *l = &pl->life[b];
    const char *where = l->host ? " (host)" : "", *name = p->bufs[b].name;
    if (l->persistent) snprintf(line, sizeof line, "%12zu %12zu  always     %s%s", pl->offsets[b], l->bytes, name, where);
    else snprintf(line, sizeof line, "%12zu %12zu  %4d-%-4d  %s%s", pl->offsets[b], l->bytes, l->first, l->last, name, where);
    sink(arg, line);
}

void placement_dump(const Program *p, const Placement *pl, TextSink *sink, void *arg) {
    char line[128];
    sink(arg, "      offset        bytes  ops        buffer");
    for (int b = 0; b < p->n_bufs; b++)
        if (pl->life[b].used) dump_buf(p, pl, b, sink, arg);
    snprintf(line, sizeof line, "arena %zu = persistent %zu + temporaries %zu; lower bound %zu", pl->arena,
             pl->persistent, pl->plan.height, pl->persistent + pl->plan.lower_bound);
    sink(arg, line);
    const size_t always = pl->host_persistent;
    snprintf(line, sizeof line, "on the host %zu; lower bound %zu", always + pl->host.height, always + pl->host.lower_bound);
    if (always + pl->host.height) sink(arg, line);
}
