/* plan_check.h: whether a plan holds, for its tests. */
#ifndef PLAN_CHECK_H
#define PLAN_CHECK_H

#include "memory/plan.h"

/* ERR_INTERNAL where an item leaves the plan's height, or two items overlap in time and place; the text names them. */
static int plan_check(const PlanItem *items, int n, const Plan *plan, Err *e) {
    for (int i = 0; i < n; i++) {
        const PlanItem *a = &items[i];
        if (a->size > plan->height || a->offset > plan->height - a->size)
            return err_set(e, ERR_INTERNAL, "plan: expected item %d inside %zu bytes, found %zu bytes at %zu", i,
                           plan->height, a->size, a->offset);
        for (int k = 0; k < i; k++) {
            const PlanItem *b = &items[k];
            bool at_once = a->first <= b->last && b->first <= a->last;
            if (at_once && a->offset < b->offset + b->size && b->offset < a->offset + a->size)
                return err_set(e, ERR_INTERNAL,
                               "plan: items %d and %d overlap: %zu bytes at %zu in [%d, %d], %zu at %zu in [%d, %d]", k,
                               i, b->size, b->offset, b->first, b->last, a->size, a->offset, a->first, a->last);
        }
    }
    return OK;
}

#endif
