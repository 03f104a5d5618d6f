/* lanes.h: vectors of LANES floats on any processor: functions marked CLONES are compiled once per instruction set,
 * with the INLINE ones that they call. Products may be fused with their sums in a file that includes it. */
#ifndef MT_CPU_LANES_H
#define MT_CPU_LANES_H

#pragma GCC optimize("fp-contract=fast")

enum { LANES = 16 };

typedef float V __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#ifdef __x86_64__
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

#endif
