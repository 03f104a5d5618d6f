/* rng.h: Philox 4x32-10 (Salmon et al., SC'11): random numbers as a function of a counter and a key. So every device
 * draws the same numbers, and recomputation draws them again. Shared with .cu files. */
#ifndef MT_RNG_H
#define MT_RNG_H

#include <math.h>
#include <string.h>

#include "base/base.h"

typedef struct Philox { uint32_t x[4]; } Philox;

/* One stream per purpose, so that two uses of one seed never draw the same numbers. */
enum RngStream { RNG_INIT = 1, RNG_DROPOUT = 2, RNG_DATA = 3, RNG_SHUFFLE = 4, RNG_NOISE = 5 };

/* Of the published block function: its rounds, what two numbers are multiplied by in each, and what the key's halves grow by */
enum { PHILOX_ROUNDS = 10 };
#define PHILOX_TIMES0 0xD2511F53u
#define PHILOX_TIMES2 0xCD9E8D57u
#define PHILOX_KEY0 0x9E3779B9u
#define PHILOX_KEY1 0xBB67AE85u

/* Four numbers from a counter and a key */
MT_FN Philox philox_block(Philox c, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_TIMES0 * c.x[0], p1 = (uint64_t)PHILOX_TIMES2 * c.x[2];
        uint32_t y0 = (uint32_t)(p1 >> 32) ^ c.x[1] ^ k0, y2 = (uint32_t)(p0 >> 32) ^ c.x[3] ^ k1;
        c.x[0] = y0;
        c.x[1] = (uint32_t)p1;
        c.x[2] = y2;
        c.x[3] = (uint32_t)p0;
        k0 += PHILOX_KEY0;
        k1 += PHILOX_KEY1;
    }
    return c;
}

/* The key of the streams (stream, any, b) of `seed` */
MT_FN uint32_t philox_key0(uint64_t seed, uint32_t stream) { return (uint32_t)seed ^ (stream * 0x9E3779B1u); }
MT_FN uint32_t philox_key1(uint64_t seed, uint32_t b) { return (uint32_t)(seed >> 32) ^ b; }

/* Block `i` (four numbers) of the stream (stream, a, b) of `seed`. */
MT_FN Philox philox(uint64_t seed, uint32_t stream, uint32_t a, uint32_t b, uint64_t i) {
    Philox c;
    c.x[0] = (uint32_t)i;
    c.x[1] = (uint32_t)(i >> 32);
    c.x[2] = a;
    c.x[3] = stream;
    return philox_block(c, philox_key0(seed, stream), philox_key1(seed, b));
}

/* Uniform in [0, 1): 24 bits of x, exact in fp32. */
MT_FN float rng_uniform(uint32_t x) { return (float)(x >> 8) * (1.0f / 16777216.0f); }

/* ---- normally distributed numbers
 *
 * In double and whole numbers of as many bits, by sums and products alone and without a branch: the bits of fp32 are those of every
 * machine, and compilers make vectors of it. The mathematical library's log, sin and cos take two to four times as long. */

MT_FN double rng_of_bits(uint64_t bits) {
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

MT_FN uint64_t rng_bits(double d) {
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits;
}

/* -d where `two` is 2, d where it is 0 */
MT_FN double rng_negative_if(uint64_t two, double d) { return rng_of_bits(rng_bits(d) ^ two << 62); }

/* n below 2^52 as a double: the bits of 2^52 + n */
MT_FN double rng_whole(uint64_t n) { return rng_of_bits(n | 0x4330000000000000u) - 0x1p52; }

/* log(u) of a normal number 0 < u < 1, to 2^-51 of it. u = 2^k m with m from sqrt(1/2) to sqrt(2); with s = (m - 1) / (m + 1),
 * log(m) = 2 (s + s^3 / 3 + s^5 / 5 + ...), and s^2 < 0.03. */
MT_FN double rng_log(double u) {
    const uint64_t sqrt_half = 0x3FE6A09E667F3BCDu, one = 0x3FF0000000000000u;
    const uint64_t bits = rng_bits(u), exponent = (bits + (one - sqrt_half)) >> 52; /* k + 1023 */
    const double m = rng_of_bits(bits - (exponent << 52) + one), s = (m - 1) / (m + 1), z = s * s;
    const double w = z * z;
    double sum = 1.0 / 21, other = 1.0 / 19; /* every other term: two sums do not wait for each other */
    sum = sum * w + 1.0 / 17, other = other * w + 1.0 / 15;
    sum = sum * w + 1.0 / 13, other = other * w + 1.0 / 11;
    sum = sum * w + 1.0 / 9, other = other * w + 1.0 / 7;
    sum = sum * w + 1.0 / 5, other = other * w + 1.0 / 3;
    sum = (sum * w + 1) + other * z;
    return (rng_whole(exponent) - 1023) * 0.69314718055994530942 + 2 * s * sum;
}

/* Cosine and sine of y / 2^32 of a turn, y below 2^32. x is the angle to the next quarter of a turn, at most pi / 4; the series of both
 * up to x^16 and x^17. */
MT_FN void rng_turn(uint64_t y, double *cosine, double *sine) {
    const uint64_t eighth = (uint64_t)1 << 29, quarter = (y + eighth) >> 30; /* 4 is 0 */
    const double x = (rng_whole(y + eighth - (quarter << 30)) - 0x1p29) * (2 * 3.14159265358979323846 * 0x1p-32), z = x * x;
    double c = 1.0 / 20922789888000.0, s = 1.0 / 355687428096000.0;
    c = c * z - 1.0 / 87178291200.0, s = s * z - 1.0 / 1307674368000.0;
    c = c * z + 1.0 / 479001600.0, s = s * z + 1.0 / 6227020800.0;
    c = c * z - 1.0 / 3628800.0, s = s * z - 1.0 / 39916800.0;
    c = c * z + 1.0 / 40320.0, s = s * z + 1.0 / 362880.0;
    c = c * z - 1.0 / 720.0, s = s * z - 1.0 / 5040.0;
    c = c * z + 1.0 / 24.0, s = s * z + 1.0 / 120.0;
    c = c * z - 1.0 / 2.0, s = s * z - 1.0 / 6.0;
    c = c * z + 1, s = (s * z + 1) * x;
    const double first = quarter & 1 ? s : c, second = quarter & 1 ? c : s;
    *cosine = rng_negative_if((quarter + 1) & 2, first);
    *sine = rng_negative_if(quarter & 2, second);
}

/* Two of them by the method of Box and Muller, of two whole numbers below 2^32 */
MT_FN void rng_pair(uint64_t x, uint64_t y, float *one, float *two) {
    const double radius = sqrt(-2 * rng_log((rng_whole(x) + 0.5) * 0x1p-32));
    double cosine, sine;
    rng_turn(y, &cosine, &sine);
    *one = (float)(radius * cosine);
    *two = (float)(radius * sine);
}

/* Four of them, of a block */
MT_FN void rng_normals(Philox r, float *four) {
    for (int k = 0; k < 4; k += 2) rng_pair(r.x[k], r.x[k + 1], &four[k], &four[k + 1]);
}

#endif
