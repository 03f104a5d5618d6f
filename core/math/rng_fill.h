/* rng_fill.h: many random numbers at once, on the host. The same bits as one by one (rng.h), on any processor. */
#ifndef MT_RNG_FILL_H
#define MT_RNG_FILL_H

#include <stdbool.h>

#include "rng.h"

/* A stream's numbers, from block `block` on, of which each gives four */
typedef struct RngPlace { uint64_t seed; uint32_t stream, a, b; uint64_t block; } RngPlace;

/* out[n]: in [0, 1), or normally distributed with mean 0 and variance 1 */
void rng_fill(const RngPlace *from, bool normal, float *out, int64_t n);

#endif
