/* trace_compare.h: two traces side by side: a predicted and a recorded one. */
#ifndef MT_TRACE_COMPARE_H
#define MT_TRACE_COMPARE_H

#include "trace.h"

/* What an op has allocated in each of the two. */
typedef struct TraceOp { const char *op; size_t count[2], bytes[2]; } TraceOp;

typedef struct TraceComparison {
    int equal;       /* events that are alike before the first difference */
    int event[2];    /* that one in each; -1: it has ended there. Both -1: the traces are the same */
    char text[300];  /* what is different there, "" */
    TraceOp *ops;    /* of both, those with the largest difference in bytes first */
    int n_ops;
    Scratch scratch;
} TraceComparison;

/* Compares the events of `a` from from[0] on with those of `b` from from[1] on: the same bytes are allocated, and what
 * is freed was allocated at the same place in the order (of what was there before, any tensor is as good as another of
 * its size). Ops are compared by name, and only their bytes. */
int trace_compare(const Trace *a, const Trace *b, const int from[2], TraceComparison *out, Err *e);
void trace_comparison_free(TraceComparison *c);

#endif
