/* lanes.h: vectors of LANES floats on any processor: 16, or, in a file that defines REGISTER_LANES before it includes this, as
 * many as fit into a register of AVX-512, or else AVX2. */
#ifndef MT_CPU_LANES_H
#define MT_CPU_LANES_H

#include "base/dtype.h"
#include "parallel.h"

#if defined REGISTER_LANES && !defined __AVX512F__
enum { LANES = 8 };
#else
enum { LANES = 16 };
#endif

/* LANES_FIT: 16 floats fit into one register. TILES_FIT: convolutions of tiles that stay in registers are quick. */
#if defined __AVX512F__
enum { LANES_FIT = true, TILES_FIT = true };
#elif defined __AVX2__
enum { LANES_FIT = false, TILES_FIT = true };
#else
enum { LANES_FIT = false, TILES_FIT = false };
#endif

typedef float V __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* may start at any float */

typedef uint32_t LaneBits __attribute__((vector_size(4 * LANES)));
typedef uint16_t LaneHalves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

INLINE V load(const float *p) { return *(const V *)p; }
INLINE void store(float *p, V v) { *(V *)p = v; }

/* LANES numbers of type t, fp32 or bf16, from element `at` on; t is a constant. Rounds as bf16_from_f32 does. */
INLINE V load_as(DType t, const void *p, int64_t at) {
    if (t == DT_F32) return load((const float *)p + at);
    return (V)(__builtin_convertvector(*(const LaneHalves *)((const uint16_t *)p + at), LaneBits) << 16);
}

INLINE void store_as(DType t, void *p, int64_t at, V v) {
    const LaneBits u = (LaneBits)v, nan = (LaneBits)((u & 0x7fffffff) > 0x7f800000), kept = u >> 16;
    const LaneBits rounded = (u + 0x7fff + (kept & 1)) >> 16;
    if (t == DT_F32) store((float *)p + at, v);
    else *(LaneHalves *)((uint16_t *)p + at) = __builtin_convertvector((nan & (kept | 0x40)) | (~nan & rounded), LaneHalves);
}

#endif
