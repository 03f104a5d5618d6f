/* plan.h: lifetimes to offsets. Pure arithmetic: knows sizes and times, no ops, no device.
 *
 *   offset ^      +-----------+
 *   height |  +---+  tensor 2 |        greedy by size, first fit: the largest first, each at the lowest offset
 *          |  | 1 +--+--------+        that is free during its whole life; where neither this order
 *          |  |   | 3|                 nor two others reach the bound, a search for a plan at it follows
 *          +--+---+--+-------> time    lower bound = the largest sum of sizes alive at one time
 *                                      what lives at one time only is then put as high as there is room
 */
#ifndef MT_PLAN_H
#define MT_PLAN_H

#include "base/base.h"
#include "base/err.h"
#include "base/scratch.h"

typedef struct PlanItem {
    size_t size;      /* bytes, already rounded up to the alignment; 0 = takes no place */
    int first, last;  /* alive during [first, last] */
    size_t offset;    /* [out] */
} PlanItem;

typedef struct Plan {
    size_t height;       /* bytes of the arena */
    size_t lower_bound;  /* no plan can be lower */
    int peak_time;       /* the first time at which the lower bound is reached */
} Plan;

/* Fills the items' offsets. ERR_HOST_MEMORY; ERR_SCRIPT when the sizes' sum does not fit in size_t. */
int plan_build(PlanItem *items, int n, Plan *plan, Err *e);
/* ERR_INTERNAL naming two items that overlap in time and place, if there are such. */
int plan_check(const PlanItem *items, int n, const Plan *plan, Err *e);

/* Looks, for a bounded number of steps, for offsets within `height` bytes, which must be at least the lower bound.
 * Fills the items' offsets where it found some, and leaves them alone otherwise, as it does where s has failed; in
 * plan_search.c. */
bool plan_search(PlanItem *items, int n, size_t height, Scratch *s);

#endif
