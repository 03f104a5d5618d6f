#include "trace.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

void trace_free(Trace *t) {
    mem_free(t->tensors);
    mem_free(t->calls);
    mem_free(t->marks);
    mem_free(t->events);
    scratch_release(&t->scratch, NULL);
    *t = (Trace){0};
}

const char *trace_text(Trace *t, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = bytes > 1 ? scratch_new(&t->scratch, bytes, 1) : NULL;
    return copy ? memcpy(copy, text, bytes) : "";
}

/* Room for one more; false: host memory ran out, once and for all. */
static bool grow(Trace *t, void *array, int *cap, int n, size_t item) {
    if (!t->failed && !mem_grow(array, cap, n + 1, item)) t->failed = true;
    return !t->failed;
}

int trace_call(Trace *t, const char *op, const char *layer, const char *where) {
    if (!grow(t, &t->calls, &t->cap_calls, t->n_calls, sizeof *t->calls)) return 0;
    t->calls[t->n_calls] = (TraceCall){op, layer, where};
    return t->n_calls++;
}

static void add_event(Trace *t, int event) {
    if (grow(t, &t->events, &t->cap_events, t->n_events, sizeof *t->events)) t->events[t->n_events++] = event;
}

int trace_alloc(Trace *t, size_t bytes, Category category, int call) {
    assert(bytes > 0);
    if (!grow(t, &t->tensors, &t->cap_tensors, t->n_tensors, sizeof *t->tensors)) return 0;
    t->tensors[t->n_tensors] = (TraceTensor){.bytes = bytes, .category = category, .call = call};
    add_event(t, t->n_tensors);
    return t->n_tensors++;
}

void trace_release(Trace *t, int tensor) { add_event(t, ~tensor); }

void trace_mark(Trace *t, const char *text) {
    if (grow(t, &t->marks, &t->cap_marks, t->n_marks, sizeof *t->marks))
        t->marks[t->n_marks++] = (TraceMark){t->n_events, text};
}

void trace_places_free(TracePlaces *p) {
    mem_free(p->address);
    mem_free(p->size);
    mem_free(p->segments);
    *p = (TracePlaces){0};
}

/* ---- replay */

typedef struct Replay {
    const Trace *trace;
    Ledger *ledger;
    Block *blocks;      /* by tensor */
    size_t allocated;   /* bytes in blocks */
    TracePeak *peak;
    TracePlaces *places; /* NULL: nobody asks */
    int event;
} Replay;

/* A CachingWatch: notes what became of a segment. */
static void note_segment(void *arg, const CachedRange *range, bool taken) {
    Replay *r = arg;
    TracePlaces *p = r->places;
    if (p->failed || !mem_grow(&p->segments, &p->cap_segments, p->n_segments + 1, sizeof *p->segments)) {
        p->failed = true;
        return;
    }
    p->segments[p->n_segments++] = (TraceSegment){range->address, range->size, r->event, range->stream, taken, range->small,
                                                  range->page};
}

static int new_places(Replay *r, Allocator *a, Err *e) {
    const size_t n = (size_t)r->trace->n_tensors + 1;
    TracePlaces *p = r->places;
    p->address = mem_new(n * sizeof *p->address);
    p->size = mem_new(n * sizeof *p->size);
    alloc_caching_watch(a, note_segment, r);
    return p->address && p->size ? OK : err_set(e, ERR_HOST_MEMORY, "out of host memory for the places of tensors");
}

/* `allocated` is a peak: the categories at it, and what blocks have more than their tensors. */
static void note_allocated(Replay *r, int event) {
    TracePeak *p = r->peak;
    p->allocated = r->allocated;
    p->event = event;
    memcpy(p->category, r->ledger->category, sizeof p->category);
    p->category[CAT_OTHER] += r->allocated - r->ledger->used;
}

static int replay_event(Replay *r, Allocator *a, int i, Err *e) {
    int event = r->trace->events[i], code = OK;
    if (event < 0) {
        r->allocated -= r->blocks[~event].size;
        allocator_put(a, &r->blocks[~event]);
        return OK;
    }
    const TraceTensor *t = &r->trace->tensors[event];
    r->ledger->mark = r->event = i;
    alloc_caching_stream(a, t->stream);
    code = allocator_get(a, t->bytes, t->category, 0, &r->blocks[event], e);
    if (code) return code;
    r->allocated += r->blocks[event].size;
    if (r->places) {
        r->places->address[event] = (uintptr_t)r->blocks[event].data;
        r->places->size[event] = r->blocks[event].size;
    }
    return OK;
}

static int replay_all(Replay *r, Allocator *a, int from, Err *e) {
    int code = OK;
    for (int i = 0; i < r->trace->n_events && !code; i++) {
        code = replay_event(r, a, i, e);
        if (i < from) {
            note_allocated(r, i);
            r->peak->reserved = r->ledger->held;
        } else if (r->allocated > r->peak->allocated) {
            note_allocated(r, i);
        }
        if (r->ledger->held > r->peak->reserved) r->peak->reserved = r->ledger->held;
    }
    r->peak->allocated_end = r->allocated;
    r->peak->reserved_end = r->ledger->held;
    alloc_caching_watch(a, NULL, NULL); /* what follows is no part of the trace */
    for (int i = 0; i < r->trace->n_tensors; i++) allocator_put(a, &r->blocks[i]);
    return code;
}

int trace_replay(const Trace *t, const CachingSettings *settings, Ledger *ledger, int from, TracePeak *out,
                 TracePlaces *places, Err *e) {
    Replay r = {t, ledger, NULL, 0, out, places, 0};
    Allocator *a = NULL;
    *out = (TracePeak){0};
    if (t->failed || t->scratch.failed || !(r.blocks = mem_new((size_t)t->n_tensors * sizeof *r.blocks)))
        return err_set(e, ERR_HOST_MEMORY, "out of host memory for a trace of allocations");
    int code = alloc_caching_open(ledger, settings, &a, e);
    if (!code && places) code = new_places(&r, a, e);
    if (!code) code = replay_all(&r, a, from, e);
    allocator_close(a);
    mem_free(r.blocks);
    if (!code && places && places->failed) code = err_set(e, ERR_HOST_MEMORY, "out of host memory for the segments of a trace");
    return code;
}
