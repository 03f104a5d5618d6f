/* whatif.h: what a choice comes to, before it is made: it is applied to a copy of the program, which is then finished
 * as the program will be, and placed. For passes that choose. */
#ifndef MT_WHATIF_H
#define MT_WHATIF_H

#include "passes.h"

/* Makes a choice in p; on failure p->failed or s->failed is set. */
typedef void ApplyFn(Program *p, const void *choice, Scratch *s);

/* p as it will be after `apply` (NULL: nothing to apply) and the passes of stage FINISH.
 * finished: the program, the caller's; arena: bytes of its placed arena; each may be NULL. */
int whatif(const Program *p, ApplyFn *apply, const void *choice, Compile *c, Program **finished, size_t *arena);

/* For comparing choices, not for predicting times: a device of 100 GFLOP/s and 50 GB/s. */
static inline double op_seconds(const Op *op) {
    const double flops_per_second = 1e11, bytes_per_second = 5e10;
    return op->flops / flops_per_second + op->traffic / bytes_per_second;
}

#endif
