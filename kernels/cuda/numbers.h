/* numbers.h: numbers of a weight of 4 or 8 bits (math/quantized.h), some neighbours at a time. For .cu files. */
#ifndef MT_NUMBERS_H
#define MT_NUMBERS_H

#include "launch.h"
#include "math/quantized.h"

/* N codes, N = 1, 4 or 8 (0: none), from where a word of N bytes may begin */
template <int N> static __device__ inline void codes_load(const uint8_t *from, uint8_t *to) {
    if (N == 1) to[0] = *from;
    uint32_t word[2] = {};
    if (N == 4) word[0] = *(const uint32_t *)from;
    if (N == 8) word[0] = ((const uint2 *)from)->x, word[1] = ((const uint2 *)from)->y;
    for (int k = 0; k < N && N > 1; k++) to[k] = (uint8_t)(word[k / 4] >> k % 4 * 8);
}

/* Numbers [i, i + N) of the weight, which lie in one block and one row. N > 1: i is a multiple of N. map: a copy of w.map, NULL for 8
 * bits */
template <int N> static __device__ inline void numbers(const Quantized &w, const float *map, int64_t i, float *x) {
    if (!map) {
        const float scb = ((const float *)w.absmax)[i / w.columns];
        uint8_t codes[N];
        codes_load<N>(w.codes + i, codes);
        for (int k = 0; k < N; k++) x[k] = quant8_weight(codes[k], scb);
        return;
    }
    const float absmax = quant4_absmax(&w, i / QUANT_BLOCK);
    if constexpr (N == 1) {
        x[0] = map[quant4_code(w.codes, i)] * absmax;
    } else {
        uint8_t codes[N / 2];
        codes_load<N / 2>(w.codes + i / 2, codes);
        for (int k = 0; k < N / 2; k++) {
            x[2 * k] = map[codes[k] >> 4] * absmax;
            x[2 * k + 1] = map[codes[k] & 15] * absmax;
        }
    }
}

#endif
