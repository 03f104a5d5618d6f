/* trace.h: what a process asks of PyTorch's caching allocator and gives back, in order: the step that eager PyTorch
 * makes of a network (eager/), or one that PyTorch has recorded itself. One walk replays both. */
#ifndef MT_TRACE_H
#define MT_TRACE_H

#include "alloc_caching.h"
#include "base/scratch.h"

/* What was running: texts that live as long as the trace (trace_text), "" where they are not known. */
typedef struct TraceCall {
    const char *op;    /* "aten::addmm"; of the backward pass "AddmmBackward0|aten::mm" */
    const char *layer; /* "body.0.conv1" */
    const char *where; /* "article.lua:12", "train.py:30" */
} TraceCall;

typedef struct TraceTensor {
    size_t bytes;      /* asked for, at least 1 */
    Category category;
    int call;          /* which of the calls allocated it */
    int stream;        /* whose blocks it can have; 0 unless somebody sets it */
} TraceTensor;

typedef struct TraceMark { int event; const char *text; } TraceMark; /* stands before that event */

typedef struct Trace {
    TraceTensor *tensors;
    TraceCall *calls;
    TraceMark *marks;
    int *events;       /* i: tensor i is allocated; ~i: it is freed */
    int n_tensors, cap_tensors, n_calls, cap_calls, n_marks, cap_marks, n_events, cap_events;
    size_t host;       /* most bytes of the host's memory in which tensors wait (pinned), or lie (managed) */
    Scratch scratch;
    bool failed;       /* host memory ran out: the trace is not whole */
} Trace;

void trace_free(Trace *t); /* what it holds; a zeroed one is empty */
/* A copy of the text that lives as long as the trace; "" when host memory ran out. */
const char *trace_text(Trace *t, const char *text);
/* The call that the next tensors belong to. Returns its number. */
int trace_call(Trace *t, const char *op, const char *layer, const char *where);
/* Allocates; returns the tensor's number. bytes at least 1. */
int trace_alloc(Trace *t, size_t bytes, Category category, int call);
/* Frees a tensor that is alive. */
void trace_release(Trace *t, int tensor);
void trace_mark(Trace *t, const char *text);

/* Bytes as PyTorch counts them: of blocks, whose sizes are those of tensors rounded up, and of segments. */
typedef struct TracePeak {
    size_t allocated, reserved;  /* most bytes in blocks; most in segments: two instants */
    size_t category[CAT_COUNT];  /* when `allocated` was reached, and the sum is that: OTHER has the rounding, too */
    int event;                   /* that allocation, or where the counting began */
    size_t allocated_end, reserved_end; /* after the last event */
} TracePeak;

/* A segment, or pages of an expandable one, that was taken from the device or given back before that event of the trace. */
typedef struct TraceSegment {
    uint64_t address;
    size_t size;
    int event, stream;
    bool taken, small, page;
} TraceSegment;

/* Where an allocator has put what a trace asks for. */
typedef struct TracePlaces {
    uint64_t *address;      /* by tensor: of its block; 0: it was not reached */
    size_t *size;           /* of that block */
    TraceSegment *segments; /* what became of segments, in order */
    int n_segments, cap_segments;
    bool failed;            /* host memory ran out */
} TracePlaces;
void trace_places_free(TracePlaces *p);

/* Walks the trace with a caching allocator of these settings (NULL: the defaults) over `ledger`; peaks count from event
 * `from` on. places: zeroed, is filled in; or NULL. ERR_OOM at the ledger's limit, with *out and *places as they were until
 * then. */
int trace_replay(const Trace *t, const CachingSettings *settings, Ledger *ledger, int from, TracePeak *out,
                 TracePlaces *places, Err *e);

#endif
