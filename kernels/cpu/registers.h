/* registers.h: vectors of GEMM_LANES floats, of which each is one register of the instruction set; and squares of them. */
#ifndef MT_CPU_REGISTERS_H
#define MT_CPU_REGISTERS_H

#include "gemm_tiles.h"
#include "lanes.h"

typedef float R __attribute__((vector_size(4 * GEMM_LANES), aligned(4), may_alias)); /* a register */
typedef uint32_t Bits __attribute__((vector_size(4 * GEMM_LANES)));
typedef int32_t Places __attribute__((vector_size(4 * GEMM_LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * GEMM_LANES), aligned(2), may_alias));

/* Lane by lane what f16_to_f32 (dtype.h) does: a subnormal number becomes right by the product, infinity and NaN by the
 * largest exponent. */
INLINE R f16_lanes(Bits h) {
    const Bits a = (h & 0x7fff) << 13, special = (Bits)((h & 0x7fff) >= 0x7c00) & 0x7f800000u;
    return (R)((Bits)((R)a * 0x1p112f) | special | (h & 0x8000) << 16);
}

/* Lane by lane what dtype_round(DT_BF16) does, in fewer steps than BF16_LANES: a NaN is not rounded, but quiet. */
INLINE R bf16_rounded(R v) {
    const Bits u = (Bits)v, nan = (Bits)(v != v);
    return (R)(((u + (((u >> 16 & 1) + 0x7fff) & ~nan)) | (nan & 0x400000)) & 0xffff0000);
}

/* GEMM_LANES numbers from element `at` on */
INLINE R take(DType t, const void *from, int64_t at) {
    if (t == DT_F32) return *(const R *)((const float *)from + at);
    if (t == GEMM_F32_AS_BF16) return bf16_rounded(*(const R *)((const float *)from + at));
    const Bits h = __builtin_convertvector(*(const Halves *)((const uint16_t *)from + at), Bits);
    return t == DT_BF16 ? (R)(h << 16) : f16_lanes(h);
}

/* The lanes of two registers, one after the other, that make a new one: rows that are s apart exchange the blocks of s
 * lanes off their diagonal. Constants before anything is optimised: else a processor without AVX-512 gets several instructions
 * for each. */
#define PLACE(l, s, second) ((second) ? ((l) & (s) ? GEMM_LANES + (l) : (l) + (s)) : ((l) & (s) ? GEMM_LANES + (l) - (s) : (l)))
#define PLACES4(l, s, second) PLACE(l, s, second), PLACE(l + 1, s, second), PLACE(l + 2, s, second), PLACE(l + 3, s, second)
#define PLACES8(l, s, second) PLACES4(l, s, second), PLACES4(l + 4, s, second)
#if defined __AVX512F__
#define PLACES(s, second) ((Places){PLACES8(0, s, second), PLACES8(8, s, second)})
#elif defined __AVX__
#define PLACES(s, second) ((Places){PLACES8(0, s, second)})
#else
#define PLACES(s, second) ((Places){PLACES4(0, s, second)})
#endif

#define EXCHANGE(s)                                                 \
    _Pragma("GCC unroll 16") for (int i = 0; i < GEMM_LANES; i++)   \
        if (!(i & s)) {                                             \
            const R x = v[i], y = v[i + s];                         \
            v[i] = __builtin_shuffle(x, y, PLACES(s, false));       \
            v[i + s] = __builtin_shuffle(x, y, PLACES(s, true));    \
        }

/* Four lanes of a new register: numbers p, q, r, s of the same four lanes of two registers, 4 to 7 being the second one's. Such
 * shuffles stay in a quarter or half of a register, and have one instruction. */
#define FOUR(l, k) ((k) < 4 ? (l) + (k) : GEMM_LANES + (l) + (k) - 4)
#define FOURS(l, p, q, r, s) FOUR(l, p), FOUR(l, q), FOUR(l, r), FOUR(l, s)
#if defined __AVX512F__
#define ALL_FOURS(...) ((Places){FOURS(0, __VA_ARGS__), FOURS(4, __VA_ARGS__), FOURS(8, __VA_ARGS__), FOURS(12, __VA_ARGS__)})
#elif defined __AVX__
#define ALL_FOURS(...) ((Places){FOURS(0, __VA_ARGS__), FOURS(4, __VA_ARGS__)})
#else
#define ALL_FOURS(...) ((Places){FOURS(0, __VA_ARGS__)})
#endif

/* Transposes squares of four lanes of v[4]. */
INLINE void turn_fours(R *v) {
    const R x = __builtin_shuffle(v[0], v[1], ALL_FOURS(0, 4, 1, 5)), y = __builtin_shuffle(v[0], v[1], ALL_FOURS(2, 6, 3, 7));
    const R z = __builtin_shuffle(v[2], v[3], ALL_FOURS(0, 4, 1, 5)), w = __builtin_shuffle(v[2], v[3], ALL_FOURS(2, 6, 3, 7));
    v[0] = __builtin_shuffle(x, z, ALL_FOURS(0, 1, 4, 5));
    v[1] = __builtin_shuffle(x, z, ALL_FOURS(2, 3, 6, 7));
    v[2] = __builtin_shuffle(y, w, ALL_FOURS(0, 1, 4, 5));
    v[3] = __builtin_shuffle(y, w, ALL_FOURS(2, 3, 6, 7));
}

/* Transposes v[GEMM_LANES]. */
INLINE void turn_square(R *v) {
#if defined __AVX512F__
    EXCHANGE(8)
#endif
#if defined __AVX__
    EXCHANGE(4)
#endif
#pragma GCC unroll 4
    for (int i = 0; i < GEMM_LANES; i += 4) turn_fours(v + i);
}

#endif
