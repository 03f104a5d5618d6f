/* plan.h: finds offsets for lifetimes. Pure arithmetic: it knows sizes and times, no ops and no device.
 *
 *   offset ^      +-----------+        What lives at the peak is placed first, and the rest from there outwards in time, into
 *   height |  +---+  tensor 2 |        gaps (plan_outward.c). Where this does not reach the lower bound, orders follow: the
 *          |  | 1 +--+--------+        largest first, each at the lowest offset that is free during its whole life; what lives
 *          |  |   | 3|                 near the peak first, in that order, then as a search finds it; others. Last, items that
 *          +--+---+--+-------> time    live at one time only are moved up as far as there is room.
 *
 * The work is in proportion to the items: searches may take some steps for each, and many only where they can lower the plan
 * by a noticeable part.
 *
 * Lower bound: the largest sum of the sizes that are alive at one time. */
#ifndef MT_PLAN_H
#define MT_PLAN_H

#include "base/base.h"
#include "base/err.h"
#include "base/scratch.h"

typedef struct PlanItem {
    size_t size;      /* bytes, already rounded up to the alignment; 0: takes no place */
    int first, last;  /* alive during [first, last], first <= last */
    size_t offset;    /* [out]; where there is an earlier plan, what it was there */
} PlanItem;

typedef struct Plan {
    size_t height;       /* bytes of the arena */
    size_t lower_bound;  /* no plan can be lower */
    int peak_time;       /* the first time at which the lower bound is reached */
    long searched;       /* steps of searches for it */
} Plan;

/* Fills the offsets of the n items, and *plan. before: NULL, or an earlier plan, in which only items that live at one time had other
 * sizes, or were not there. The others stay where they were, if those find room among them and the plan is as near its bound as the
 * earlier one; else it counts for nothing. ERR_HOST_MEMORY; ERR_SCRIPT where the sum of the sizes does not fit in size_t. */
int plan_build(PlanItem *items, int n, const Plan *before, Plan *plan, Err *e);

/* Searches for offsets of the n items within `height` bytes, at least their lower bound, until `most_steps` steps are taken
 * (a step is some nanoseconds; an attempt that has begun is ended); *steps grows by those taken. true: it has found some and
 * filled them in. false: it has found none or s has failed; the items are as they were. Defined in plan_search.c. */
bool plan_search(PlanItem *items, int n, size_t height, long most_steps, long *steps, Scratch *s);
/* About how many steps it takes to place each of n items once. */
long plan_search_steps(int n);

#endif
