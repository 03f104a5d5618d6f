/* t_rng.c: Philox's published numbers, and what a place in a stream makes of them; uniform and normal numbers of them; the logarithm,
 * cosine and sine of the latter beside those of the mathematical library in long double. */
#include <stdio.h>

#include "math/rng_fill.h"
#include "tap.h"

/* Known answers of Random123, the library that Philox's authors published */
static const struct { Philox counter; uint32_t key[2]; Philox block; } known[] = {
    {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
    {{{~0u, ~0u, ~0u, ~0u}}, {~0u, ~0u}, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
    {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {0xa4093822, 0x299f31d0}, {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
};

enum { STREAM = RNG_SHUFFLE, DRAWS = 1 << 18 };
static const uint64_t SEED = 0x0123456789abcdef;

/* Whole numbers around every power of two and every quarter of a turn, then random ones */
static uint32_t number(int i) {
    if (i < 32 * 5) return (1u << (i / 5)) + (uint32_t)(i % 5) - 2;
    if (i < 32 * 5 + 20) return ((uint32_t)(i - 160) / 5 << 30) + (uint32_t)(i % 5) - 2;
    return philox(SEED, STREAM, 1, 2, (uint64_t)i).x[0];
}

static double distance(double x, long double exact) { return exact == 0 ? fabs(x) : (double)fabsl(((long double)x - exact) / exact); }

static void test_functions(void) {
    const double pi = acos(-1), small = 0x1p-50;
    double log_far = 0, turn_far = 0;
    for (int i = 0; i < DRAWS; i++) {
        const double u = ((double)number(i) + 0.5) * 0x1p-32;
        const uint32_t y = number(i), quarter = ((y >> 29) + 1) >> 1, eighth = y - (quarter << 30); /* to the next quarter: exact */
        const long double angle = (long double)(int32_t)eighth * acosl(-1) * 0x1p-31L, c = cosl(angle), s = sinl(angle);
        const long double cosine[] = {c, -s, -c, s}, sine[] = {s, c, -s, -c};
        double found_cosine, found_sine;
        rng_turn(y, &found_cosine, &found_sine);
        log_far = fmax(log_far, distance(rng_log(u), logl(u)));
        turn_far = fmax(turn_far, fmax(distance(found_cosine, cosine[quarter % 4]), distance(found_sine, sine[quarter % 4])));
    }
    ok(log_far < small, "the logarithm is within 2^-50: %g", log_far);
    ok(turn_far < small, "cosine and sine are within 2^-50, at the quarters of a turn, too: %g", turn_far);
    ok(fabs(rng_log(1 / pi) + log(pi)) < small, "the logarithm of 1 / pi");
}

static void test_normals(void) {
    static float x[DRAWS];
    double sum = 0, squares = 0, fourth = 0, pairs = 0;
    int apart = 0, far = 0;
    rng_fill(&(RngPlace){SEED, STREAM, 3, 4, 0}, true, x, DRAWS);
    for (int i = 0; i < DRAWS; i += 2) {
        const Philox block = philox(SEED, STREAM, 3, 4, (uint64_t)(i / 4));
        const double radius = sqrt(-2 * log((block.x[i % 4] + 0.5) * 0x1p-32)), angle = block.x[i % 4 + 1] * (2 * acos(-1) * 0x1p-32);
        const float exact[] = {(float)(radius * cos(angle)), (float)(radius * sin(angle))};
        for (int k = 0; k < 2; k++) {
            apart += x[i + k] != exact[k];
            far += fabsf(x[i + k] - exact[k]) > 1.2e-7f * fmaxf(fabsf(exact[k]), 1e-3f);
        }
    }
    for (int i = 0; i < DRAWS; i++) {
        const double v = x[i];
        sum += v, squares += v * v, fourth += v * v * v * v, pairs += v * x[i ^ 1];
    }
    ok(apart <= 2 && !far, "numbers are those of the library's functions: %d of %d in another bit, %d farther", apart, DRAWS, far);
    ok(fabs(sum / DRAWS) < 0.01 && fabs(squares / DRAWS - 1) < 0.02 && fabs(fourth / DRAWS - 3) < 0.1 && fabs(pairs / DRAWS) < 0.02,
       "mean %.3f, variance %.3f, fourth moment %.3f, neighbours' product %.3f", sum / DRAWS, squares / DRAWS, fourth / DRAWS, pairs / DRAWS);
}

/* Any number of them, from any block on, is what blocks give one by one, and nothing is written after it. */
static void test_fill(void) {
    enum { MOST = 600 };
    float one_by_one[MOST + 4], some[MOST];
    for (int normal = 0; normal < 2; normal++) {
        int wrong = 0;
        for (uint64_t block = 0xfffffff8u; block < 0x100000008u; block += 5) {
            for (uint64_t k = 0; k <= MOST / 4; k++) {
                const Philox drawn = philox(SEED, STREAM, 5, 6, block + k);
                if (normal) rng_normals(drawn, &one_by_one[4 * k]);
                for (int i = 0; i < 4 && !normal; i++) one_by_one[4 * k + (uint64_t)i] = rng_uniform(drawn.x[i]);
            }
            for (int n = 0; n <= MOST; n += n % 64 < 7 ? 1 : 19) {
                for (int i = 0; i < MOST; i++) some[i] = -9;
                rng_fill(&(RngPlace){SEED, STREAM, 5, 6, block}, normal, some, n);
                wrong += memcmp(some, one_by_one, (size_t)n * sizeof *some) != 0;
                for (int i = n; i < MOST; i++) wrong += some[i] != -9;
            }
        }
        ok(!wrong, "%s: 0 to %d numbers from blocks around 2^32 on", normal ? "normal" : "uniform", MOST);
    }
}

/* All bits of a seed, a stream and a block's number count. What is expected was computed apart from this code, from the definition of
 * counter and key. */
static void test_places(void) {
    const Philox found = philox(SEED, RNG_DROPOUT, 5, 6, 0x1122334455667788), expected = {{0xf6c35bf6, 0xb339fe2d, 0xdaafac1b, 0x8a51fd5c}};
    ok(!memcmp(&found, &expected, sizeof found), "a block of which every part of the place is large");
}

static void test_uniforms(void) {
    int outside = 0;
    for (int i = 0; i < 64; i++) outside += !(rng_uniform(number(i)) >= 0 && rng_uniform(number(i)) < 1);
    ok(!outside && rng_uniform(~0u) < 1 && rng_uniform(0) == 0, "uniform numbers are from 0 to below 1");
    ok(rng_uniform(0xff) == 0 && rng_uniform(0x100) == 0x1p-24f && rng_uniform(~0u) == 1 - 0x1p-24f, "and have 24 bits");
}

int main(void) {
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        const Philox found = philox_block(known[i].counter, known[i].key[0], known[i].key[1]);
        ok(!memcmp(&found, &known[i].block, sizeof found), "Philox's published block %zu", i);
    }
    test_functions();
    test_normals();
    test_fill();
    test_places();
    test_uniforms();
    return tap_done();
}
