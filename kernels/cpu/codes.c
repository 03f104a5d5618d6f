#include "codes.h"

#include "lanes.h"

/* Pairs of codes as numbers: an even number of them */
static void pairs(const float map[QUANT_MAP], const uint8_t *codes, int64_t n, float *to) {
    for (int64_t k = 0; k < n; k += 2, codes++) {
        to[k] = map[*codes >> 4];
        to[k + 1] = map[*codes & 15];
    }
}

/* The same for whole vectors, where the map fits into a register. Returns how many numbers it has made. */
static int64_t pairs_in_vectors(const float map[QUANT_MAP], const uint8_t *codes, int64_t n, float *to) {
    typedef int32_t Places __attribute__((vector_size(4 * LANES)));
    typedef uint8_t Bytes __attribute__((vector_size(LANES)));
    const Places first = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}, second = first + 8;
    const V table = load(map);
    int64_t k = 0;
    for (; LANES_FIT && k + 2 * LANES <= n; k += 2 * LANES) {
        Bytes bytes;
        memcpy(&bytes, codes + k / 2, sizeof bytes);
        const Places two = __builtin_convertvector(bytes, Places);
        const V high = __builtin_shuffle(table, two >> 4), low = __builtin_shuffle(table, two & 15);
        store(to + k, __builtin_shuffle(high, low, first));
        store(to + k + LANES, __builtin_shuffle(high, low, second));
    }
    return k;
}

/* Numbers [i, i + n) of the weight, of one block */
HOT static void line4(const Quantized *q, float absmax, int64_t i, int64_t n, float *to) {
    float map[QUANT_MAP];
    for (int k = 0; k < QUANT_MAP; k++) map[k] = q->map[k] * absmax;
    int64_t k = i & 1; /* whose first code is the lower half of a byte */
    if (k) to[0] = map[q->codes[i / 2] & 15];
    const int64_t even = (n - k) / 2 * 2, done = pairs_in_vectors(map, q->codes + (i + k) / 2, even, to + k);
    pairs(map, q->codes + (i + k + done) / 2, even - done, to + k + done);
    if (k + even < n) to[n - 1] = map[q->codes[(i + n - 1) / 2] >> 4];
}

HOT static void line8(const uint8_t *codes, float scb, int64_t n, float *to) {
    for (int64_t k = 0; k < n; k++) to[k] = quant8_weight(codes[k], scb);
}

void codes_load(const Quantized *q, int64_t i, int64_t n, float *to) {
    if (!q->map) {
        line8(q->codes + i, ((const float *)q->absmax)[i / q->columns], n, to);
        return;
    }
    for (const int64_t end = i + n; i < end;) {
        const int64_t block = i / QUANT_BLOCK, count = min_i64(end, (block + 1) * QUANT_BLOCK) - i;
        line4(q, quant4_absmax(q, block), i, count, to);
        i += count;
        to += count;
    }
}
