/* From a program's lifetimes to the arena's offsets, and these as text. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "passes.h"

/* The device's memory, or the host's, in a placement */
typedef struct Memory { bool host; size_t *persistent; Plan *plan; } Memory;

static Memory memory_of(Placement *pl, bool host) {
    return host ? (Memory){true, &pl->host_persistent, &pl->host} : (Memory){false, &pl->persistent, &pl->plan};
}

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

/* The buffer among the memory's temporaries; of size 0: it is not among them. Its offset is not filled in. */
static PlanItem item_of(const Placement *pl, bool host, int b) {
    const Life *l = &pl->life[b];
    const bool here = b < pl->n_bufs && l->used && !l->persistent && l->host == host;
    return here ? (PlanItem){align_up(l->bytes, pl->alignment), l->first, l->last, 0} : (PlanItem){0};
}

/* Of an op alone, or not there */
static bool is_scratch(const PlanItem *i) { return !i->size || i->first == i->last; }

/* May a plan with `now` begin from one with `before`? */
static bool may_follow(const PlanItem *now, const PlanItem *before) {
    if (is_scratch(now) && is_scratch(before)) return true;
    return now->size == before->size && now->first == before->first && now->last == before->last;
}

/* Places the temporaries after them, from where they were before, if that is known and may be. items[n_bufs] is scratch. */
static int place_temporary(const Placement *pl, PlanItem *items, const Memory *m, Placement *before, Err *e) {
    bool known = before && before->alignment == pl->alignment && before->n_bufs <= pl->n_bufs;
    for (int b = 0; b < pl->n_bufs; b++) {
        items[b] = item_of(pl, m->host, b);
        if (!known) continue;
        const PlanItem was = item_of(before, m->host, b);
        known = may_follow(&items[b], &was);
        if (was.size) items[b].offset = before->offsets[b] - *memory_of(before, m->host).persistent;
    }
    int code = plan_build(items, pl->n_bufs, known ? memory_of(before, m->host).plan : NULL, m->plan, e);
    for (int b = 0; b < pl->n_bufs && !code; b++)
        if (items[b].size) pl->offsets[b] = *m->persistent + items[b].offset;
    return code;
}

/* before: NULL, or another placement of the program */
static int place(Placement *pl, Placement *before, Err *e) {
    PlanItem *items = mem_new((size_t)pl->n_bufs * sizeof *items);
    int code = items ? OK : err_set(e, ERR_HOST_MEMORY, "out of host memory in the plan");
    for (int host = 0; host <= 1 && !code; host++) {
        const Memory m = memory_of(pl, host);
        code = place_persistent(pl, &m, e);
        if (!code) code = place_temporary(pl, items, &m, before, e);
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
    const int code = known ? OK : place(now, p->placed, e);
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

Alive placement_alive(const Program *p, size_t alignment, Scratch *s) {
    Alive a = {scratch_new(s, (size_t)p->n_bufs, sizeof *a.life), scratch_new(s, (size_t)p->n_ops, sizeof *a.live), 0};
    if (s->failed) return a;
    program_lives(p, a.life);
    for (int b = 0; b < p->n_bufs; b++) { /* first the differences to the op before */
        const Life *l = &a.life[b];
        const size_t bytes = align_up(l->bytes, alignment);
        if (!l->used || l->host) continue;
        assert(0 <= l->first && l->first <= l->last && l->last < p->n_ops);
        a.live[l->first] += bytes;
        if (l->last + 1 < p->n_ops) a.live[l->last + 1] -= bytes;
    }
    for (int i = 0; i < p->n_ops; i++) {
        if (i > 0) a.live[i] += a.live[i - 1];
        a.most = max_size(a.most, a.live[i]);
    }
    return a;
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
