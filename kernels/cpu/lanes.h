/* lanes.h: vectors of LANES floats on any processor. In functions marked FUSED or INLINE the compiler may fuse a
 * product and a sum, where the instruction set has that. */
#ifndef MT_CPU_LANES_H
#define MT_CPU_LANES_H

#include <stdbool.h>

enum { LANES = 16 };

/* Does a vector fit into one register? */
#ifdef __AVX512F__
enum { LANES_FIT = true };
#else
enum { LANES_FIT = false };
#endif

typedef float V __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* may start at any float */

#define FUSED __attribute__((optimize("fp-contract=fast")))
#define INLINE FUSED static inline __attribute__((always_inline))

INLINE V load(const float *p) { return *(const V *)p; }
INLINE void store(float *p, V v) { *(V *)p = v; }

#endif
