/* whatif.h: for passes that choose: what a choice would cost. The choice is made in a copy of the program, which is
 * then finished, as the program will be, and placed. */
#ifndef MT_WHATIF_H
#define MT_WHATIF_H

#include "passes.h"

/* Makes a choice in p; on failure p->failed or s->failed is set. */
typedef void ApplyFn(Program *p, const void *choice, Scratch *s);

/* A copy of p after `apply` (NULL: nothing to apply) and the passes of stage FINISH. finished: that program, which the
 * caller frees; arena: bytes of its placed arena; either may be NULL. ERR_HOST_MEMORY, or the error of a pass. */
int whatif(const Program *p, ApplyFn *apply, const void *choice, Compile *c, Program **finished, size_t *arena);

/* A choice is worth it only where the peak falls by one in WORTH parts at least. */
enum { WORTH = 100 };
static inline bool is_worth(size_t before, size_t after) { return after <= before - before / WORTH; }

/* Seconds of an op on a device of 100 GFLOP/s and 50 GB/s: to compare choices, not to predict times. */
static inline double op_seconds(const Op *op) {
    const double flops_per_second = 1e11, bytes_per_second = 5e10;
    return op->flops / flops_per_second + op->traffic / bytes_per_second;
}

#endif
