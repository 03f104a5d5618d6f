#include "codes.h"

#define REGISTER_LANES
#include "lanes.h"

/* Pairs of codes as numbers: an even number of them */
static void pairs(const float map[QUANT_MAP], const uint8_t *codes, int64_t n, float *to) {
    for (int64_t k = 0; k < n; k += 2, codes++) {
        to[k] = map[*codes >> 4];
        to[k + 1] = map[*codes & 15];
    }
}

#ifdef __AVX2__
/* LANES codes, eight out of each word: that of an even lane is the upper half of a byte, that of the next lane its lower half. */
INLINE LaneBits codes_of(const uint8_t *codes) {
    uint32_t words[LANES / 8];
    memcpy(words, codes, sizeof words);
    const LaneBits first = (LaneBits)(lane_numbers() < 8), all = (first & words[0]) | (~first & words[LANES / 8 - 1]);
    return all >> (LaneBits)(((lane_numbers() & 7) ^ 1) * 4) & 15;
}

/* The same for whole vectors: the map fits into one or two registers. Returns how many numbers it has made. */
static int64_t pairs_in_vectors(const float map[QUANT_MAP], const uint8_t *codes, int64_t n, float *to) {
    const V first = load(map), last = load(map + QUANT_MAP - LANES);
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES, codes += LANES / 2) store(to + k, __builtin_shuffle(first, last, codes_of(codes)));
    return k;
}
#else
static int64_t pairs_in_vectors(const float map[QUANT_MAP], const uint8_t *codes, int64_t n, float *to) {
    (void)map, (void)codes, (void)n, (void)to;
    return 0;
}
#endif

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

void codes_ask(const Quantized *q, int64_t i, int64_t n) {
    enum { LINE = 64 /* bytes */ };
    const int shift = q->map ? 1 : 0; /* two codes in a byte, or one */
    for (int64_t k = i >> shift; k < (i + n) >> shift; k += LINE) line_ask(q->codes, k, 1);
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
