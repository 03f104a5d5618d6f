/* lanes16.h: vectors of 16 floats, for files whose functions run only where the processor has AVX-512. Products may be
 * fused with their sums in a file that includes it. */
#ifndef MT_CPU_LANES16_H
#define MT_CPU_LANES16_H

#pragma GCC optimize("fp-contract=fast")

enum { LANES = 16 };

typedef float V __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#ifdef __x86_64__
#define WIDE __attribute__((target("arch=x86-64-v4")))
#else
#define WIDE
#endif
#define INLINE WIDE static inline __attribute__((always_inline))

INLINE V load(const float *p) { return *(const V *)p; }
INLINE void store(float *p, V v) { *(V *)p = v; }

#endif
