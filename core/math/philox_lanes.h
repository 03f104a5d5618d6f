/* philox_lanes.h: many blocks of Philox (rng.h) at once, where the file is compiled for AVX2 or AVX-512.
 *
 * Blocks lie in 64-bit lanes, where one instruction multiplies the lower halves: of loops over uint32_t a compiler makes three times as
 * many instructions. PHILOX_LANES: blocks in a register (tests/wide.h defines __AVX512F__ where there is none of AVX-512);
 * PHILOX_CHAINS: registers whose rounds are made at a time, since each waits for a product. */
#ifndef MT_PHILOX_LANES_H
#define MT_PHILOX_LANES_H

#include "rng.h"

#if defined __AVX512BW__
enum { PHILOX_LANES = 8 };
#else
enum { PHILOX_LANES = 4 };
#endif
enum { PHILOX_CHAINS = 2, PHILOX_BLOCKS = PHILOX_CHAINS * PHILOX_LANES };

typedef uint64_t Wide __attribute__((vector_size(8 * PHILOX_LANES), may_alias));
typedef long long WideProducts __attribute__((vector_size(8 * PHILOX_LANES)));
typedef int32_t WideInts __attribute__((vector_size(8 * PHILOX_LANES)));

/* Of the lower halves of a; the upper ones do not count. */
static inline __attribute__((always_inline)) Wide wide_product(Wide a, uint32_t b) {
    const Wide all = (Wide){0} + b;
#if defined __AVX512BW__
    return (Wide)__builtin_ia32_pmuludq512_mask((WideInts)a, (WideInts)all, (WideProducts){0}, 0xff);
#else
    return (Wide)__builtin_ia32_pmuludq256((WideInts)a, (WideInts)all);
#endif
}

/* The PHILOX_BLOCKS blocks from `block` on: x[c][k] has number k of PHILOX_LANES of them, in lower halves. */
static inline __attribute__((always_inline)) void philox_lanes(Wide x[PHILOX_CHAINS][4], uint64_t seed, uint32_t stream, uint32_t a,
                                                               uint32_t b, uint64_t block) {
#if defined __AVX512BW__
    const Wide order = {0, 1, 2, 3, 4, 5, 6, 7};
#else
    const Wide order = {0, 1, 2, 3};
#endif
    uint32_t k0 = philox_key0(seed, stream), k1 = philox_key1(seed, b);
#pragma GCC unroll 2
    for (int c = 0; c < PHILOX_CHAINS; c++) {
        x[c][0] = order + block + (uint64_t)c * PHILOX_LANES;
        x[c][1] = x[c][0] >> 32;
        x[c][2] = (Wide){0} + a;
        x[c][3] = (Wide){0} + stream;
    }
#pragma GCC unroll 10
    for (int round = 0; round < PHILOX_ROUNDS; round++, k0 += PHILOX_KEY0, k1 += PHILOX_KEY1)
#pragma GCC unroll 2
        for (int c = 0; c < PHILOX_CHAINS; c++) {
            const Wide p0 = wide_product(x[c][0], PHILOX_TIMES0), p2 = wide_product(x[c][2], PHILOX_TIMES2);
            x[c][0] = p2 >> 32 ^ x[c][1] ^ k0;
            x[c][2] = p0 >> 32 ^ x[c][3] ^ k1;
            x[c][1] = p2;
            x[c][3] = p0;
        }
}

#endif
