/* trace_compare.h: two traces side by side: a predicted and a recorded one. */
#ifndef MT_TRACE_COMPARE_H
#define MT_TRACE_COMPARE_H

#include "trace.h"

/* What allocations of these two ops that stand beside each other have in each of the two traces; "": of those that the
 * other trace does not have. */
typedef struct TraceOp { const char *op[2]; size_t count[2], bytes[2]; } TraceOp;

typedef struct TraceComparison {
    int begin, end;  /* the events of the second trace that stand beside those of the first */
    int pairs;       /* allocations that stand beside one of the same size */
    int only[2];     /* allocations that the other does not have there */
    int outside;     /* of the first, those that were before the second begins or after it has ended */
    int moved;       /* tensors that are freed at another time in the second */
    int equal;       /* pairs before the first difference; all of them where there is none */
    int event[2];    /* that difference in each; -1: it has ended there. Both -1: there is none */
    char text[300];  /* what is different there, "" */
    TraceOp *ops;    /* those with the largest difference in bytes first */
    int n_ops;
    Scratch scratch;
} TraceComparison;

/* Looks for the events [begin, end) of `a` in those of `b` from `from` on: sizes of allocations are aligned
 * (trace_align.h), names do not count, since two sources call one op differently. Beside each other, tensors must be freed
 * between the same two allocations, in any order; those from before are known by their sizes. */
int trace_compare(const Trace *a, int begin, int end, const Trace *b, int from, TraceComparison *out, Err *e);
void trace_comparison_free(TraceComparison *c);

#endif
