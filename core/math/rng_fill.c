#include "rng_fill.h"

/* Blocks at a time, and the numbers that are made of them. x[k]: number k of each block. The processor's divisions and square roots of
 * doubles overlap with the sums of other blocks. */
enum { BLOCKS = 32, NUMBERS = 4 * BLOCKS };
typedef uint64_t Blocks[4][BLOCKS];

typedef void BlocksFn(Blocks x, const RngPlace *from, uint64_t block);

static inline __attribute__((always_inline)) void numbers_of(Blocks x, bool normal, float *out) {
    float made[4][BLOCKS];
    for (int k = 0; k < 4 && !normal; k++)
#pragma omp simd
        for (int i = 0; i < BLOCKS; i++) made[k][i] = rng_uniform((uint32_t)x[k][i]);
    for (int k = 0; k < 4 && normal; k += 2)
#pragma omp simd
        for (int i = 0; i < BLOCKS; i++) rng_pair(x[k][i], x[k + 1][i], &made[k][i], &made[k + 1][i]);
#pragma omp simd
    for (int i = 0; i < BLOCKS; i++)
        for (int k = 0; k < 4; k++) out[4 * i + k] = made[k][i];
}

static inline __attribute__((always_inline)) void fill_by(BlocksFn *blocks, const RngPlace *from, bool normal, float *out, int64_t n) {
    Blocks x;
    float last[NUMBERS];
    int64_t i = 0;
    for (; i + NUMBERS <= n; i += NUMBERS) {
        blocks(x, from, from->block + (uint64_t)i / 4);
        numbers_of(x, normal, out + i);
    }
    if (i == n) return;
    blocks(x, from, from->block + (uint64_t)i / 4);
    numbers_of(x, normal, last);
    memcpy(out + i, last, (size_t)(n - i) * sizeof *out);
}

static inline __attribute__((always_inline)) void blocks_plain(Blocks x, const RngPlace *from, uint64_t block) {
    for (uint64_t i = 0; i < BLOCKS; i++) {
        const Philox drawn = philox(from->seed, from->stream, from->a, from->b, block + i);
        for (int k = 0; k < 4; k++) x[k][i] = drawn.x[k];
    }
}

static void fill_plain(const RngPlace *from, bool normal, float *out, int64_t n) { fill_by(blocks_plain, from, normal, out, n); }

/* The core is compiled for every processor of its kind; this part of it for those with AVX2, too. */
#if defined __x86_64__ && !defined __clang__
#pragma GCC push_options
#pragma GCC target("avx2")
#include "philox_lanes.h"

static inline __attribute__((always_inline)) void blocks_avx2(Blocks x, const RngPlace *from, uint64_t block) {
    Wide drawn[PHILOX_CHAINS][4];
    for (int i = 0; i < BLOCKS; i += PHILOX_BLOCKS) {
        philox_lanes(drawn, from->seed, from->stream, from->a, from->b, block + (uint64_t)i);
        for (int c = 0; c < PHILOX_CHAINS; c++)
            for (int k = 0; k < 4; k++) {
                const Wide lower = drawn[c][k] & 0xffffffff;
                memcpy(&x[k][i + c * PHILOX_LANES], &lower, sizeof lower);
            }
    }
}

static void fill_avx2(const RngPlace *from, bool normal, float *out, int64_t n) { fill_by(blocks_avx2, from, normal, out, n); }
#pragma GCC pop_options

void rng_fill(const RngPlace *from, bool normal, float *out, int64_t n) {
    (__builtin_cpu_supports("avx2") ? fill_avx2 : fill_plain)(from, normal, out, n);
}
#else
void rng_fill(const RngPlace *from, bool normal, float *out, int64_t n) { fill_plain(from, normal, out, n); }
#endif
