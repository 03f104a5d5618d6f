/* rng.h: Philox 4x32-10 (Salmon et al., SC'11): random numbers as a function of a counter and a key. So every device
 * draws the same numbers, and recomputation draws them again. Shared with .cu files. */
#ifndef MT_RNG_H
#define MT_RNG_H

#include <math.h>

#include "base/base.h"

typedef struct Philox { uint32_t x[4]; } Philox;

/* One stream per purpose, so that two uses of one seed never draw the same numbers. */
enum RngStream { RNG_INIT = 1, RNG_DROPOUT = 2, RNG_DATA = 3, RNG_SHUFFLE = 4, RNG_NOISE = 5 };

/* The published block function: four numbers from a counter and a key. */
MT_FN Philox philox_block(Philox c, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c.x[0], p1 = (uint64_t)0xCD9E8D57u * c.x[2];
        uint32_t y0 = (uint32_t)(p1 >> 32) ^ c.x[1] ^ k0, y2 = (uint32_t)(p0 >> 32) ^ c.x[3] ^ k1;
        c.x[0] = y0;
        c.x[1] = (uint32_t)p1;
        c.x[2] = y2;
        c.x[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* Block `i` (four numbers) of the stream (stream, a, b) of `seed`. */
MT_FN Philox philox(uint64_t seed, uint32_t stream, uint32_t a, uint32_t b, uint64_t i) {
    Philox c;
    c.x[0] = (uint32_t)i;
    c.x[1] = (uint32_t)(i >> 32);
    c.x[2] = a;
    c.x[3] = stream;
    return philox_block(c, (uint32_t)seed ^ (stream * 0x9E3779B1u), (uint32_t)(seed >> 32) ^ b);
}

/* Uniform in [0, 1): 24 bits of x, exact in fp32. */
MT_FN float rng_uniform(uint32_t x) { return (float)(x >> 8) * (1.0f / 16777216.0f); }

/* Four normally distributed numbers, by the method of Box and Muller: two from two uniform ones in (0, 1), twice. In
 * double, so that the last bit of fp32 does not depend on the machine's mathematical library. */
MT_FN void rng_normals(Philox r, float *four) {
    for (int k = 0; k < 4; k += 2) {
        double radius = sqrt(-2 * log((r.x[k] + 0.5) * 0x1p-32));
        double angle = r.x[k + 1] * (2 * 3.14159265358979323846 * 0x1p-32);
        four[k] = (float)(radius * cos(angle));
        four[k + 1] = (float)(radius * sin(angle));
    }
}

#endif
