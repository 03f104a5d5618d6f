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
typedef int32_t LaneInts __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t LaneHalves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

INLINE V load(const float *p) { return *(const V *)p; }
INLINE void store(float *p, V v) { *(V *)p = v; }

/* 0, 1, ... */
INLINE LaneInts lane_numbers(void) {
    static const int32_t numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return *(const LaneInts *)numbers;
}

/* Lane by lane, the larger number; b where one is a NaN */
INLINE V lanes_larger(V a, V b) {
    float x[LANES], y[LANES];
    store(x, a);
    store(y, b);
#pragma omp simd
    for (int l = 0; l < LANES; l++) x[l] = x[l] > y[l] ? x[l] : y[l];
    return load(x);
}

INLINE V lanes_turned(V v, int by) { return __builtin_shuffle(v, (lane_numbers() + by) & (LANES - 1)); }

INLINE float lanes_largest(V v) {
#pragma GCC unroll 4
    for (int by = LANES / 2; by; by /= 2) v = lanes_larger(v, lanes_turned(v, by));
    return v[0];
}

INLINE float lanes_sum(V v) {
#pragma GCC unroll 4
    for (int by = LANES / 2; by; by /= 2) v += lanes_turned(v, by);
    return v[0];
}

/* LANES numbers of type t, fp32 or bf16, from element `at` on; t is a constant. Rounds as bf16_from_f32 does. */
INLINE V load_as(DType t, const void *p, int64_t at) {
    if (t == DT_F32) return load((const float *)p + at);
    return (V)(__builtin_convertvector(*(const LaneHalves *)((const uint16_t *)p + at), LaneBits) << 16);
}

/* Lane by lane the bits in bf16 of a number with the bits u, a variable that is a vector of type Bits */
#define BF16_LANES(Bits, u)                                          \
    (((Bits)((u & 0x7fffffff) > 0x7f800000) & (u >> 16 | 0x40)) |    \
     (~(Bits)((u & 0x7fffffff) > 0x7f800000) & ((u + 0x7fff + (u >> 16 & 1)) >> 16)))

INLINE LaneBits lanes_bf16(V v) {
    const LaneBits u = (LaneBits)v;
    return BF16_LANES(LaneBits, u);
}

INLINE V lanes_rounded(V v) { return (V)(lanes_bf16(v) << 16); }

INLINE void store_as(DType t, void *p, int64_t at, V v) {
    if (t == DT_F32) store((float *)p + at, v);
    else *(LaneHalves *)((uint16_t *)p + at) = __builtin_convertvector(lanes_bf16(v), LaneHalves);
}

#endif
